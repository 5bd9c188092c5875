#pragma once

#include <memory>

#include "wire/transport.hpp"

namespace guozhuang::wire {

/// Ranks as threads of one process: the transport of tests, of simulations, and of a process that
/// was started alone. The ranks are on one host, or simulate several hosts.
///
/// Data is moved once, from the sender's memory to the receiver's, by whichever of the two comes
/// second. Thread-safe.
class InprocHub {
public:
    /// `settings` defaults to what suits `ranks` threads on the cores of this process. `hosts`: at
    /// most as many as ranks; neighbours share a host, as evenly as possible.
    explicit InprocHub(int ranks, std::optional<base::WaitSettings> settings = std::nullopt,
                       int hosts = 1);
    ~InprocHub();
    InprocHub(const InprocHub&) = delete;
    InprocHub& operator=(const InprocHub&) = delete;

    /// The transport of one rank; call it at most once for each. It keeps alive what it needs of
    /// the hub.
    std::unique_ptr<Transport> transport(int rank);

    /// Ends the job: every wait of every rank throws Error(aborted), and so does every later send
    /// and receive. When it returns, nobody touches memory that was lent to a message.
    void abort(const base::AbortCause& cause = {}) noexcept;

    struct State;  ///< what the ranks share

private:
    std::shared_ptr<State> state_;
};

}  // namespace guozhuang::wire
