#include "engine/eager_calls.hpp"

#include <string>

#include "base/process.hpp"
#include "engine/stall_watch.hpp"

namespace guozhuang::engine {

bool EagerCalls::run(const EagerCall& call, std::exception_ptr& failure) {
    const auto& [description, tensor, name, number] = call;
    const auto operation = description.operation;
    base::refuse_forked();
    if (name.empty()) number = queue_.take_number(operation);
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
    const auto numbered =
        slice.begin() && name.empty() ? queue_.numbered_name(operation, number) : std::string();
    const auto fingerprint =
        protocol::fingerprint_of_allreduce(name, number, description, tensor.dtype, tensor.shape);
    try {
        if (!host_->run_eagerly({.memory = tensor.memory(),
                                 .dtype = tensor.dtype,
                                 .op = description.op,
                                 .prescale = description.prescale,
                                 .postscale = description.postscale,
                                 .policy = policy_,
                                 .fingerprint = fingerprint}))
            return false;
    } catch (...) {
        failure = std::current_exception();
        return false;
    }
    if (slice.begin())
        context_.timeline->add_request(name.empty() ? std::string_view(numbered) : name, "eager",
                                       {*slice.begin(), base::Clock::now()}, facts());
    return true;
}

}  // namespace guozhuang::engine
