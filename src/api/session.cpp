#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <guozhuang/error.hpp>
#include <guozhuang/session.hpp>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "api/process_session.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/mutex.hpp"
#include "base/process.hpp"
#include "base/turn_scheduler.hpp"
#include "base/wait.hpp"
#include "engine/pending.hpp"
#include "runtime/runtime.hpp"
#include "topology/host_grid.hpp"
#include "wire/inproc/inproc_transport.hpp"
#include "wire/mpi/mpi_transport.hpp"

namespace guozhuang {
namespace {

using api::process;

thread_local Session* thread_session = nullptr;

topology::HostGrid grid_of(const wire::Transport& transport) {
    return {transport.topology().host_of, transport.rank()};
}

}  // namespace

class Session::Membership {
public:
    explicit Membership(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}

    std::shared_ptr<Runtime> runtime() const {
        const base::Lock lock(mutex_);
        return runtime_;
    }
    std::shared_ptr<Runtime> replace(std::shared_ptr<Runtime> by) noexcept {
        const base::Lock lock(mutex_);
        return std::exchange(runtime_, std::move(by));
    }

private:
    mutable base::Mutex mutex_;
    std::shared_ptr<Runtime> runtime_ GUOZHUANG_GUARDED_BY(mutex_);
};

Session::Session(std::shared_ptr<Runtime> runtime, bool counted)
    : membership_(std::make_unique<Membership>(std::move(runtime))), counted_(counted) {}

Session::Session(int*, char***, SessionOptions options) : Session(nullptr, true) {
    base::refuse_forked();
    base::notice_forks();
    exceptions_at_start_ = std::uncaught_exceptions();
    const auto refuse_communicator = [&] {
        if (options.mpi_communicator)
            throw Error(ErrorCode::invalid_argument,
                        "Session: there is one already, whose communicator cannot be changed");
    };
    if (thread_session != nullptr) {
        refuse_communicator();
        counted_ = false;
        borrowed_ = true;
        replace(thread_session->runtime());
        return;
    }
    auto& shared = process();
    const base::Lock starting(shared.starting);
    {
        const base::Lock lock(shared.mutex);
        if (shared.users > 0) {
            refuse_communicator();
            ++shared.users;
            replace(shared.runtime);
            return;
        }
    }
    auto runtime = api::open_runtime(options);
    const base::Lock lock(shared.mutex);
    if (!shared.view) shared.view.reset(new Session(nullptr, false));
    shared.view->replace(runtime);
    shared.runtime = runtime;
    shared.latest = runtime;
    shared.users = 1;
    shared.current = shared.view.get();
    replace(std::move(runtime));
}

Session::Session(Session&&) noexcept = default;

Session::~Session() {
    if (base::is_forked()) {
        static_cast<void>(membership_.release());  // it belongs to the parent process
        return;
    }
    if (std::uncaught_exceptions() > exceptions_at_start_)
        leave("an exception is leaving its session");
    try {
        close();
    } catch (const std::exception& error) {
        base::log(LogLevel::error, "closing the session failed: {}", error.what());
    }
}

void Session::close() {
    if (const auto runtime = give_up()) {
        try {
            runtime->close();
        } catch (...) {
            runtime->quit(base::describe(std::current_exception()));
            note_failure(*runtime);
            throw;
        }
        if (runtime->has_failed()) note_failure(*runtime);
    }
}

void Session::leave(std::string_view reason) noexcept {
    if (const auto runtime = give_up()) {
        runtime->quit(reason);
        note_failure(*runtime);
        runtime->stop();  // further sessions of the process may hold it
    }
}

void Session::shrink() {
    const auto old = runtime();
    const auto refuse = [](ErrorCode code, const char* why) {
        throw Error(code, fmt::format("shrink: {}", why), {.operation = "shrink"});
    };
    auto& shared = process();
    const auto is_of_process = [&] {
        const base::Lock lock(shared.mutex);
        return counted_ || this == shared.view.get();
    };
    if (thread_session != nullptr || !is_of_process())
        refuse(ErrorCode::unavailable, "the ranks are threads of one process, which end together");
    if (engine::Pending::is_completing())
        refuse(ErrorCode::invalid_argument, "not in a callback, which the old job waits for");
    if (old->config().limits.shrink.count() <= 0)
        refuse(ErrorCode::invalid_argument,
               "the session was made without SessionOptions::time_to_shrink, so that processes end "
               "half a second after a death");
    const base::Lock starting(shared.starting);
    if (runtime() != old) return;  // another thread has done it
    try {
        const auto next = old->shrink();
        const base::Lock lock(shared.mutex);
        if (shared.runtime != old) {
            constexpr auto reason = "shrink: another thread has left the job meanwhile";
            next->quit(reason);
            throw Error(ErrorCode::not_initialised, reason);
        }
        old->set_next(next);
        shared.view->replace(next);
        replace(next);
        shared.latest = next;
        shared.runtime = next;
    } catch (...) {
        const auto text = base::describe(std::current_exception());
        leave(text);
        // A rank that does not know yet that this one gives up may wait for it inside MPI.
        const bool others_may_wait =
            base::code_of(std::current_exception()) != ErrorCode::unavailable;
        base::keep_process();
        if (old->config().exit_on_death)
            base::end_process(text, base::time_to_unwind,
                              others_may_wait ? wire::abort_mpi : nullptr);
        throw;
    }
}

void Session::note_failure(Runtime& runtime) const noexcept {
    if (counted_ && runtime.transport().size() > 1) process().has_failed = true;
}

std::shared_ptr<Runtime> Session::give_up() {
    if (base::is_forked()) return nullptr;
    auto runtime = replace(nullptr);
    if (!runtime || borrowed_) return nullptr;
    auto& shared = process();
    const base::Lock lock(shared.mutex);
    while (runtime && runtime->has_shrunk()) runtime = runtime->next();
    if (!runtime) return nullptr;
    const bool is_view = this == shared.view.get();
    if (!counted_ && !is_view) return runtime;
    if (runtime != shared.runtime) return nullptr;  // the process has left that job already
    if (!is_view && --shared.users > 0) return nullptr;
    shared.users = 0;
    shared.current = nullptr;
    shared.view->replace(nullptr);
    shared.runtime.reset();
    return runtime;
}

std::shared_ptr<Runtime> Session::replace(std::shared_ptr<Runtime> by) noexcept {
    return membership_ ? membership_->replace(std::move(by)) : nullptr;
}

std::shared_ptr<Runtime> Session::runtime() const {
    base::refuse_forked();
    auto runtime = membership_ ? membership_->runtime() : nullptr;
    if (runtime && runtime->has_shrunk()) {
        const base::Lock lock(process().mutex);
        while (runtime && runtime->has_shrunk()) runtime = runtime->next();
    }
    if (!runtime)
        throw Error(ErrorCode::not_initialised,
                    "this session has been closed: it takes no more operations");
    return runtime;
}

Session& Session::current() {
    base::refuse_forked();
    if (thread_session != nullptr) return *thread_session;
    auto& shared = process();
    if (auto* const current = shared.current.load()) return *current;
    const base::Lock lock(shared.mutex);
    if (shared.users > 0) return *shared.view;  // another thread has just opened it
    throw Error(ErrorCode::not_initialised,
                shared.view ? "the session has been closed: it takes no more operations; make a "
                              "new guozhuang::Session for a new job"
                            : "there is no session: make a guozhuang::Session, or call "
                              "guozhuang::init(), before the first operation");
}

int Session::rank() const {
    return runtime()->transport().rank();
}

int Session::size() const {
    return runtime()->transport().size();
}

int Session::local_rank() const {
    return grid_of(runtime()->transport()).local_rank();
}

int Session::local_size() const {
    return static_cast<int>(grid_of(runtime()->transport()).local().size());
}

int Session::cross_rank() const {
    return grid_of(runtime()->transport()).cross_rank();
}

int Session::cross_size() const {
    return runtime()->transport().topology().hosts();
}

bool Session::is_homogeneous() const {
    return grid_of(runtime()->transport()).is_even();
}

void init(int* argc, char*** argv) {
    Session session(argc, argv);
    if (thread_session != nullptr) return;  // it is open as long as the thread's body runs
    auto& shared = process();
    const base::Lock lock(shared.mutex);
    shared.initialised.push_back(std::move(session));
}

void shutdown() {
    if (base::is_forked() || thread_session != nullptr) return;
    std::optional<Session> session;
    {
        auto& shared = process();
        const base::Lock lock(shared.mutex);
        if (shared.initialised.empty()) return;
        session.emplace(std::move(shared.initialised.back()));
        shared.initialised.pop_back();
    }
    session->close();
}

bool is_initialized() noexcept {
    if (base::is_forked()) return false;
    if (thread_session != nullptr) return true;
    return process().current.load() != nullptr;
}

int rank() {
    return Session::current().rank();
}
int size() {
    return Session::current().size();
}
int local_rank() {
    return Session::current().local_rank();
}
int local_size() {
    return Session::current().local_size();
}
int cross_rank() {
    return Session::current().cross_rank();
}
int cross_size() {
    return Session::current().cross_size();
}
bool is_homogeneous() {
    return Session::current().is_homogeneous();
}

ExitHold::ExitHold(std::chrono::milliseconds limit) noexcept {
    base::hold_process(limit);
}
ExitHold::~ExitHold() {
    base::release_process();
}

int run(int* argc, char*** argv, const std::function<int(Session&)>& body) {
    std::optional<Session> session;
    try {
        session.emplace(argc, argv);
        const int code = body(*session);
        session->close();
        return code;
    } catch (...) {
        const auto text = base::describe(std::current_exception());
        base::log_error(text);
        base::suppress_last_words();
        if (session) session->leave(text);
        return 1;
    }
}

namespace {

void check_run(int size, const RankOptions& options) {
    if (size < 1)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("run_ranks: {} ranks; there must be one at least", size));
    if (options.hosts < 1 || options.hosts > size)
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format(
                "run_ranks: {} hosts for {} ranks; there must be one at least, and a rank for each",
                options.hosts, size));
}

}  // namespace

