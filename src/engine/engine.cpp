#include "engine/engine.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <pthread.h>
#include <utility>

#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "engine/execution.hpp"

namespace guozhuang::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto attention = 20ms;

}  // namespace

/// The time in which a caller waits, and so drives. When it leaves, whoever else waits or is
/// pending must find another driver.
class Engine::Helping {
public:
    explicit Helping(Engine& engine) noexcept : engine_(engine) { engine_.helpers_.fetch_add(1); }
    ~Helping() {
        engine_.helpers_.fetch_sub(1);
        if (engine_.helped() || engine_.has_work())
            base::ring_local(engine_.doorbell_, engine_.wait_.audience);
    }
    Helping(const Helping&) = delete;
    Helping& operator=(const Helping&) = delete;

private:
    Engine& engine_;
};

Engine::Engine(const Parts& parts)
    : job_(parts.job),
      timeline_(parts.timeline),
      members_(parts.negotiator.members),
      set_(members_.are_the_world() ? nullptr
                                    : std::make_shared<const std::string>(members_.name())),
      rank_(members_.world_rank(parts.control.rank())),
      doorbell_(parts.doorbell),
      activity_(parts.activity),
      wait_(parts.wait),
      use_device_(parts.use_device),
      control_(parts.control),
      negotiator_(parts.control.rank(), parts.control.size(), parts.negotiator),
      point_to_point_(parts.control, parts.mail, members_),
      stalls_(parts.stalls, members_, parts.activity) {}

Engine::~Engine() {
    stop();
}

void Engine::add_executor(DeviceKind kind, Executor executor) {
    const base::Lock lock(queue_mutex_);
    executors_.insert_or_assign(kind, std::move(executor));
}

void Engine::start() {
    coordinator_ = std::thread([this] { coordinate(); });
    pthread_setname_np(coordinator_.native_handle(), "gz-coordinator");
}

void Engine::check_open(const Request& request) const {
    if (cause_) std::rethrow_exception(for_operation(cause_, request, memory_on_loan_));
    if (!departure_ && !closed_) return;
    throw Error(
        ErrorCode::not_initialised,
        fmt::format("{} has been closed: it takes no more operations{}",
                    members_.are_the_world() ? "this session" : members_.name(),
                    departure_ && !departure_->empty() ? fmt::format(" ({})", *departure_) : ""));
}

void Engine::check_not_joined(const Request& request) const {
    if (!joined_) return;
    const std::string operation(request.operation());
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: this rank has joined in {} and takes part in everything there "
                            "without submitting it, until all ranks have "
                            "joined; wait for that first",
                            request.label(), members_.name()),
                {.tensor = request.name, .operation = operation, .ranks = {rank_}});
}

/// Ranks that joined early have counted less than the others, so all begin anew once all have
/// joined.
void Engine::number(Request& request, std::uint64_t number) const {
    request.named = false;
    request.name = fmt::format("#{} {}", number, request.operation());
    if (joins_ > 0) request.name += fmt::format(" after {} join{}", joins_, joins_ == 1 ? "" : "s");
}

std::shared_ptr<Pending> Engine::submit(Request request, bool caller_waits) {
    base::refuse_forked();
    base::pass(base::Failpoint::submit);
    std::shared_ptr<Pending> pending;
    {
        const base::Lock lock(queue_mutex_);
        check_open(request);
        check_not_joined(request);
        const auto operation = request.description->operation;
        auto& unnamed = unnamed_[operation];
        const bool numbered = request.name.empty();
        if (numbered) number(request, unnamed + 1);
        if (pending_.contains(request.name))
            throw Error(ErrorCode::duplicate_name,
                        fmt::format("{} '{}': an operation of that name is still pending on this "
                                    "rank; wait for it or choose another name",
                                    name_of(operation), request.name),
                        {.tensor = request.name,
                         .operation = std::string(name_of(operation)),
                         .ranks = {rank_}});
        activity_.submitted.write(name_of(operation), name_among(members_, request.name));
        pending = std::make_shared<Pending>(std::move(request), shared_from_this());
        enter(pending_, std::pair(pending->request().name, pending), submitted_, pending);
        if (operation == protocol::OperationKind::join) joined_ = true;
        activity_.last_pending = pending.get();
        // last: ranks must count alike, and what has failed does not count
        if (numbered) ++unnamed;
        timeline_->begin(pending.get(), pending->request().name, "negotiate",
                         [&] { return facts_of(pending->request(), set_); });
    }
    if (!caller_waits) base::ring_local(doorbell_, wait_.audience);
    return pending;
}

