#pragma once

#include <memory>
#include <utility>

#include "engine/control.hpp"
#include "wire/transport.hpp"

namespace guozhuang::wire {

/// The job as the engine sees it. Keeps the transport, and so the doorbell, alive.
class TransportJob final : public engine::Job {
public:
    explicit TransportJob(std::shared_ptr<Transport> transport)
        : transport_(std::move(transport)) {}

    void abort(const base::AbortCause& cause) noexcept override { transport_->abort(cause); }
    bool abandon() noexcept override { return transport_->abandon(); }
    std::optional<trace::Neighbour> look_at(int rank) override { return transport_->look_at(rank); }

private:
    std::shared_ptr<Transport> transport_;
};

}  // namespace guozhuang::wire
