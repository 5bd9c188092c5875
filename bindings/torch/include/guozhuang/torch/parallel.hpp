#pragma once

#include <guozhuang/operations.hpp>
#include <guozhuang/torch/broadcast.hpp>
#include <guozhuang/torch/parameters.hpp>
#include <guozhuang/torch/reducer.hpp>
#include <guozhuang/torch/state.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <utility>
#include <vector>

namespace guozhuang::torch {

/// How a DistributedDataParallel works. The same on all ranks.
struct ParallelOptions {
    OptimizerOptions reduction = {};  ///< of the gradients
    /// Whether forward() copies the buffers of the first rank to all, while the module trains: the
    /// running statistics of a BatchNorm, say, which otherwise differ from rank to rank.
    bool broadcast_buffers = true;
};

namespace detail {

/// The module's parameters, when all ranks have the values of the first one's.
inline std::vector<NamedParameter> synchronised(const ::torch::nn::Module* module,
                                                const OptimizerOptions& options) {
    if (module == nullptr)
        throw Error(ErrorCode::invalid_argument, "DistributedDataParallel: there is no module");
    auto parameters = trained_parameters(*module);
    const auto set = ranks_of(options);
    broadcast_parameters(*module, set.ranks().front(), set);
    return parameters;
}

inline void broadcast_buffers(const ::torch::nn::Module& module, const OptimizerOptions& options) {
    const auto set = ranks_of(options);
    const int root = set.ranks().front();
    std::vector<PlainTensor> buffers;
    std::vector<Handle> handles;
    for (const auto& item : module.named_buffers()) {
        if (!item.value().defined()) continue;
        const auto& buffer = buffers.emplace_back(item.value(), item.key());
        handles.push_back(broadcast_async(buffer.view(), root,
                                          {.name = "buffer " + item.key(),
                                           .stream = options.stream,
                                           .keep_alive = buffer.owner(),
                                           .session = options.session,
                                           .process_set = options.process_set}));
    }
    for (auto& handle : handles) handle.wait();
    for (auto& buffer : buffers) buffer.write_back();
}

}  // namespace detail

/// A module that several ranks train together, each with its share of a batch. All begin with the
/// parameters and buffers of the first rank; when backward() returns, the gradients are averages
/// over the ranks, and any optimizer can step.
///
///     guozhuang::torch::DistributedDataParallel parallel(model);  // of a TORCH_MODULE
///     ...
///     auto loss = torch::nll_loss(parallel.forward(images), labels);
///     optimizer.zero_grad();
///     loss.backward();
///     optimizer.step();
///
/// Every rank calls backward() once for each batch, or discard(). Where another rank discards,
/// backward() throws Error(discarded). One thread at a time.
template <class Module>
class DistributedDataParallel {
public:
    /// Collective. Throws as the constructor of DistributedOptimizer, and what
    /// broadcast_parameters() throws.
    explicit DistributedDataParallel(std::shared_ptr<Module> module,
                                     const ParallelOptions& options = {})
        : module_(std::move(module)),
          options_(options),
          reducer_(detail::synchronised(module_.get(), options.reduction), options.reduction,
                   [this] { finish_after_backward(); }) {}
    explicit DistributedDataParallel(const ::torch::nn::ModuleHolder<Module>& holder,
                                     const ParallelOptions& options = {})
        : DistributedDataParallel(holder.is_empty() ? nullptr : holder.ptr(), options) {}

    /// The module's forward(). If the last backward() has thrown after its first gradient, that
    /// batch is discarded first, if discard() has not done so; this waits until the other ranks
    /// have come to its end. What is thrown before that (by the loss, say) is not seen here: call
    /// discard().
    template <class... Arguments>
    decltype(auto) forward(Arguments&&... arguments) {
        if (in_backward_) discard("backward() has thrown");
        if (options_.broadcast_buffers && module_->is_training() && !reducer_.is_paused())
            detail::broadcast_buffers(*module_, reducer_.options());
        return module_->forward(std::forward<Arguments>(arguments)...);
    }

    /// For a rank that cannot go on with a batch. See GradientReducer::discard.
    void discard(std::string_view reason) {
        in_backward_ = false;
        reducer_.discard(reason);
    }

    /// While the guard lives, gradients only accumulate, on this rank alone.
    [[nodiscard]] NoSync no_sync() noexcept { return NoSync(reducer_); }

    Module& module() noexcept { return *module_; }
    Module* operator->() noexcept { return module_.get(); }

private:
    /// Backward calls this with its first gradient; when it has written all, the pass is over.
    void finish_after_backward() {
        if (std::exchange(in_backward_, true)) return;
        ::torch::autograd::Engine::get_default_engine().queue_callback([this] {
            in_backward_ = false;
            reducer_.finish_pass();
        });
    }

    std::shared_ptr<Module> module_;
    ParallelOptions options_;
    bool in_backward_ = false;  ///< or it has thrown
    Reducer reducer_;
};

template <class Module>
DistributedDataParallel(const ::torch::nn::ModuleHolder<Module>&, const ParallelOptions& = {})
    -> DistributedDataParallel<Module>;

}  // namespace guozhuang::torch
