#pragma once

#include <cstdint>
#include <functional>
#include <guozhuang/session.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/runtime.hpp"
#include "wire/shm/regions.hpp"
#include "wire/shm/shared_file.hpp"

namespace guozhuang::api {

/// A region that all ranks of a session have opened together. While this lives, each rank has
/// mapped the others' local regions and must keep its own open.
class JointRegion {
public:
    /// Memory that this rank opens to the others.
    struct LocalRegion {
        wire::SharedFile* file = nullptr;
        std::vector<wire::Regions::Range> ranges;
        std::function<void()> unshare = {};  ///< see wire::Regions; does not throw
    };

    /// Collective. `open` makes this rank's local region. If it throws on any rank, the region is
    /// open on no rank, and the lowest rank that failed warns: "`what` is private: ...". If it
    /// throws Error(invalid_argument), so does this, on all ranks: "rank 1: ...". Where ranks
    /// cannot share memory, `open` is not called.
    JointRegion(Session* session, std::string_view what, const std::function<LocalRegion()>& open);
    /// Opens nothing, for memory that this rank keeps to itself.
    explicit JointRegion(Session* session);
    ~JointRegion();
    JointRegion(const JointRegion&) = delete;
    JointRegion& operator=(const JointRegion&) = delete;

    bool is_open() const noexcept { return id_ != 0; }

    /// For memory that is about to be freed: when this returns, no operation of the session has
    /// tensors there. Returns false if MPI may still write to the memory, or if there was too
    /// little memory to find out; then it must never be freed.
    bool release(std::span<const std::byte> memory) noexcept;

private:
    std::vector<std::shared_ptr<SetRuntime>> set_runtimes() const;
    void end_job() noexcept;
    void rendezvous(Session* session, wire::Transport& transport, std::string_view what,
                    const std::function<LocalRegion()>& open);

    std::weak_ptr<Runtime> runtime_;
    std::shared_ptr<engine::Engine> world_;  ///< knows how the job ended when all else is gone
    std::shared_ptr<wire::Regions> regions_;
    std::vector<wire::SharedFile> theirs_;  ///< the other ranks' local regions, by rank
    std::uint64_t id_ = 0;
};

}  // namespace guozhuang::api