/// From here on the operation is pending, and queued for whoever drives; or neither, if there is no
/// memory for it.
template <class Table, class Entry, class Queue, class Element>
void Engine::enter(Table& table, Entry entry, Queue& queue, Element element) {
    const auto place = table.insert(std::move(entry)).first;
    try {
        queue.push_back(std::move(element));
    } catch (...) {
        table.erase(place);
        throw;
    }
    pending_count_.fetch_add(1);
}

std::shared_ptr<Pending> Engine::submit(Request request, const Route& route, bool caller_waits) {
    base::refuse_forked();
    base::pass(base::Failpoint::submit);
    request.kind = Request::Kind::letter;
    std::shared_ptr<Pending> pending;
    {
        const base::Lock lock(queue_mutex_);
        check_open(request);
        activity_.submitted.write(request.name);
        request.peer = members_.world_rank(route.peer);
        pending = std::make_shared<Pending>(std::move(request), shared_from_this());
        enter(pending_nameless_, pending, letters_, Letter{route, pending});
        timeline_->begin(pending.get(), pending->request().name, "message", [&] {
            return trace::TimelineFacts{.bytes = pending->request().tensors->front().bytes(),
                                        .set = set_};
        });
    }
    if (!caller_waits) base::ring_local(doorbell_, wait_.audience);
    return pending;
}

bool Engine::drive_until(const std::function<bool()>& arrived, base::Deadline deadline) {
    return wait(arrived, deadline, deadline == base::no_deadline || wait_.baton != nullptr);
}

bool Engine::wait(const std::function<bool()>& arrived, base::Deadline deadline, bool drives) {
    if (arrived()) return true;
    base::refuse_forked();
    const trace::TimelineSlice waiting(*timeline_, "wait");
    std::optional<Helping> helping;
    if (drives) helping.emplace(*this);
    try {
        base::Patience patience(doorbell_, wait_, deadline);
        bool first_look = true;
        while (!arrived()) {
            auto progressed = drives ? try_turn() : complete_ended();
            // whoever drives may sleep, and does not know yet what this caller has submitted
            if (!progressed && std::exchange(first_look, false))
                base::ring(doorbell_, wait_.audience);
            if (arrived()) return true;
            if (progressed.value_or(false))
                patience.progressed();
            else if (drives && progressed)
                patience.pause();
            else
                patience.pause_behind();
        }
        return true;
    } catch (const base::DeadlinePassed&) {
        return arrived();
    } catch (...) {
        end(std::current_exception());
    }
}

void Engine::coordinate() {
    try {
        base::Patience patience(doorbell_, wait_);
        bool drove = false;
        while (!stop_) {
            if (helped() || !has_work()) {
                // it may wait for this thread
                if (helped() && std::exchange(drove, false))
                    base::ring_callers(doorbell_, wait_.audience);
                patience.park_idle();
                if (helped()) {
                    complete_ended();
                } else {
                    drove = true;
                    attend(patience);
                }
                continue;
            }
            drove = true;
            if (try_turn().value_or(false))
                patience.progressed();
            else
                patience.pause();
        }
    } catch (...) {
        try {
            end(std::current_exception());
        } catch (const std::exception& error) {
            base::log(LogLevel::debug, "the coordinator of rank {} ends: {}", rank_, error.what());
        }
    }
}

/// Somebody else has woken this rank for their own sake, or for that of another process set. If
/// there is anything to do, more may follow in parts, and so may the answer go.
void Engine::attend(base::Patience& patience) {
    if (!try_turn().value_or(false)) return;
    const auto end = base::Clock::now() + attention;
    do {
        if (try_turn().value_or(false))
            patience.progressed();
        else
            patience.pause();
    } while (!stop_ && !helped() && !has_work() && base::Clock::now() < end);
}

std::optional<bool> Engine::try_turn() {
    std::optional<bool> progressed;
    if (mutex_.try_lock()) {
        const base::Lock lock(mutex_, std::adopt_lock);
        progressed = turn();
    }
    complete_ended();
    return progressed;
}

/// One look around by whoever drives: messages, then at most one entry of the log.
bool Engine::turn() {
    if (stop_) return false;
    bool progressed = pump();
    if (!log_.empty()) {
        auto due = std::move(log_.front());
        log_.pop_front();
        execute(std::move(due));
        progressed = true;
    }
    return progressed;
}

