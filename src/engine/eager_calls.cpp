#include "engine/eager_calls.hpp"

#include <new>
#include <string>

#include "base/process.hpp"
#include "engine/execution.hpp"
#include "engine/stall_watch.hpp"

namespace guozhuang::engine {

/// A call is under way while this lives.
class EagerCalls::Running {
public:
    Running(EagerCalls& calls, const Call& call) noexcept : calls_(calls) {
        calls.running_.store(&call, std::memory_order_release);
    }
    ~Running() {
        calls_.running_.store(nullptr, std::memory_order_release);
        if (!calls_.watched_) return;
        calls_.watched_->set_ended(nullptr);
        calls_.watched_.reset();
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

private:
    EagerCalls& calls_;
};

bool EagerCalls::run(Call& call, std::exception_ptr& failure) {
    const auto& name = call.name;
    const auto& tensor = call.tensors.front();
    const auto operation = call.description.operation;
    base::refuse_forked();
    if (name.empty()) call.number = queue_.take_number(operation);
    // An operation of another process set may be pending: then it stays the last one.
    if (context_.activity.last_pending == nullptr)
        write_operation(context_.activity.submitted, name_of(operation),
                        name.empty() ? "unnamed" : name, context_.group_ranks);
    const auto facts = [&] {
        return trace::TimelineFacts{.operation = name_of(operation),
                                    .bytes = tensor.bytes(),
                                    .tensors = 1,
                                    .set = context_.set};
    };
    const trace::TimelineSlice slice(*context_.timeline, "eager", facts);
    const auto numbered = slice.begin() && name.empty()
                              ? queue_.numbered_name(operation, call.number)
                              : std::string();
    const auto fingerprint = protocol::fingerprint_of_allreduce(name, call.number, call.description,
                                                                tensor.dtype, tensor.shape);
    const Running running(*this, call);
    try {
        bundle_.description = &call.description;
        bundle_.entries.clear();
        bundle_.entries.push_back({.tensor = tensor});
        if (!host_->run_eagerly(bundle_, fingerprint)) return false;
    } catch (...) {
        failure = error_of(std::current_exception(), call);
        return false;
    }
    if (slice.begin())
        context_.timeline->add_request(name.empty() ? std::string_view(numbered) : name, "eager",
                                       {*slice.begin(), base::Clock::now()}, facts());
    return true;
}

std::exception_ptr EagerCalls::error_of(const std::exception_ptr& cause,
                                        const Call& call) const noexcept try {
    const auto request = request_of(call);
    return as_error(cause, {.operation = request.operation(), .tensor = request.name.text()},
                    context_.rank);
} catch (const std::bad_alloc&) {
    return cause;
}

Request EagerCalls::request_of(const Call& call) const {
    const auto operation = call.description.operation;
    return {.name = protocol::Name(call.name.empty() ? queue_.numbered_name(operation, call.number)
                                                     : std::string(call.name)),
            .description = protocol::share(protocol::Description(call.description))};
}

std::shared_ptr<Pending> EagerCalls::under_way(const std::shared_ptr<ProgressSource>& engine) {
    const auto* const call = running_.load();
    if (call != nullptr && !watched_)
        watched_ = std::make_shared<Pending>(request_of(*call), engine);
    return watched_;
}

}  // namespace guozhuang::engine
