#pragma once

#include <cstddef>
#include <guozhuang/torch/agreement.hpp>
#include <guozhuang/torch/broadcast.hpp>
#include <guozhuang/training.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <utility>
#include <vector>

namespace guozhuang::torch {

/// Copies the parameters and buffers of root's module to all ranks, whose tensors may lie in memory
/// otherwise than root's. `root` is a rank of the job. Collective. Throws what
/// guozhuang::broadcast_parameters() throws, and Error(invalid_argument) on all ranks if one has a
/// tensor that is sparse, has gaps, or is of a type or on a device that the library does not know.
inline void broadcast_parameters(const ::torch::nn::Module& module, int root = 0,
                                 const ProcessSet& process_set = {}) {
    std::vector<detail::PlainTensor> tensors;
    std::vector<Parameter> values;
    detail::on_all_ranks(process_set, [&] {
        for (const auto& all : {module.named_parameters(), module.named_buffers()}) {
            for (const auto& item : all) {
                if (!item.value().defined()) continue;
                tensors.emplace_back(item.value(), item.key());
                values.push_back({item.key(), tensors.back().view(), {}});
            }
        }
    });
    guozhuang::broadcast_parameters(values, root, process_set);
    for (auto& tensor : tensors) tensor.write_back();
}

namespace detail {

/// Returns the device of the optimizer's parameters; the CPU if it has none.
inline at::Device device_of(::torch::optim::Optimizer& optimizer) {
    for (const auto& group : optimizer.param_groups())
        for (const auto& parameter : group.params()) return parameter.device();
    return at::kCPU;
}

/// Returns the optimizer's saved state as bytes.
inline std::string save(const ::torch::optim::Optimizer& optimizer) {
    ::torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    return std::move(stream).str();
}

/// Gives the optimizer what another one has saved, in place of all that it has kept. If this
/// throws, the optimizer is as before.
inline void load(::torch::optim::Optimizer& optimizer, const std::string& bytes) {
    ::torch::serialize::InputArchive archive;
    archive.load_from(bytes.data(), bytes.size(), device_of(optimizer));
    auto& groups = optimizer.param_groups();
    std::vector<std::unique_ptr<::torch::optim::OptimizerOptions>> options;
    for (const auto& group : groups) options.push_back(group.options().clone());
    auto state = std::exchange(optimizer.state(), {});
    try {
        optimizer.load(archive);
    } catch (...) {
        optimizer.state() = std::move(state);
        for (std::size_t i = 0; i < groups.size(); ++i)
            groups[i].set_options(std::move(options[i]));
        throw;
    }
}

}  // namespace detail

/// Copies what root's optimizer keeps from step to step to all ranks, as torch::save() writes it:
/// momenta, numbers of steps, and options such as the learning rate as far as libtorch reads them
/// (1.13 does not). The other ranks need not have stepped yet. Collective. Where root's optimizer
/// cannot be saved, or another rank cannot have its state and keeps its own, that rank throws what
/// libtorch throws, and the others Error(invalid_argument) with that rank and what it says.
inline void broadcast_optimizer_state(::torch::optim::Optimizer& optimizer, int root = 0,
                                      const ProcessSet& process_set = {}) {
    const auto ranks = process_set.ranks();
    const bool is_root = ranks[static_cast<std::size_t>(process_set.rank())] == root;
    std::string bytes;
    detail::on_all_ranks(process_set, [&] {
        if (is_root) bytes = detail::save(optimizer);
    });
    broadcast_bytes(bytes, root, process_set);
    detail::on_all_ranks(process_set, [&] {
        if (!is_root) detail::load(optimizer, bytes);
    });
}

}  // namespace guozhuang::torch