bool Engine::pump() {
    mutex_.is_held();  // also where it comes by a backend
    bool progressed = take_submissions();
    while (const auto message = control_.poll()) {
        receive(*message);
        progressed = true;
    }
    progressed |= point_to_point_.advance();
    for (auto& outcome : point_to_point_.take_outcomes()) {
        finish(std::span(&outcome.pending, 1), outcome.error);
        progressed = true;
    }
    if (!progressed) notice_stalls();
    const auto send_all = [&](Channel channel, auto messages) {
        mutex_.is_held();
        for (auto& message : messages) send(message.to, channel, std::move(message.bytes));
    };
    send_all(Channel::negotiation, negotiator_.take_messages());
    send_all(Channel::letters, point_to_point_.take_messages());
    for (auto& entry : negotiator_.take_entries()) {
        accept(std::move(entry));
        progressed = true;
    }
    return progressed;
}

bool Engine::take_submissions() {
    Requests submitted;
    std::vector<Letter> letters;
    std::optional<std::string> departure;
    {
        const base::Lock lock(queue_mutex_);
        submitted.swap(submitted_);
        letters.swap(letters_);
        if (departure_ && !closed_) {
            departure = departure_;
            closed_ = true;
        }
    }
    if (left_) fail_departed(std::exchange(submitted, {}));
    for (auto& pending : submitted) {
        const auto& request = pending->request();
        stalls_.expect(request.deadline);
        open_.insert_or_assign(request.name, pending);
        if (request.description->operation == protocol::OperationKind::join)
            negotiator_.join(request.name);
        else
            negotiator_.submit(request.name, request.named, request.description);
    }
    for (auto& letter : letters) {
        stalls_.expect(letter.pending->request().deadline);
        point_to_point_.post(std::move(letter));
    }
    if (departure) leaving_ ? negotiator_.leave(*departure) : negotiator_.depart(*departure);
    if (departure && leaving_) point_to_point_.say_goodbye();
    return !submitted.empty() || !letters.empty() || departure;
}

void Engine::receive(const Control::Message& message) {
    const std::span bytes(message.bytes);
    if (bytes.empty() ||
        std::to_integer<std::uint8_t>(bytes[0]) > static_cast<std::uint8_t>(Channel::letters))
        throw Error(ErrorCode::wire, fmt::format("rank {} sent a control message that is none",
                                                 members_.world_rank(message.from)));
    if (static_cast<Channel>(bytes[0]) == Channel::negotiation)
        negotiator_.receive(message.from, bytes.subspan(1));
    else
        point_to_point_.receive(message.from, bytes.subspan(1));
}

void Engine::send(int to, Channel channel, protocol::Bytes bytes) {
    bytes.insert(bytes.begin(), static_cast<std::byte>(channel));
    control_.send(to, std::move(bytes));
}

void Engine::finish(std::span<std::shared_ptr<Pending>> requests,
                    std::exception_ptr error) noexcept {
    {
        std::size_t ended = 0;
        const base::Lock lock(queue_mutex_);
        for (auto& pending : requests) {
            if (const auto found = pending_.find(pending->request().name);
                found != pending_.end() && found->second == pending)
                pending_.erase(found);
            else
                pending_nameless_.erase(pending);
            if (set_ended(*pending, error)) std::swap(requests[ended++], pending);
        }
        error = nullptr;  // from here on it belongs to those who are told
        for (auto& pending : requests.first(ended)) ended_.push(std::move(pending));
    }
    base::ring_callers(doorbell_, wait_.audience);
}

void Engine::note_end(const std::shared_ptr<Pending>& pending,
                      const std::exception_ptr& error) noexcept {
    if (set_ended(*pending, error)) ended_.push(pending);
}

bool Engine::set_ended(Pending& pending, const std::exception_ptr& error) noexcept {
    if (!pending.set_ended(error ? for_operation(error, pending.request(), memory_on_loan_)
                                 : nullptr))
        return false;
    const void* own = &pending;
    activity_.last_pending.compare_exchange_strong(own, nullptr);
    timeline_->end(&pending, error != nullptr);
    return true;
}

bool Engine::complete_ended() noexcept {
    say();
    bool any = false;
    while (const auto pending = ended_.pop()) {
        pending->set_complete(memory_on_loan_);
        pending_count_.fetch_sub(1);
        base::ring_callers(doorbell_, wait_.audience);
        any = true;
    }
    return any;
}

}  // namespace guozhuang::engine
