#pragma once

#include <atomic>
#include <guozhuang/session.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "runtime/process_sets.hpp"
#include "runtime/set_runtime.hpp"
#include "wire/transport.hpp"

namespace guozhuang {

/// Everything one rank needs, and the only thing that owns it. Construction and close() are
/// collective. Otherwise thread-safe.
class Runtime {
public:
    /// Agrees with the other ranks on version and settings, then starts the world's engine. Throws
    /// Error(configuration) on every rank if they differ. `refusal`: why this rank fell back to the
    /// default settings; this then fails on every rank.
    Runtime(std::unique_ptr<wire::Transport> transport, const base::Config& config,
            std::string_view refusal = {});
    ~Runtime();
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    const std::shared_ptr<SetRuntime>& world() const noexcept { return world_; }
    /// The process sets besides the world.
    const std::shared_ptr<ProcessSets>& sets() const noexcept { return sets_; }
    wire::Transport& transport() noexcept { return *resources_->transport; }
    const base::Config& config() const noexcept { return resources_->config; }

    /// Starts this rank's timeline. Returns why it cannot, or nothing.
    std::string start_timeline(const std::string& directory);
    void stop_timeline() noexcept { resources_->timeline->stop(); }

    /// Collective; the other ranks get the reason, if there is one. Later calls, and calls after
    /// quit(), do nothing.
    void close(std::string_view reason = {});
    /// Quits without waiting for the other ranks, which get the reason. Does nothing after a
    /// close() that succeeded.
    void quit(std::string_view reason) noexcept;
    /// The runtime of the ranks that are left; it ends this one. See wire::Transport::shrink().
    /// Collective over them. Calls for this runtime then fail, and say why.
    std::shared_ptr<Runtime> shrink();
    /// The job that followed by shrink(). Set once, and only then read, under a lock of the caller.
    bool has_shrunk() const noexcept { return has_shrunk_; }
    std::shared_ptr<Runtime> next() const { return next_.lock(); }
    void set_next(const std::shared_ptr<Runtime>& next) noexcept {
        next_ = next;
        has_shrunk_ = true;
    }
    /// Ends the threads; operations that are still pending fail.
    void stop() noexcept;
    /// Whether the job is over because of an error, or because a rank has quit.
    bool has_failed() noexcept;

private:
    std::vector<std::shared_ptr<SetRuntime>> all_sets() const;
    std::pair<std::string, int> with_first_cause(std::string_view reason) const;
    void close_everything(std::string_view reason);
    void end_job(std::string_view reason) noexcept;
    void enter_job(std::string_view refusal);
    void say_why(const std::exception_ptr& failure) noexcept;
    trace::Activity& activity() noexcept { return resources_->transport->activity(); }

    std::shared_ptr<RankResources> resources_;
    std::shared_ptr<SetRuntime> world_;
    std::shared_ptr<ProcessSets> sets_;
    std::atomic<std::thread::id> closer_{};  ///< the thread that closes it
    std::atomic<bool> ended_{false};         ///< closed, quit or shrunk
    std::atomic<bool> has_shrunk_{false};
    std::weak_ptr<Runtime> next_;
};

}  // namespace guozhuang
