#include "wire/mpi/mpi_transport.hpp"

#include <algorithm>
#include <atomic>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <mpi.h>
#include <new>
#include <utility>

#include "base/failpoint.hpp"
#include "base/keep_for_ever.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/process.hpp"
#include "wire/inproc/inproc_transport.hpp"
#include "wire/launcher.hpp"
#include "wire/mpi/abort_notice.hpp"
#include "wire/mpi/control_inbox.hpp"
#include "wire/mpi/host_bells.hpp"
#include "wire/mpi/hosts.hpp"
#include "wire/mpi/messages_in_flight.hpp"
#include "wire/mpi/mpi_library.hpp"
#include "wire/mpi/survivors.hpp"
#include "wire/mpi/tags.hpp"
#include "wire/shm/host_messages.hpp"
#include "wire/shm/ring_receives.hpp"
#include "wire/traffic_counter.hpp"

namespace guozhuang::wire {
namespace {

using mpi::abort_notice_tag;
using mpi::check;
using mpi::MessageSide;

class MpiTransport final : public Transport {
public:
    MpiTransport(mpi::Use use, MPI_Comm communicator, const MpiOptions& options);
    ~MpiTransport() override;

    Ticket send(int to, Tag tag, std::span<const std::byte> bytes) override;
    Ticket receive(int from, Tag tag, std::span<std::byte> bytes) override;
    bool test(Ticket& ticket) override;
    std::optional<Message> poll(Tag tag) override;
    bool flushed() override { return !messages_ || messages_->flush(); }

    void abort(const base::AbortCause& cause) noexcept override { end_job(cause); }
    void announce_quit(std::string_view reason) noexcept override;
    bool abandon() noexcept override;

    trace::Activity& activity() noexcept override { return bells_.activity(); }
    base::Doorbell& doorbell() noexcept override { return bells_.own(); }
    void count_staged(std::size_t bytes) noexcept override { traffic_.count_bytes(bytes); }
    std::size_t stage_bytes() const noexcept override {
        return host_.all_have_memory ? mpi::stage_bytes : 0;
    }
    void nudge(int rank, base::Audience audience) noexcept override {
        bells_.nudge(rank, audience);
    }
    std::optional<trace::RankStatus> look_at(int rank) override {
        return mpi::look_at(host_, rank);
    }
    const base::WaitSettings& wait_settings() const noexcept override { return wait_settings_; }
    const topology::Topology& topology() const noexcept override { return host_.topology; }
    std::uint16_t largest_user_tag() const noexcept override {
        return mpi::largest_user_tag(largest_tag_);
    }
    const char* description() const noexcept override { return name_.c_str(); }
    Traffic traffic() const noexcept override { return traffic_.total(); }
    void close() override;
    std::unique_ptr<Transport> shrink(const base::Config& config) override;

private:
    void require_open();
    void require_threads();
    std::size_t fragment_bytes(int peer, std::size_t bytes) const {
        return mpi::fragment_bytes(host_.topology, peer, bytes, split_bytes_);
    }
    void connect_host_ranks();
    int encode(Tag tag) const { return mpi::encode(tag, largest_tag_); }
    bool rings_for_all() const noexcept { return mpi::rings_for_all(host_); }
    bool notify_others(const base::AbortCause& cause) noexcept;
    bool end_job(const base::AbortCause& cause) noexcept;
    bool lock_or_end() GUOZHUANG_THREAD_ANNOTATION(try_acquire_capability(true, mutex_)) {
        return mpi::lock_or_end(mutex_, doorbell(), wait_settings_, time_to_end_.has_value());
    }
    std::optional<Message> next_abort_notice() GUOZHUANG_REQUIRES(mutex_) {
        if (rings_for_all()) return std::nullopt;
        return inbox_.poll_seldom(comm_, encode(abort_notice_tag), host_.topology.size());
    }
    void apply_abort_notice(const Message& message);
    [[noreturn]] void rethrow_or_explain();
    bool on_process_end(const Monitor::End& end);
    Ticket start(const MessageSide& side, int code, std::span<const std::byte> source,
                 std::span<std::byte> target, std::size_t fragment_bytes);
    std::vector<int> progress() GUOZHUANG_REQUIRES(mutex_);