void run_ranks(int size, const std::function<void(Session&)>& body, const RankOptions& options) {
    base::refuse_forked();
    base::notice_forks();
    check_run(size, options);
    const auto config = base::read_config();
    std::optional<base::WaitSettings> wait;
    if (config.spin_us)
        wait = base::WaitSettings{.spin = std::chrono::microseconds(*config.spin_us)};
    std::optional<base::TurnScheduler> scheduler;
    if (options.turns)
        wait = base::WaitSettings{.turn_scheduler = &scheduler.emplace(size, *options.turns)};
    wire::InprocHub hub(size, wait, options.hosts);
    base::Mutex mutex;
    bool all_are_there = false;  // guarded by the mutex, as is `first`
    std::exception_ptr first;
    const auto live = [&](int rank) {
        if (const base::Lock lock(mutex); !all_are_there) return;
        std::optional<base::TurnScheduler::Participant> participant;
        if (scheduler) participant.emplace(*scheduler, rank);
        Session session(nullptr, false);
        try {
            session.replace(std::make_shared<Runtime>(hub.transport(rank), config));
            thread_session = &session;
            body(session);
            session.close();
        } catch (...) {
            {
                const base::Lock lock(mutex);
                if (!first || base::code_of(first) == ErrorCode::aborted)
                    first = std::current_exception();
            }
            const auto reason = base::describe(std::current_exception());
            if (thread_session != nullptr)
                session.leave(reason);
            else  // it has no session to leave
                hub.abort({.rank = rank,
                           .text = fmt::format("rank {} has shut down ({})", rank, reason),
                           .code = ErrorCode::departed});
        }
        thread_session = nullptr;
    };
    std::vector<std::thread> threads;
    try {
        const base::Lock lock(mutex);  // no rank begins before all threads exist
        for (int rank = 0; rank < size; ++rank) threads.emplace_back(live, rank);
        all_are_there = true;
    } catch (const std::system_error& error) {
        first = std::make_exception_ptr(Error(
            ErrorCode::out_of_memory, fmt::format("run_ranks: no thread for rank {} of {}: {}",
                                                  threads.size(), size, error.what())));
    }
    for (auto& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
}

}  // namespace guozhuang
