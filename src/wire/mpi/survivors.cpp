#include "wire/mpi/survivors.hpp"

#include <algorithm>
#include <deque>
#include <dlfcn.h>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "base/keep_for_ever.hpp"
#include "base/log.hpp"
#include "wire/mpi/control_inbox.hpp"
#include "wire/mpi/mpi_library.hpp"
#include "wire/mpi/mpi_transport.hpp"
#include "wire/mpi/tags.hpp"

namespace guozhuang::wire::mpi {
namespace {

/// The state of a rank, as far as known. If two ranks differ, the larger value holds.
enum class Fate : char { alive, unreachable, gone };
using Fates = std::vector<Fate>;  ///< by rank

Fate fate_of(Host& host, const Monitor::WatchedProcess& process) {
    if (auto* const link = process.link.get()) {
        const bool has_ended = link->has_ended();
        if (has_ended && link->error() != 0) return Fate::unreachable;
        return has_ended || !link->reason().empty() ? Fate::gone : Fate::alive;
    }
    const auto* const theirs = activity_of(host, process.rank);
    const bool has_quit = theirs != nullptr && theirs->quit_reason.read();
    const bool has_died = base::is_visible(process.id) && !base::is_running(process.id);
    return has_quit || has_died ? Fate::gone : Fate::alive;
}

class RollCall {
public:
    RollCall(MPI_Comm world, Host& host, int tag)
        : world_(world),
          host_(host),
          tag_(tag),
          fates_(static_cast<std::size_t>(host.topology.size())),
          heard_(fates_.size()) {}

    ~RollCall() {
        inbox_.keep_for_ever();
        base::keep_for_ever(std::move(sent_));
    }
    RollCall(const RollCall&) = delete;
    RollCall& operator=(const RollCall&) = delete;

    /// Returns whether all that are left know the same, or have left this rank out.
    bool is_over() {
        for (const auto& process : watched_by(host_)) learn(process.rank, fate_of(host_, process));
        while (receive()) continue;
        if (sent_->empty() || sent_->back().first != fates_) send();
        const auto self = static_cast<std::size_t>(host_.topology.rank);
        return missing().empty() || fates_[self] != Fate::alive;
    }

    /// The ranks that are left and have not said the same as this one.
    std::vector<int> missing() const {
        return ranks_where([this](std::size_t rank) {
            return fates_[rank] == Fate::alive && std::cmp_not_equal(rank, host_.topology.rank) &&
                   heard_[rank] != fates_;
        });
    }
    std::vector<int> ranks_of(Fate fate) const {
        return ranks_where([&](std::size_t rank) { return fates_[rank] == fate; });
    }

private:
    /// A message to all others, whose memory MPI uses until it has left: for ever, perhaps.
    using Sent = std::pair<Fates, std::vector<MPI_Request>>;

    template <class Holds>
    std::vector<int> ranks_where(const Holds& holds) const {
        std::vector<int> ranks;
        for (std::size_t rank = 0; rank < fates_.size(); ++rank)
            if (holds(rank)) ranks.push_back(static_cast<int>(rank));
        return ranks;
    }

    /// A host of which one rank cannot be reached is left out as a whole.
    void learn(int rank, Fate fate) {
        const auto& host_of = host_.topology.host_of;
        const int host = host_of[static_cast<std::size_t>(rank)];
        for (std::size_t other = 0; other < fates_.size(); ++other)
            if (std::cmp_equal(other, rank) ||
                (fate == Fate::unreachable && host_of[other] == host))
                fates_[other] = std::max(fates_[other], fate);
    }

    /// If two ranks cannot reach each other, the one that is heard first stays: the other is not
    /// asked who else cannot be reached.
    bool receive() {
        const auto message = inbox_.poll_each(world_, tag_, host_.topology.size());
        if (!message) return false;
        const auto from = static_cast<std::size_t>(message->from);
        const bool is_reachable = fates_[from] != Fate::unreachable;
        Fates theirs;
        for (std::size_t rank = 0; rank < std::min(fates_.size(), message->bytes.size()); ++rank) {
            theirs.push_back(static_cast<Fate>(message->bytes[rank]));
            if (is_reachable || theirs.back() == Fate::gone)
                learn(static_cast<int>(rank), theirs.back());
        }
        heard_[from] = std::move(theirs);
        return true;
    }

    void send() {
        auto& [fates, requests] = sent_->emplace_back(fates_, std::vector<MPI_Request>());
        for (int rank = 0; std::cmp_less(rank, fates.size()); ++rank)
            if (rank != host_.topology.rank && fates[static_cast<std::size_t>(rank)] != Fate::gone)
                // Fails if the rank has died, which will be seen.
                MPI_Isend(fates.data(), static_cast<int>(fates.size()), MPI_BYTE, rank, tag_,
                          world_, &requests.emplace_back(MPI_REQUEST_NULL));
    }

