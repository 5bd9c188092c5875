#pragma once

#include <atomic>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/group_ranks.hpp"
#include "runtime/runtime.hpp"

namespace guozhuang {

/// The state that all copies of a ProcessSet share.
struct ProcessSetState {
    ProcessSetState(const std::shared_ptr<Runtime>& of, std::vector<int> sorted_ranks)
        : runtime(of), ranks(std::move(sorted_ranks)) {}

    const std::weak_ptr<Runtime> runtime;
    const std::vector<int> ranks;                  ///< ascending
    SetId id = {};                                 ///< the world's until the set is open
    std::shared_ptr<SetRuntime> set_runtime = {};  ///< null: this rank is not in it
    std::atomic<bool> removed{false};

    protocol::GroupRanks group_ranks() const { return protocol::GroupRanks(ranks); }
};

namespace api {

std::shared_ptr<Runtime> runtime_of(Session* session);

/// This rank's runtime of the set in an operation's options. Throws Error(invalid_argument) for a
/// set that has been removed, that this rank is not in, or that belongs to another session than the
/// given one; Error(not_initialised).
std::shared_ptr<SetRuntime> set_runtime_of(Session* session, const ProcessSet& set);

/// Called after catching std::bad_alloc: see ProcessSet::end_job_without_memory.
[[noreturn]] void end_job_without_memory(SetRuntime& set, std::string_view operation);

}  // namespace api
}  // namespace guozhuang
