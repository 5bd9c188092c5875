#pragma once

#include <span>
#include <vector>

#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/mpi/hosts.hpp"

namespace guozhuang::wire::mpi {

/// This rank's doorbell and activity, in the host's shared memory or, without it, in this object;
/// the doorbells of the host's other ranks, and the way to those of other hosts. Must not be moved.
class HostBells {
public:
    /// Called once; the host must not be moved afterwards.
    void connect(Host& host) {
        bells_.assign(host.topology.host_of.size(), nullptr);
        remote_ = host.remote_bells.get();
        if (!host.memory) return all_.push_back(own_);
        own_ = &host.memory->bell(host.local_rank);
        activity_ = &host.memory->activity(host.local_rank);
        for (int local_rank = 0; local_rank < host.memory->ranks(); ++local_rank) {
            const auto rank =
                static_cast<std::size_t>(host.ranks[static_cast<std::size_t>(local_rank)]);
            bells_[rank] = all_.emplace_back(&host.memory->bell(local_rank));
        }
    }

    base::Doorbell& own() noexcept { return *own_; }
    trace::Activity& activity() noexcept { return *activity_; }
    /// The doorbells of the host's ranks, ascending; only this rank's if it shares no memory.
    std::span<base::Doorbell* const> all() const noexcept { return all_; }
    /// The doorbell of a rank; null if this rank cannot ring it.
    base::Doorbell* of(int rank) const noexcept { return bells_[static_cast<std::size_t>(rank)]; }

    void ring(int rank, base::Audience audience = base::everybody) noexcept {
        if (auto* const bell = of(rank)) base::ring(*bell, base::Sleepers::for_news, audience);
    }
    /// Also a rank of another host, which costs a system call.
    void ring_anywhere(int rank, base::Audience audience = base::everybody) noexcept {
        if (of(rank) == nullptr && remote_ != nullptr) return remote_->ring(rank, audience);
        ring(rank, audience);
    }
    /// Ends the job for all ranks of the host. For this one last: its process may end in response,
    /// and others must not hear of that first.
    void abort_all(const base::AbortCause& cause) noexcept {
        base::note_cause(all_, cause);
        for (auto* const bell : all_)
            if (bell != own_) base::abort(*bell);
        base::abort(*own_);
    }
    void nudge(int rank, base::Audience audience) noexcept {
        if (auto* const bell = of(rank)) base::nudge(*bell, audience);
    }

private:
    base::Doorbell private_bell_;
    trace::Activity private_activity_;
    base::Doorbell* own_ = &private_bell_;
    trace::Activity* activity_ = &private_activity_;
    std::vector<base::Doorbell*> bells_;  ///< by world rank
    std::vector<base::Doorbell*> all_;
    RemoteBells* remote_ = nullptr;
};

}  // namespace guozhuang::wire::mpi
