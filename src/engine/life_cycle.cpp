#include "engine/life_cycle.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>

namespace guozhuang::engine {

void LifeCycle::require_open(const Request& request,
                             const protocol::GroupRanks& group_ranks) const {
    const base::Lock lock(mutex_);
    if (cause_) std::rethrow_exception(for_operation(cause_, request, memory_on_loan_));
    if (!reason_) return;
    throw Error(ErrorCode::not_initialised,
                fmt::format("{} has been closed: it takes no more operations{}",
                            group_ranks.are_the_world() ? "this session" : group_ranks.name(),
                            reason_->empty() ? "" : fmt::format(" ({})", *reason_)));
}

void LifeCycle::advance_to(State state) noexcept {
    auto current = state_.load();
    while (current < state && !state_.compare_exchange_weak(current, state)) continue;
}

void LifeCycle::shut_down(std::string_view reason, bool at_once) {
    const base::Lock lock(mutex_);
    if (at_once) at_once_ = true;
    if (!reason_) reason_ = std::string(reason);
    advance_to(State::shutting_down);
}

std::optional<LifeCycle::Shutdown> LifeCycle::take_shutdown() {
    if (state() == State::open || announced_) return std::nullopt;
    const base::Lock lock(mutex_);
    if (!reason_) return std::nullopt;
    announced_ = true;
    advance_to(State::announced);
    return Shutdown{*reason_, at_once_};
}

std::string LifeCycle::shutdown_text(int rank) const {
    const base::Lock lock(mutex_);
    return fmt::format("rank {} has shut down{}", rank,
                       reason_ ? fmt::format(" ({})", *reason_) : "");
}

void LifeCycle::end_log(bool somebody_quit) {
    if (somebody_quit) somebody_quit_ = true;
    advance_to(State::over);
}

std::exception_ptr LifeCycle::note_cause(const std::exception_ptr& cause) noexcept {
    const base::Lock lock(mutex_);
    if (!cause_) cause_ = cause;
    return cause_;
}

std::exception_ptr LifeCycle::fail(const std::exception_ptr& cause) noexcept {
    const base::Lock lock(mutex_);
    if (!cause_) cause_ = cause;
    advance_to(State::over);
    return cause_;
}

void LifeCycle::rethrow_cause() const {
    const base::Lock lock(mutex_);
    if (cause_) std::rethrow_exception(cause_);
}

}  // namespace guozhuang::engine
