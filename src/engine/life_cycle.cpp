#include "engine/life_cycle.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <string_view>
#include <utility>

#include "engine/pending.hpp"

namespace guozhuang::engine {
namespace {

/// Whether the error says that a rank has shut down. The text decides, because an operation that
/// needs a joined rank fails with the same code.
bool is_by_shutdown(const std::exception_ptr& error) noexcept {
    try {
        std::rethrow_exception(error);
    } catch (const Error& departed) {
        return departed.code() == ErrorCode::departed &&
               std::string_view(departed.what()).find("has shut down") != std::string_view::npos;
    } catch (...) {
        return false;
    }
}

}  // namespace

void LifeCycle::require_open(const Request& request,
                             const protocol::GroupRanks& group_ranks) const {
    if (is_open_) return;
    const base::Lock lock(mutex_);
    if (cause_) std::rethrow_exception(for_operation(cause_, request, memory_on_loan_));
    const auto& reason = shutdown_->reason;
    throw Error(ErrorCode::not_initialised,
                fmt::format("{} has been closed: it takes no more operations{}",
                            group_ranks.are_the_world() ? "this session" : group_ranks.name(),
                            reason.empty() ? "" : fmt::format(" ({})", reason)));
}

void LifeCycle::advance_to(State state) noexcept {
    auto current = state_.load();
    while (current < state && !state_.compare_exchange_weak(current, state)) continue;
}

void LifeCycle::shut_down(const Shutdown& shutdown) {
    const base::Lock lock(mutex_);
    if (!shutdown_ || (shutdown.at_once && !shutdown_->at_once)) {
        shutdown_ = shutdown;
        announced_ = false;  // quitting is announced even after an ordinary shutdown
    }
    is_open_ = false;
    advance_to(State::shutting_down);
}

std::optional<LifeCycle::Shutdown> LifeCycle::take_shutdown() {
    if (state() == State::open) return std::nullopt;
    const base::Lock lock(mutex_);
    if (!shutdown_ || std::exchange(announced_, true)) return std::nullopt;
    return shutdown_;
}

bool LifeCycle::has_announced() const noexcept {
    const base::Lock lock(mutex_);
    return announced_;
}

bool LifeCycle::quits() const noexcept {
    const base::Lock lock(mutex_);
    return shutdown_ && shutdown_->at_once;
}

std::pair<std::string, int> LifeCycle::describe_shutdown(int rank) const {
    const base::Lock lock(mutex_);
    auto text = fmt::format("rank {} has shut down{}", rank,
                            shutdown_ ? fmt::format(" ({})", shutdown_->reason) : "");
    return {std::move(text), shutdown_ && shutdown_->culprit >= 0 ? shutdown_->culprit : rank};
}

void LifeCycle::note_failure(const std::exception_ptr& error) noexcept {
    if (!is_by_shutdown(error)) return;
    const base::Lock lock(mutex_);
    if (!failure_by_shutdown_) failure_by_shutdown_ = error;
}

std::exception_ptr LifeCycle::failure_by_shutdown() const noexcept {
    const base::Lock lock(mutex_);
    return failure_by_shutdown_;
}

void LifeCycle::end_log(bool somebody_quit) {
    const base::Lock lock(mutex_);
    somebody_quit_ |= somebody_quit;
    advance_to(State::over);
}

bool LifeCycle::somebody_quit() const noexcept {
    const base::Lock lock(mutex_);
    return somebody_quit_;
}

std::exception_ptr LifeCycle::note_cause(const std::exception_ptr& cause) noexcept {
    const base::Lock lock(mutex_);
    if (!cause_) cause_ = cause;
    is_open_ = false;
    return cause_;
}

std::exception_ptr LifeCycle::fail(const std::exception_ptr& cause) noexcept {
    const base::Lock lock(mutex_);
    if (!cause_) cause_ = cause;
    is_open_ = false;
    advance_to(State::over);
    return cause_;
}

void LifeCycle::replace_cause(const std::exception_ptr& cause) noexcept {
    const base::Lock lock(mutex_);
    cause_ = cause;
    is_open_ = false;
}

void LifeCycle::rethrow_cause() const {
    const base::Lock lock(mutex_);
    if (cause_) std::rethrow_exception(cause_);
}

}  // namespace guozhuang::engine
