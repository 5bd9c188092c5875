#pragma once

#include <exception>
#include <memory>
#include <span>

#include "engine/pending.hpp"

namespace guozhuang::engine {

/// Is told how executions go; the engine is one. Thread-safe, since a device's threads call it.
class ExecutionListener {
public:
    virtual ~ExecutionListener() = default;
    /// The operations are enqueued on a stream: their names may be submitted again.
    virtual void on_enqueued(std::span<const std::shared_ptr<Pending>> operations) = 0;
    /// The operations have ended, with this error unless it is null.
    virtual void on_end(std::span<std::shared_ptr<Pending>> operations,
                        std::exception_ptr error) noexcept = 0;
    /// Takes the owners that an execution has kept, and releases them on a thread that never drives
    /// (see ReleaseThread). If called before on_end(), releases them before the operations that
    /// kept them complete.
    virtual void let_go(std::shared_ptr<Owners> owners) noexcept = 0;
    /// This rank's work has failed half-way, so the other ranks cannot finish theirs.
    virtual void on_failure(const std::exception_ptr& error) = 0;
};

}  // namespace guozhuang::engine
