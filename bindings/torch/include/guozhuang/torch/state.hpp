#pragma once

#include <cstddef>
#include <guozhuang/torch/tensors.hpp>
#include <guozhuang/training.hpp>
#include <sstream>
#include <string>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <utility>
#include <vector>

namespace guozhuang::torch {

/// Copies the parameters and buffers of root's module to all ranks. `root` is a rank of the job.
/// Collective. Throws what guozhuang::broadcast_parameters() throws, and Error(invalid_argument)
/// for a tensor that view_of() refuses.
inline void broadcast_parameters(const ::torch::nn::Module& module, int root = 0,
                                 const ProcessSet& process_set = {}) {
    std::vector<Parameter> tensors;
    for (const auto& all : {module.named_parameters(), module.named_buffers()})
        for (const auto& item : all)
            if (item.value().defined())
                tensors.push_back({item.key(), view_of(item.value(), item.key()), {}});
    guozhuang::broadcast_parameters(tensors, root, process_set);
}

namespace detail {

/// That of its parameters; the CPU if it has none.
inline at::Device device_of(::torch::optim::Optimizer& optimizer) {
    for (const auto& group : optimizer.param_groups())
        for (const auto& parameter : group.params()) return parameter.device();
    return at::kCPU;
}

}  // namespace detail

/// Copies what root's optimizer keeps from step to step to all ranks, as torch::save() writes it:
/// momenta, numbers of steps, and options such as the learning rate as far as libtorch reads them
/// (1.13 does not). The other ranks need not have stepped yet. Collective. Throws what libtorch
/// throws where the optimizers differ.
inline void broadcast_optimizer_state(::torch::optim::Optimizer& optimizer, int root = 0,
                                      const ProcessSet& process_set = {}) {
    const auto ranks = process_set.ranks();
    const bool is_root = ranks[static_cast<std::size_t>(process_set.rank())] == root;
    std::string bytes;
    if (is_root) {
        ::torch::serialize::OutputArchive archive;
        optimizer.save(archive);
        std::ostringstream stream;
        archive.save_to(stream);
        bytes = std::move(stream).str();
    }
    broadcast_bytes(bytes, root, process_set);
    if (is_root) return;
    optimizer.state().clear();
    ::torch::serialize::InputArchive archive;
    archive.load_from(bytes.data(), bytes.size(), detail::device_of(optimizer));
    optimizer.load(archive);
}

}  // namespace guozhuang::torch