    mpi::Use use_;
    const std::size_t split_bytes_;
    const std::optional<std::chrono::milliseconds> time_to_end_;
    const std::string name_;
    std::int64_t largest_tag_ = 0;
    mpi::Host host_;
    mpi::HostBells bells_;
    /// Control messages within the host, if it has shared memory.
    std::optional<HostMessages> messages_;
    /// Whether data goes through the rings too, because MPI may not be called on every thread.
    bool all_through_rings_ = false;
    base::WaitSettings wait_settings_;
    TrafficCounter traffic_;
    base::Mutex mutex_;  ///< around every call of MPI
    MPI_Comm comm_ GUOZHUANG_GUARDED_BY(mutex_) = MPI_COMM_NULL;
    mpi::MessagesInFlight in_flight_ GUOZHUANG_GUARDED_BY(mutex_);
    mpi::ControlInbox inbox_ GUOZHUANG_GUARDED_BY(mutex_);
    RingReceives ring_receives_ GUOZHUANG_GUARDED_BY(mutex_);

    enum class State : std::uint8_t { open, closing, closed, shrunk };
    std::atomic<State> state_{State::open};
    std::atomic<bool> abandoned_{false};
    /// Whether the other hosts know of the end of the job, from this rank or before it.
    enum class Notified : std::uint8_t { nobody, some, all };
    std::atomic<Notified> notified_{Notified::nobody};
    std::optional<Monitor> monitor_;  ///< last: its thread uses the rest
};

MpiTransport::MpiTransport(mpi::Use use, MPI_Comm communicator, const MpiOptions& options)
    : use_(use),
      split_bytes_(options.split_bytes),
      time_to_end_(mpi::time_to_end(options.config)),
      name_(mpi::library_name()) {
    check(MPI_Comm_dup(communicator, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int rank = 0;
    check(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
    base::set_log_rank(rank);
    const auto& config = options.config;
    base::arm(config.fault && config.fault->rank == rank ? config.fault : std::nullopt);
    largest_tag_ = mpi::largest_tag();
    base::pass(base::Failpoint::init);
    host_ = mpi::discover_host(comm_, config, use_.thread_level() >= MPI_THREAD_MULTIPLE);
    require_threads();
    connect_host_ranks();
    activity().running.write("init");
    wait_settings_ = mpi::wait_settings_of(host_, config);
    monitor_.emplace(
        mpi::watched_by(host_), [this](const Monitor::End& end) { return on_process_end(end); },
        LogLevel::warning, mpi::rings_of(host_, doorbell()));
}

MpiTransport::~MpiTransport() {
    monitor_.reset();
    if (comm_ == MPI_COMM_NULL) return;
    use_.give_up();
    base::log_info("the MPI transport was not closed: its communicator is kept");
    inbox_.keep_for_ever();
}

/// On one host no message has to go through MPI, so any thread level is enough. Between hosts the
/// coordinator threads call MPI.
void MpiTransport::require_threads() {
    const base::Lock lock(mutex_);
    all_through_rings_ = !host_.without_threads.empty();
    if (!all_through_rings_ || (host_.memory && host_.hosts == 1)) return;
    check(MPI_Comm_free(&comm_), "MPI_Comm_free");
    mpi::refuse_threads(host_);
}

void MpiTransport::connect_host_ranks() {
    bells_.connect(host_);
    if (!host_.memory) return;
    std::vector<HostMessages::HostRank> host_ranks;
    for (const int rank : host_.ranks) host_ranks.push_back({rank, *bells_.of(rank)});
    messages_.emplace(host_.memory->rings(), host_ranks, host_.local_rank);
}

void MpiTransport::require_open() {
    if (state_ == State::closed)
        throw Error(ErrorCode::not_initialised, "the MPI transport has been closed");
    if (abandoned_) base::throw_cause(doorbell());
}

/// Ends the job for other ranks. Returns whether all of them have been notified.
bool MpiTransport::end_job(const base::AbortCause& cause) noexcept {
    bells_.abort_all(cause);
    auto notified = Notified::nobody;
    if (!rings_for_all() && notified_.compare_exchange_strong(notified, Notified::all) &&
        !notify_others(cause))
        notified_ = Notified::some;
    return notified_ != Notified::some;
}

void MpiTransport::announce_quit(std::string_view reason) noexcept {
    Transport::announce_quit(reason);
    for (const auto& process : host_.linked) process.link->say(reason);
}

bool MpiTransport::notify_others(const base::AbortCause& cause) noexcept try {
    auto owned = std::make_unique<mpi::OutgoingAbortNotice>(cause);
    auto& notice = *owned;
    base::keep_for_ever(std::move(owned));
    bool all_sent = true;
    if (!lock_or_end()) return false;
    {
        const base::Lock lock(mutex_, std::adopt_lock);
        if (comm_ == MPI_COMM_NULL) return true;
        for (const int to : mpi::ranks_to_notify(host_, cause))
            all_sent &= notice.send(comm_, to, encode(abort_notice_tag));
    }
    for (const int to : mpi::ranks_to_notify(host_, cause)) bells_.ring_anywhere(to);
    return notice.has_left_soon(mutex_, wait_settings_) && all_sent;
} catch (const std::exception& error) {
    base::log(LogLevel::debug, "other ranks could not be told of the end of the job: {}",
              error.what());
    return false;
}

/// Another host has ended the job: tells the ranks of this one.
void MpiTransport::apply_abort_notice(const Message& message) {
    bells_.abort_all(mpi::AbortNotice::from(message).cause());
    auto notified = Notified::nobody;
    notified_.compare_exchange_strong(notified, Notified::all);
}

/// In a handler. MPI fails, too, if a rank has died: if this rank soon hears of that, throws it.
void MpiTransport::rethrow_or_explain() try { throw; } catch (const Error& error) {
    if (error.code() != ErrorCode::wire || rings_for_all()) throw;
    const auto find_notice = [this] {
        const base::Lock lock(mutex_);
        if (comm_ == MPI_COMM_NULL) return;
        if (const auto notice = next_abort_notice()) apply_abort_notice(*notice);
    };
    mpi::job_ends_soon(doorbell(), activity(), wait_settings_, mpi::time_to_explain, find_notice);
    if (base::is_aborted(doorbell())) base::throw_cause(doorbell());
    throw;
}

/// Returns whether the process of a rank has ended too early, which ends the job; the cause is that
/// rank, or the first cause that it knew. Called on the monitor's thread.
bool MpiTransport::on_process_end(const Monitor::End& end) try {
    const auto* const theirs = mpi::activity_of(host_, end.process.rank);
    if (theirs != nullptr
            ? theirs->closed.load()
            : !end.process.link && state_ != State::open && end.status.value_or(0) == 0)
        return false;
    if (end.process.link && mpi::job_ends_soon(doorbell(), activity(), wait_settings_)) {
        if (lock_or_end()) mutex_.unlock();
        return true;
    }
    const auto [culprit, text, code] = mpi::describe_end(end, theirs, bells_.of(end.process.rank));
    const bool all_know = end_job({.rank = culprit, .text = text, .code = code});
    if (time_to_end_)
        base::end_process(base::cause_of(doorbell()), *time_to_end_,
                          all_know ? nullptr : abort_mpi);
    return true;
} catch (const std::bad_alloc&) {  // there is no memory to say more
    end_job({.rank = end.process.rank, .text = "a rank died", .code = ErrorCode::rank_died});
    if (time_to_end_) base::end_process("a rank died", *time_to_end_);
    return true;
}

/// Cancels receives that have not begun. Others, and sends, may never end (MPI_Cancel of a long
/// send does not complete on Open MPI 4.1): they keep their memory. Cancelling allocates nothing,
/// since a lack of memory may be what ends the job. With time_to_end_, this ends the process after
/// a timeout, or if a rank of another host has died; on the host of a death the monitors do that.
bool MpiTransport::abandon() noexcept {
    regions()->remove_all();
    const auto culprit = base::culprit_of_death(doorbell());
    const bool died_elsewhere = culprit && !std::ranges::binary_search(host_.ranks, *culprit);
    const base::Lock lock(mutex_);
    if (time_to_end_ && state_ != State::shrunk &&
        (died_elsewhere || base::code_of(doorbell()) == ErrorCode::timeout))
        base::end_process(base::cause_of(doorbell()), *time_to_end_,
                          notified_ == Notified::some ? abort_mpi : nullptr);
    if (comm_ == MPI_COMM_NULL) return true;
    if (abandoned_.exchange(true)) return in_flight_.none_at_mpi();
    ring_receives_.forget();
    return in_flight_.cancel();
}

Transport::Ticket MpiTransport::start(const MessageSide& side, int code,
                                      std::span<const std::byte> source,
                                      std::span<std::byte> target, std::size_t fragment_bytes) try {
    const base::Lock lock(mutex_);
    require_open();
    return in_flight_.start(comm_, side, {code, fragment_bytes}, source, target);
} catch (const Error&) {
    rethrow_or_explain();
}

Transport::Ticket MpiTransport::send(int to, Tag tag, std::span<const std::byte> bytes) {
    const int code = encode(tag);
    const bool control = tag.lane == Lane::control;
    if (control && bytes.size() > max_control_bytes)
        throw Error(ErrorCode::internal, "a control message beyond its limit");
    if (!control) traffic_.count_message(bytes.size());
    if (control && bells_.of(to) != nullptr) {
        require_open();
        messages_->send(to, static_cast<std::uint32_t>(code), bytes,
                        base::audience_of(tag.context));
        return {};
    }
    if (all_through_rings_) {
        require_open();
        RingReceives::send(*messages_, to, tag, static_cast<std::uint32_t>(code), bytes);
        return {};
    }
    // A control message is one fragment, because its receiver polls for it.
    const auto longest = control ? max_control_bytes : fragment_bytes(to, bytes.size());
    const Ticket ticket = start({to, bytes.size(), false}, code, bytes, {}, longest);
    const auto audience = base::audience_of(tag.context);
    control ? bells_.ring_anywhere(to, audience) : bells_.ring(to, audience);
    return ticket;
}

Transport::Ticket MpiTransport::receive(int from, Tag tag, std::span<std::byte> bytes) {
    if (tag.lane == Lane::control)
        throw Error(ErrorCode::internal, "control messages are polled, not received");
    const int code = encode(tag);
    if (all_through_rings_) {
        const base::Lock lock(mutex_);
        require_open();
        return ring_receives_.start(from, static_cast<std::uint32_t>(code), bytes);
    }
    const Ticket ticket =
        start({from, bytes.size(), true}, code, {}, bytes, fragment_bytes(from, bytes.size()));
    if (bytes.size() > mpi::eager_bytes) bells_.ring(from, base::audience_of(tag.context));
    return ticket;
}

/// Tests all messages. Returns the ranks to ring: senders of large messages, which sleep. Nudges
/// this rank's own doorbell, since another thread may wait for a message that has ended.
std::vector<int> MpiTransport::progress() {
    const auto [any, senders] = in_flight_.progress();
    if (any) base::nudge(doorbell());  // they look under this lock
    return senders;
}

bool MpiTransport::test(Ticket& ticket) try {
    if (ticket.id == 0) return true;
    if (all_through_rings_) {
        const base::Lock lock(mutex_);
        require_open();
        return ring_receives_.test(*messages_, ticket);
    }
    std::vector<int> to_ring;
    std::string error;
    int peer = 0;
    {
        const base::Lock lock(mutex_);
        require_open();
        const mpi::InFlight& message = in_flight_.find(ticket);
        if (message.missing > 0) to_ring = progress();
        if (message.missing == 0) {
            error = message.error;
            peer = message.side.peer;
            in_flight_.retire(std::exchange(ticket, {}));
        }
    }
    for (const int sender : to_ring) bells_.ring(sender);
    if (!error.empty()) throw Error(ErrorCode::wire, error, {.ranks = {peer}});
    return ticket.id == 0;
} catch (const Error&) {
    rethrow_or_explain();
}

std::optional<Transport::Message> MpiTransport::poll(Tag tag) try {
    const int code = encode(tag);
    require_open();
    auto message = messages_ ? messages_->poll(static_cast<std::uint32_t>(code)) : std::nullopt;
    if (message || (messages_ && host_.hosts == 1)) return message;
    std::vector<int> to_ring;
    std::optional<Message> notice;
    {
        const base::Lock lock(mutex_);
        require_open();
        message = inbox_.poll(comm_, code);
        notice = next_abort_notice();
        to_ring = progress();
        const bool is_moving = in_flight_.count() != 0 || inbox_.is_receiving();
        doorbell().longest_sleep_us = mpi::longest_sleep_us(host_, is_moving);
    }
    if (notice) apply_abort_notice(*notice);
    if (message && host_.remote_bells && host_.topology.is_far(message->from))
        host_.remote_bells->count_message(message->from);
    for (const int sender : to_ring) bells_.ring(sender);
    if (message && message->bytes.size() > mpi::eager_bytes)
        bells_.ring(message->from, base::audience_of(tag.context));
    return message;
} catch (const Error&) {
    rethrow_or_explain();
}

void MpiTransport::close() try {
    {
        const base::Lock lock(mutex_);
        if (comm_ == MPI_COMM_NULL) return;
        if (const auto count = in_flight_.count(); count != 0)
            throw Error(ErrorCode::internal,
                        fmt::format("the MPI transport is closed with {} messages pending", count));
    }
    base::pass(base::Failpoint::close);
    state_ = State::closing;
    doorbell().longest_sleep_us = mpi::longest_sleep_us(host_, /*is_moving=*/false);
    MPI_Request everybody_is_here = MPI_REQUEST_NULL;
    {
        const base::Lock lock(mutex_);
        require_open();
        check(MPI_Ibarrier(comm_, &everybody_is_here), "MPI_Ibarrier");
    }
    for (const int each : host_.ranks) bells_.ring(each);
    base::wait_until(doorbell(), wait_settings_, [&] {
        if (messages_) messages_->discard();
        int done = 0;
        std::optional<Message> notice;
        {
            const base::Lock lock(mutex_);
            require_open();
            check(MPI_Test(&everybody_is_here, &done, MPI_STATUS_IGNORE), "MPI_Test");
            if (done == 0) notice = next_abort_notice();
        }
        if (notice) apply_abort_notice(*notice);
        return done != 0;
    });
    activity().closed = true;
    monitor_.reset();
    for (const auto& process : host_.linked) process.link->close();
    base::pass(base::Failpoint::closed);
    const base::Lock lock(mutex_);
    require_open();
    inbox_.take_the_rest(comm_);
    state_ = State::closed;
    check(MPI_Comm_free(&comm_), "MPI_Comm_free");
    use_.close();
} catch (const Error&) {
    rethrow_or_explain();
}

std::unique_ptr<Transport> MpiTransport::shrink(const base::Config& config) {
    monitor_.reset();
    const base::Lock lock(mutex_);
    state_ = State::shrunk;
    std::optional<Monitor> monitor;  // until the new transport has its own
    MPI_Comm left =
        mpi::communicator_of_survivors(comm_, host_, in_flight_, config.limits.shrink, monitor);
    auto transport = std::make_unique<MpiTransport>(
        mpi::Use(), left, MpiOptions{.config = config, .split_bytes = split_bytes_});
    check(MPI_Comm_free(&left), "MPI_Comm_free");
    base::keep_process();
    if (time_to_end_ && base::is_aborted(transport->doorbell()))  // in this very moment
        base::end_process(base::cause_of(transport->doorbell()), *time_to_end_);
    return transport;
}

}  // namespace

std::unique_ptr<Transport> connect(const MpiOptions& options) {
    const auto given = options.communicator;
    mpi::check_communicator(given);
    if (!given && !mpi::is_running() && !find_mpi_launcher()) {
        if (!options.config.allow_single) refuse_lone_job(mpi::library_name());
        base::set_log_rank(0);
        return InprocHub(1).transport(0);
    }
    mpi::Use use(options.before_finalise);
    try {
        int size = 0;
        mpi::check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
        if (!given && size == 1 && !options.config.allow_single)
            refuse_lone_job(mpi::library_name());
        return std::make_unique<MpiTransport>(use, given ? given.as<MPI_Comm>() : MPI_COMM_WORLD,
                                              options);
    } catch (...) {
        use.close();
        throw;
    }
}

}  // namespace guozhuang::wire