    MPI_Comm world_;
    Host& host_;
    const int tag_;
    Fates fates_;
    std::vector<Fates> heard_;  ///< by rank; empty: nothing
    ControlInbox inbox_;
    std::unique_ptr<std::deque<Sent>> sent_ = std::make_unique<std::deque<Sent>>();
};

void check_survivors(const RollCall& roll, const Host& host, MessagesInFlight& in_flight) {
    const auto left = roll.ranks_of(Fate::alive);
    const auto unreachable = roll.ranks_of(Fate::unreachable);
    if (!std::ranges::binary_search(left, host.topology.rank))
        throw Error(ErrorCode::unavailable,
                    fmt::format("shrink: other ranks cannot reach this one, rank {}, and may go on "
                                "without it",
                                host.topology.rank),
                    {.operation = "shrink", .ranks = {host.topology.rank}});
    if (!in_flight.begun_by(unreachable).empty())
        throw Error(ErrorCode::wire,
                    fmt::format("shrink: {} cannot be reached, and a message from there has begun: "
                                "MPI could still write to the program's memory",
                                base::list_ranks(unreachable)),
                    {.operation = "shrink", .ranks = unreachable});
    const auto twice = 2 * left.size(), all = host.topology.host_of.size();
    if (unreachable.empty() || twice > all || (twice == all && left.front() == 0)) return;
    throw Error(ErrorCode::unavailable,
                fmt::format("shrink: {} cannot be reached and may be alive, and {} of {} ranks are "
                            "too few to go on without them",
                            base::list_ranks(unreachable), left.size(), all),
                {.operation = "shrink", .ranks = unreachable});
}

std::vector<int> agree(MPI_Comm world, Host& host, MessagesInFlight& in_flight, int tag,
                       base::Deadline deadline) {
    RollCall roll(world, host, tag);
    base::Doorbell bell;  // the rank's own is aborted
    if (!base::wait_until(
            bell, {.spin = std::chrono::microseconds(0)}, [&] { return roll.is_over(); },
            deadline)) {
        const auto missing = roll.missing();
        throw Error(
            ErrorCode::timeout,
            fmt::format("shrink: {} neither called it in time nor died", base::list_ranks(missing)),
            {.operation = "shrink", .ranks = missing});
    }
    check_survivors(roll, host, in_flight);
    return roll.ranks_of(Fate::alive);
}

/// A function of a later MPI than that of the headers, perhaps.
template <class Function>
Function* find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// Open MPI 5 refuses to make one out of `world`, in which it has noticed dead ranks.
MPI_Comm make_communicator(MPI_Comm world, const std::vector<int>& ranks, int tag) {
    MPI_Group all = MPI_GROUP_NULL, left = MPI_GROUP_NULL;
    MPI_Comm communicator = MPI_COMM_NULL;
    check(MPI_Comm_group(world, &all), "MPI_Comm_group");
    check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &left),
          "MPI_Group_incl");
    auto* const create = find<int(MPI_Group, const char*, MPI_Info, MPI_Errhandler, MPI_Comm*)>(
        "MPI_Comm_create_from_group");
    if (find<void()>("MPIX_Comm_shrink") != nullptr && create != nullptr)
        check(create(left, "guozhuang", MPI_INFO_NULL, MPI_ERRORS_RETURN, &communicator),
              "MPI_Comm_create_from_group");
    else
        check(MPI_Comm_create_group(world, left, tag, &communicator), "MPI_Comm_create_group");
    check(MPI_Group_free(&left), "MPI_Group_free");
    check(MPI_Group_free(&all), "MPI_Group_free");
    return communicator;
}

}  // namespace

MPI_Comm communicator_of_survivors(MPI_Comm world, Host& host, MessagesInFlight& in_flight,
                                   std::chrono::milliseconds limit,
                                   std::optional<Monitor>& monitor) {
    // A rank that does not come in time, stuck inside MPI perhaps, ends its own process then.
    const auto deadline = base::deadline_after(limit + std::chrono::seconds(1));
    base::keep_process();
    base::end_process("shrink: MPI has not made the new job in time: a rank may be stopped",
                      2 * limit);
    const auto ranks =
        agree(world, host, in_flight, encode(roll_call_tag, largest_tag()), deadline);
    Use::never_finalise();
    auto watched = watched_by(host);
    std::erase_if(watched, [&](const auto& process) {
        return !std::ranges::binary_search(ranks, process.rank);
    });
    monitor.emplace(
        watched,
        [&](const Monitor::End& end) { return end_inside_mpi(end, "shrink", host.hosts > 1); },
        LogLevel::debug);
    base::Doorbell bell;
    std::vector<int> begun;
    if (!base::wait_until(
            bell, {}, [&] { return (begun = in_flight.begun_by(ranks)).empty(); }, deadline))
        throw Error(ErrorCode::timeout,
                    fmt::format("shrink: a message of {} has begun and does not end",
                                base::list_ranks(begun)),
                    {.operation = "shrink", .ranks = begun});
    return make_communicator(world, ranks, encode(survivors_tag, largest_tag()));
}

}  // namespace guozhuang::wire::mpi
