#pragma once

#include <string_view>

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
};

}  // namespace guozhuang::wire
