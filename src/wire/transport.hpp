#pragma once

#include <guozhuang/error.hpp>
#include <memory>
#include <string_view>

#include "base/config.hpp"
#include "engine/control.hpp"
#include "topology/topology.hpp"
#include "wire/host_services.hpp"
#include "wire/messages.hpp"

namespace guozhuang::wire {

/// How a rank reaches the others: messages, services of its host, and control of the job
/// (engine::JobControl). The channels of wire/group use only Messages. A rank has one transport for
/// all its process sets. Thread-safe, from construction to close().
class Transport : public Messages, public HostServices, public engine::JobControl {
public:
    virtual const topology::Topology& topology() const noexcept = 0;
    int rank() const noexcept final { return topology().rank; }
    int size() const noexcept final { return topology().size(); }

    /// Call it before this rank quits the job without waiting for the others: ranks that notice the
    /// end of its process then report the reason instead of a death.
    virtual void announce_quit(std::string_view reason) noexcept {
        activity().quit_reason.write({}, reason);
    }
    /// For messages: "Open MPI v4.1.4", "in-process".
    virtual const char* description() const noexcept = 0;
    /// Collective teardown: every rank calls it after its last message; it returns when all ranks
    /// have. Destructors never call it.
    virtual void close() = 0;
    /// A transport of the ranks that are left, in their order, once the job has been aborted here
    /// and no thread of this rank uses this transport. Each of them calls it, within
    /// `config.limits.shrink`; it blocks. Throws Error: see Session::shrink(); unavailable if the
    /// ranks are threads.
    virtual std::unique_ptr<Transport> shrink(const base::Config&) {
        throw Error(ErrorCode::unavailable,
                    "shrink: the ranks are threads of one process, which end together");
    }
};

}  // namespace guozhuang::wire
