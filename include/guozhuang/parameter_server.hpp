#pragma once

#include <cstddef>
#include <cstdint>
#include <guozhuang/export.hpp>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/sharded_optimizer.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace guozhuang {

/// How a parameter server updates the values. The same on all ranks of the process set, except the
/// session.
struct ParameterServerOptions {
    int servers = 1;  ///< the first ranks of the set keep an equal part of the values each
    /// How many gradients make an update. 0: one of every rank that still trains (synchronous). 1:
    /// each gradient is an update when it comes (asynchronous). More: the average of the first ones
    /// that come; later ones, which were computed from older values, are dropped (backup workers).
    int contributions = 0;
    /// With contributions == 1: a rank that is more than this many steps ahead of the slowest one
    /// that still trains waits for it (stale synchronous parallel). Empty: never.
    std::optional<int> max_staleness = {};
    /// As in PointToPointOptions. No other messages of the set may use this tag or the next one.
    std::uint16_t tag = 0;
    Session* session = nullptr;   ///< as in Options
    ProcessSet process_set = {};  ///< whose ranks take part; as in Options
};

/// Training with servers that hold the values: ranks send their gradients, and get new values back
/// (M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", 2014). Without
/// waiting for each other it is Downpour (J. Dean et al., 2012), with a bound stale synchronous
/// parallel (Q. Ho et al., 2013); with the first k of n gradients, synchronous SGD with backup
/// workers (J. Chen et al., 2016). The ranks that serve train as well, unless they call finish() at
/// once. docs/training/parameter_server.md says when it pays.
///
/// Ranks begin with the same values (broadcast_parameters). Construction and finish() are
/// collective; ranks may make different numbers of steps. One thread at a time. A rank that serves
/// has a thread for each rank.
class GUOZHUANG_API ParameterServer {
public:
    /// The rule (ShardedSgd, ShardedAdam or your own; see ShardUpdate) runs on threads of the
    /// servers, one at a time. The parameters' memory and the rule must outlive this. Throws Error:
    /// invalid_argument for options out of range and parameters that are not contiguous f32 in host
    /// memory, overlap, or have no gradient; mismatch on all ranks if options or parameters differ.
    template <ShardUpdate U>
    ParameterServer(U& update, std::vector<Parameter> parameters,
                    const ParameterServerOptions& options = {})
        : ParameterServer(detail::shard_rule(update), std::move(parameters), options) {}
    ParameterServer(detail::ShardRule rule, std::vector<Parameter> parameters,
                    const ParameterServerOptions& options);
    /// Waits for nothing. Without finish(), the next step() of the other ranks throws
    /// Error(departed).
    ~ParameterServer();
    ParameterServer(ParameterServer&&) noexcept;

    /// Sends this rank's gradients to the servers, and replaces the values by theirs. Waits for the
    /// other ranks as the options say; a server logs for whom, after 10 s. Throws what send() and
    /// recv() throw; Error(departed) if a rank has ended without finish(), by name, or if the rule
    /// has thrown on a server, with its text. After an error nothing but the destructor works.
    void step();
    /// This rank makes no more steps. Waits until all ranks have called it; then all hold the
    /// servers' values. Updates meanwhile take the gradients of the ranks that still train, if they
    /// are fewer than `contributions`.
    void finish();

    /// Steps of this rank whose gradient, or a part of it, was dropped.
    std::uint64_t dropped() const noexcept;
    /// The most updates between the values that a gradient of this rank was computed from and the
    /// update that used it.
    std::int64_t largest_staleness() const noexcept;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace guozhuang
