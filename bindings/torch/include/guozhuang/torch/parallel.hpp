#pragma once

#include <concepts>
#include <exception>
#include <functional>
#include <guozhuang/operations.hpp>
#include <guozhuang/torch/broadcast.hpp>
#include <guozhuang/torch/parameters.hpp>
#include <guozhuang/torch/reducer.hpp>
#include <guozhuang/torch/state.hpp>
#include <memory>
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

inline std::vector<NamedParameter> parameters_of(const ::torch::nn::Module* module) {
    if (module == nullptr)
        throw Error(ErrorCode::invalid_argument, "DistributedDataParallel: there is no module");
    return trained_parameters(*module);
}

inline void broadcast_buffers(const ::torch::nn::Module& module, const Reducer& reducer) {
    const auto& options = reducer.options();
    const auto set = ranks_of(options);
    const int root = set.ranks().front();
    std::vector<PlainTensor> buffers;
    std::vector<Handle> handles;
    for (const auto& item : module.named_buffers()) {
        if (!item.value().defined()) continue;
        const auto& buffer = buffers.emplace_back(item.value(), item.key());
        handles.push_back(
            broadcast_async(buffer.view(), root,
                            {.name = reducer.name_of("buffer " + item.key()),
                             .stream = detail::stream_of(options.stream, item.value()),
                             .keep_alive = buffer.owner(),
                             .session = options.session,
                             .process_set = options.process_set}));
    }
    for (auto& handle : handles) handle.wait();
    for (auto& buffer : buffers) buffer.write_back();
}

/// Has the backward that runs call `act` when it has written all gradients, after all that it was
/// told to call before. An exception of `act` leaves backward once everything has been called.
inline void after_backward(std::function<void()> act) {
    auto& backward = ::torch::autograd::Engine::get_default_engine();
    backward.queue_callback([&backward, act = std::move(act)] {
        try {
            act();
        } catch (...) {
            backward.queue_callback(
                [error = std::current_exception()] { std::rethrow_exception(error); });
        }
    });
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
/// backward() throws Error(discarded); else it throws as step() of DistributedOptimizer. One
/// thread at a time.
template <class Module>
class DistributedDataParallel {
public:
    /// Collective. Throws as the constructor of DistributedOptimizer, and what
    /// broadcast_parameters() throws.
    explicit DistributedDataParallel(std::shared_ptr<Module> module,
                                     const ParallelOptions& options = {})
        : module_(std::move(module)),
          options_(options),
          reducer_([module = module_.get()] { return detail::parameters_of(module); },
                   options.reduction, [this] { finish_after_backward(); }) {
        const auto set = ranks_of(reducer_.options());
        broadcast_parameters(*module_, set.ranks().front(), set);
    }
    /// The same for a module that outlives this.
    explicit DistributedDataParallel(Module& module, const ParallelOptions& options = {})
        requires std::derived_from<Module, ::torch::nn::Module>
        : DistributedDataParallel(std::shared_ptr<Module>(std::shared_ptr<void>(), &module),
                                  options) {}
    /// The same for a module of TORCH_MODULE.
    explicit DistributedDataParallel(const ::torch::nn::ModuleHolder<Module>& holder,
                                     const ParallelOptions& options = {})
        : DistributedDataParallel(holder.is_empty() ? nullptr : holder.ptr(), options) {}

    /// The module's forward(), behind begin_forward().
    template <class... Arguments>
    decltype(auto) forward(Arguments&&... arguments) {
        begin_forward();
        return module_->forward(std::forward<Arguments>(arguments)...);
    }
    /// For trainers that call the module's forward() themselves, before it: Module may be the base
    /// class, which has none. Copies the buffers. If the last backward() has thrown after its first
    /// gradient, that batch is discarded first, if discard() has not done so; this waits until the
    /// other ranks have come to its end. Exceptions thrown earlier (by the loss, say) are not seen
    /// here: call discard().
    void begin_forward() {
        if (in_backward_) discard("backward() has thrown");
        if (options_.broadcast_buffers && module_->is_training() && !reducer_->is_paused())
            detail::broadcast_buffers(*module_, reducer_);
    }

    /// For a rank that cannot go on with a batch. See GradientReducer::discard.
    void discard(std::string_view reason) {
        in_backward_ = false;
        reducer_->discard(reason);
    }

    /// While the guard lives, gradients only accumulate, on this rank alone.
    [[nodiscard]] NoSync no_sync() & noexcept { return NoSync(*reducer_); }

    /// The module of the constructor.
    Module& module() & noexcept { return *module_; }
    Module* operator->() & noexcept { return module_.get(); }

private:
    /// Backward calls this with its first gradient; when it has written all, the pass is over. Then
    /// all modules of that backward send before one of them waits: on another rank their first
    /// gradients may have come in another order.
    void finish_after_backward() {
        if (std::exchange(in_backward_, true)) return;
        detail::after_backward([this] {
            in_backward_ = false;
            reducer_->close();
            detail::after_backward([this] { reducer_->finish_pass(); });
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
