#pragma once

#include <string_view>

#include "engine/control.hpp"
#include "topology/topology.hpp"
#include "wire/host_services.hpp"
#include "wire/messages.hpp"

namespace guozhuang::wire {

/// How a rank reaches the others: messages, the services of its host, and control of the job
/// (engine::JobControl). Who needs one of the three takes that one. A rank has one transport, which
/// its process sets share. Thread-safe, between construction and close().
class Transport : public Messages, public HostServices, public engine::JobControl {
public:
    virtual const topology::Topology& topology() const noexcept = 0;
    int rank() const noexcept final { return topology().rank; }
    int size() const noexcept final { return topology().size(); }

    /// Says why this rank is about to quit the job, without waiting for the others: whoever notices
    /// that its process has ended says so, and does not call it a death.
    virtual void announce_quit(std::string_view reason) noexcept {
        activity().quit_reason.write({}, reason);
    }
    /// For people: "Open MPI v4.1.4", "in-process".
    virtual const char* description() const noexcept = 0;
    /// Collective teardown: every rank calls it after its last message; returns when all have.
    /// Never called from a destructor.
    virtual void close() = 0;
};

}  // namespace guozhuang::wire
