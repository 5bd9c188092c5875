#pragma once

#include <cstddef>
#include <functional>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/process_set_state.hpp"
#include "backends/host/host_backend.hpp"
#include "budget/stopwatch.hpp"
#include "engine/context.hpp"
#include "engine/control_plane.hpp"
#include "engine/executor.hpp"
#include "engine/life_cycle.hpp"
#include "engine/submission_queue.hpp"
#include "wire/group/control_channel.hpp"
#include "wire/group/mail_channel.hpp"

namespace guozhuang::perf {

/// The negotiation of one rank. This process plays both ranks that negotiate, and hands each the
/// messages of the other.
class NegotiatingRank final : public engine::Control {
public:
    NegotiatingRank(int rank, int size, engine::Mail& mail,
                    const protocol::Negotiator::Options& options)
        : rank_(rank), size_(size), plane_(*this, mail, options) {}
    void connect(NegotiatingRank& other) { other_ = &other; }

    int rank() const noexcept override { return rank_; }
    int size() const noexcept override { return size_; }
    void send(int, std::vector<std::byte> message) override {
        last_size_ = message.size();
        last_capacity_ = message.capacity();
        other_->arrived_ = {rank_, std::move(message)};
    }
    std::optional<Message> poll() override { return std::exchange(arrived_, std::nullopt); }
    bool flushed() override { return true; }

    void submit(const std::shared_ptr<engine::Pending>& pending) {
        plane_.submit(pending, /*alone=*/true);
    }
    /// As Engine::pump(). Returns the entries that have become known, until the next call.
    std::vector<protocol::LogEntry>& pump();
    /// As long as the last one that it sent, and with as much room.
    std::vector<std::byte> message_like_last() const;

private:
    const int rank_, size_;
    NegotiatingRank* other_ = nullptr;
    std::optional<Message> arrived_;
    std::vector<protocol::LogEntry> entries_;
    std::size_t last_size_ = 0, last_capacity_ = 0;
    engine::ControlPlane plane_;
};

/// Times the algorithm; what the Executor did before that is the bundle.
class TimedBackend final : public engine::Backend {
public:
    TimedBackend(const wire::Group& group, Stopwatch& watch)
        : backend_(group, std::make_shared<backends::ScratchStore>(),
                   std::make_shared<trace::Timeline>()),
          watch_(watch) {}
    void run(const engine::Bundle& bundle) override;

private:
    backends::HostBackend backend_;
    Stopwatch& watch_;
};

/// The way of an allreduce on this rank of the current session, with a stopwatch at its stations.
/// It calls the library's own classes in the order in which Engine does, and leaves out Engine: its
/// loop, its lock and its waits. Rank 0 negotiates as the root of two ranks, or alone if there is
/// one; any other as the leaf. The other one of the two is played while the stopwatch stands. Where
/// ranks wait for each other, for a message and in the algorithm, they do the same twice, and the
/// second time is measured: all begin it at the same time.
class Way {
public:
    Way(const TensorView& tensor, std::string name, Stopwatch& watch);
    /// One operation. Collective.
    void run();

private:
    void pass_stations();
    engine::Request request() const;
    protocol::LogEntry negotiate(const std::shared_ptr<engine::Pending>& pending);
    void play_other(const std::shared_ptr<engine::Pending>& pending);
    void pump_other();
    void exchange_messages();
    void exchange(std::vector<std::byte> message);
    void wait_until(const std::function<bool()>& arrived);
    wire::Transport& transport() const { return set_->transport(); }
    protocol::Negotiator::Options negotiator_options() const;
    wire::Group group() const;

    const TensorView tensor_;
    const std::string name_;
    Stopwatch& watch_;
    const std::shared_ptr<SetRuntime> set_;
    const std::vector<int> ranks_;
    const engine::Context context_;
    engine::LifeCycle life_;
    engine::SubmissionQueue queue_;
    engine::SubmissionQueue::Taken taken_;
    wire::MailChannel mail_;
    NegotiatingRank own_, other_;
    wire::ControlChannel channel_;
    TimedBackend backend_;
    engine::Executor executor_;
    std::shared_ptr<engine::ExecutionListener> listener_;
    std::shared_ptr<engine::ProgressSource> progress_source_;
};

}  // namespace guozhuang::perf
