#include "runtime/runtime.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <guozhuang/error.hpp>
#include <ranges>
#include <vector>

#include "base/error_text.hpp"
#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "runtime/handshake.hpp"
#include "topology/machine.hpp"
#include "wire/launcher.hpp"

namespace guozhuang {
namespace {

constexpr std::string_view session_closed = "its session has been closed";
constexpr auto farewell = std::chrono::milliseconds(200);

/// Returns warnings for the user of this process.
std::vector<std::string> warnings(const base::Config& config) {
    auto warnings = base::unknown_variables();
    if (config.limits.shrink.count() > 0)
        if (auto reason = wire::why_survivors_end(); !reason.empty())
            warnings.push_back(std::move(reason));
    const auto threads = std::atoi(base::environment("OMP_NUM_THREADS").value_or("").c_str());
    auto binding = topology::binding_warning(topology::this_machine(), threads);
    if (!binding.empty()) warnings.push_back(std::move(binding));
    return warnings;
}

}  // namespace

Runtime::Runtime(std::unique_ptr<wire::Transport> transport, const base::Config& config,
                 std::string_view refusal)
    : resources_(std::make_shared<RankResources>()),
      sets_(std::make_shared<ProcessSets>(resources_)) {
    resources_->transport = std::move(transport);
    resources_->config = config;
    try {
        enter_job(refusal);
    } catch (...) {
        say_why(std::current_exception());
        throw;
    }
    activity().running.clear();
}

void Runtime::enter_job(std::string_view refusal) {
    base::pass(base::Failpoint::handshake);
    auto own_warnings = warnings(resources_->config);
    if (const auto& directory = resources_->config.timeline; !directory.empty())
        if (auto problem = start_timeline(directory); !problem.empty())
            own_warnings.push_back(std::move(problem));
    resources_->config =
        run_handshake(*resources_->transport, resources_->config, refusal, own_warnings);
    world_ = std::make_shared<SetRuntime>(resources_, SetId{},
                                          topology::all_ranks(resources_->transport->size()));
}

/// A rank that fails to enter tells the waiting ranks why, unless they have the same error.
void Runtime::say_why(const std::exception_ptr& failure) noexcept {
    const auto text = base::describe(failure);
    transport().announce_quit(text);
    const auto code = base::code_of(failure);
    try {
        // All ranks fail together here: the program may go on without a session.
        if (code == ErrorCode::configuration) return resources_->transport->close();
    } catch (...) {  // NOLINT(bugprone-empty-catch): what counts is the text
    }
    if (code && base::is_aborted(resources_->transport->doorbell())) return;
    resources_->transport->abort({.rank = resources_->transport->rank(), .text = text});
}

Runtime::~Runtime() {
    stop();
}

void Runtime::stop() noexcept {
    if (world_) world_->engine().stop();  // first: its log opens sets
    for (const auto& set : sets_->set_runtimes()) set->engine().stop();
    stop_timeline();
}

std::string Runtime::start_timeline(const std::string& directory) {
    const auto problem = resources_->timeline->start(
        directory, {.rank = transport().rank(), .ranks = transport().size()});
    if (problem.empty()) return {};
    return fmt::format(
        "no timeline is recorded in '{}': {}; it needs a directory it can write to, another one "
        "for each recording",
        directory, problem);
}

bool Runtime::has_failed() noexcept {
    return base::is_aborted(resources_->transport->doorbell()) ||
           (world_ && world_->engine().somebody_quit());
}

/// Runs once: a second thread waits for the first, but a user callback in the middle of it does
/// not.
void Runtime::close(std::string_view reason) {
    const auto self = std::this_thread::get_id();
    std::thread::id closer;
    if (ended_ || (!closer_.compare_exchange_strong(closer, self) && closer == self)) return;
    if (closer != std::thread::id())
        return base::wait_until(transport().doorbell(), transport().wait_settings(),
                                [this] { return ended_.load(); });
    close_everything(reason);
    ended_ = true;
    base::ring(transport().doorbell());
}

/// Shuts down all sets before it waits for any: a rank that waits for this one in one set may not
/// have shut down in another yet.
void Runtime::close_everything(std::string_view reason) {
    base::pass(base::Failpoint::shutdown);
    const auto [why, culprit] = with_first_cause(reason);
    sets_->shut_down(session_closed);
    world_->close(why, culprit);
    for (const auto& set : sets_->set_runtimes()) set->close(session_closed);
    stop_timeline();
    if (world_->engine().somebody_quit()) {
        const auto cause = base::cause_of(resources_->transport->doorbell());
        base::log(LogLevel::warning, "{}; this rank closes its session without it", cause);
        return transport().announce_quit(cause);
    }
    activity().running.write("shutdown");
    resources_->transport->close();
}

/// The world first.
std::vector<std::shared_ptr<SetRuntime>> Runtime::all_sets() const {
    auto all = sets_->set_runtimes();
    all.insert(all.begin(), world_);
    return all;
}

/// Why this rank leaves, and the rank that is the cause; -1 if none of its operations has failed
/// because another rank shut down.
std::pair<std::string, int> Runtime::with_first_cause(std::string_view reason) const {
    for (const auto& set_runtime : all_sets()) {
        try {
            if (const auto failure = set_runtime->engine().failure_by_shutdown())
                std::rethrow_exception(failure);
        } catch (const Error& first) {
            const std::string_view text = first.what();
            if (first.ranks().empty() || reason.find(text) != std::string_view::npos)
                return {std::string(reason), first.ranks().empty() ? -1 : first.ranks().front()};
            return {reason.empty() ? std::string(text) : fmt::format("{}, after {}", reason, text),
                    first.ranks().front()};
        }
    }
    return {std::string(reason), -1};
}

/// If the job is over already, the others know a better reason.
void Runtime::quit(std::string_view reason) noexcept {
    const bool has_ended = ended_.exchange(true);
    base::ring(transport().doorbell());
    if (has_ended || base::is_aborted(transport().doorbell())) return;
    transport().announce_quit(reason);  // there may be no memory for the rest
    try {
        const auto [why, culprit] = with_first_cause(reason);
        transport().announce_quit(why);
        const auto text = fmt::format("rank {} has shut down ({})", transport().rank(), why);
        base::note_cause(transport().doorbell(),
                         {.rank = culprit, .text = text, .code = ErrorCode::departed});
        const auto all = all_sets();
        for (const auto& set_runtime : all | std::views::reverse)
            set_runtime->engine().quit(why, culprit);
        for (const auto& set_runtime : all)
            set_runtime->engine().drain_before_exit(base::Clock::now() + farewell);
        // The others know of no quit: they wait in the transport for this rank.
        if (world_->engine().has_ended_in_order()) end_job(reason);
    } catch (const std::exception&) {
        end_job(reason);
    }
}

std::shared_ptr<Runtime> Runtime::shrink() {
    ended_ = true;
    if (!base::is_aborted(transport().doorbell())) {
        // Ranks that have not heard yet who has left hear it now.
        if (const auto [why, culprit] = with_first_cause(""); culprit >= 0)
            transport().abort({.rank = culprit, .text = why, .code = ErrorCode::departed});
        end_job("it shrinks its session");
    }
    const auto cause = base::cause_of(transport().doorbell());
    stop();
    transport().abandon();
    for (const auto& set_runtime : all_sets())
        set_runtime->engine().replace_cause(std::make_exception_ptr(
            Error(ErrorCode::not_initialised,
                  fmt::format("this belongs to the session before it shrank, and must be made anew "
                              "({})",
                              cause))));
    auto config = resources_->config;
    config.fault.reset();
    config.timeline.clear();  // which is of the ranks as they were
    return std::make_shared<Runtime>(transport().shrink(config), config);
}

/// Allocates nothing.
void Runtime::end_job(std::string_view reason) noexcept {
    transport().abort({.rank = transport().rank(), .text = reason});
    base::abort(transport().doorbell());
}

}  // namespace guozhuang
