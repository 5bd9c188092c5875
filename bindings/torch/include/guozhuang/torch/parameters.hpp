#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <guozhuang/torch/agreement.hpp>
#include <guozhuang/torch/tensors.hpp>
#include <guozhuang/training.hpp>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/optimizer.h>
#include <utility>
#include <vector>

namespace guozhuang::torch {

/// A parameter of a module, with its name there.
struct NamedParameter {
    std::string name;
    at::Tensor tensor;
    bool has_sparse_gradient = false;  ///< as that of an Embedding with sparse(true)
};

namespace detail {

/// Whether the layer was told to make a sparse gradient of its `weight`.
inline bool is_sparse(const ::torch::nn::Module& layer) {
    const auto* embedding = layer.as<::torch::nn::Embedding>();
    const auto* bag = layer.as<::torch::nn::EmbeddingBag>();
    return (embedding != nullptr && embedding->options.sparse()) ||
           (bag != nullptr && bag->options.sparse());
}

inline std::set<std::string> sparse_names(const ::torch::nn::Module& module) {
    std::set<std::string> names;
    if (is_sparse(module)) names.insert("weight");
    for (const auto& item : module.named_modules("", /*include_self=*/false))
        if (is_sparse(*item.value())) names.insert(item.key() + ".weight");
    return names;
}

inline void require_trainable(const NamedParameter& parameter, const at::Tensor& first) {
    const auto& [name, tensor, sparse] = parameter;
    memory_of(tensor, name);
    if (!tensor.is_leaf())
        refuse(name, "is computed from other tensors, so backward gives it no gradient");
    if (!tensor.is_floating_point()) refuse(name, "is not floating");
    if (tensor.device() != first.device())
        refuse(name, "is on the device '" + tensor.device().str() +
                         "', but the first parameter on '" + first.device().str() +
                         "': all have to be on one");
}

[[noreturn]] inline void refuse_strange_parameter(const ::torch::nn::Module& module) {
    throw Error(ErrorCode::invalid_argument,
                "the optimizer has a parameter that module '" + module.name() +
                    "' does not have: give the module to which all its parameters belong");
}

inline std::string describe(const NamedParameter& parameter) {
    const auto& [name, tensor, sparse] = parameter;
    std::ostringstream text;
    text << "'" << name << "' of type " << tensor.scalar_type() << ", sizes " << tensor.sizes()
         << ", strides " << tensor.strides() << (sparse ? ", with a sparse gradient" : "");
    return text.str();
}

/// The first lines in which two texts differ.
inline std::pair<std::string, std::string> first_difference(const std::string& one,
                                                            const std::string& other) {
    std::istringstream first(one), second(other);
    std::string here, there;
    do {
        if (!std::getline(first, here)) here = "nothing";
        if (!std::getline(second, there)) there = "nothing";
    } while (here == there);
    return {here, there};
}

}  // namespace detail

/// The parameters of the module that require a gradient, each once: of one that is registered under
/// several names (tied weights) the first name. Throws Error(invalid_argument), which names the
/// parameter, if one cannot be trained by several ranks, and if there is none. Local.
inline std::vector<NamedParameter> trained_parameters(const ::torch::nn::Module& module) {
    const auto sparse = detail::sparse_names(module);
    std::vector<NamedParameter> parameters;
    std::map<const void*, std::size_t> seen;
    for (const auto& item : module.named_parameters()) {
        if (!item.value().requires_grad()) continue;
        const auto [found, is_new] =
            seen.emplace(item.value().unsafeGetTensorImpl(), parameters.size());
        if (is_new) parameters.push_back({item.key(), item.value()});
        if (sparse.contains(item.key())) parameters[found->second].has_sparse_gradient = true;
    }
    if (parameters.empty())
        throw Error(ErrorCode::invalid_argument,
                    "module '" + module.name() + "' has no parameters that require a gradient");
    for (const auto& parameter : parameters)
        detail::require_trainable(parameter, parameters.front().tensor);
    return parameters;
}

/// Returns the module's parameters that the optimizer has. Throws Error(invalid_argument) if the
/// optimizer has one twice, or one that is not the module's.
inline std::vector<NamedParameter> trained_parameters(const ::torch::nn::Module& module,
                                                      const ::torch::optim::Optimizer& optimizer) {
    auto parameters = trained_parameters(module);
    std::map<const void*, int> chosen;  // how often
    for (const auto& parameter : parameters) chosen[parameter.tensor.unsafeGetTensorImpl()] = 0;
    for (const auto& group : optimizer.param_groups()) {
        for (const auto& tensor : group.params()) {
            const auto known = chosen.find(tensor.unsafeGetTensorImpl());
            if (known != chosen.end())
                ++known->second;
            else if (tensor.requires_grad())
                detail::refuse_strange_parameter(module);
        }
    }
    const auto times = [&](const NamedParameter& parameter) {
        return chosen[parameter.tensor.unsafeGetTensorImpl()];
    };
    for (const auto& parameter : parameters)
        if (times(parameter) > 1)
            detail::refuse(parameter.name, "was given to the optimizer twice");
    std::erase_if(parameters, [&](const auto& parameter) { return times(parameter) == 0; });
    if (parameters.empty())
        throw Error(ErrorCode::invalid_argument,
                    "the optimizer has no parameters that require a gradient");
    return parameters;
}

/// Returns the result of `find`. Throws Error(mismatch) on all ranks, with the first parameter that
/// differs, unless all ranks have the same parameters, in one order and laid out in memory alike.
/// If `find` throws on one, all ranks throw, as gather_texts() says. Collective.
inline std::vector<NamedParameter> same_parameters(
    const ProcessSet& set, const std::function<std::vector<NamedParameter>()>& find) {
    std::vector<NamedParameter> parameters;
    const auto all = detail::gather_texts(set, [&] {
        parameters = find();
        std::string text;
        for (const auto& parameter : parameters) text += detail::describe(parameter) + "\n";
        return text;
    });
    const auto other =
        std::ranges::find_if(all, [&](const auto& text) { return text != all.front(); });
    if (other != all.end()) {
        const auto ranks = set.ranks();
        const auto rank = ranks[static_cast<std::size_t>(other - all.begin())];
        const auto [here, there] = detail::first_difference(all.front(), *other);
        throw Error(ErrorCode::mismatch,
                    "parameters that require a gradient differ: " + here + " on rank " +
                        std::to_string(ranks.front()) + "; " + there + " on rank " +
                        std::to_string(rank),
                    {.ranks = {rank}});
    }
    return parameters;
}

/// Refuses parameters that have begun to require a gradient, or do so no longer.
inline void require_unchanged(const std::vector<NamedParameter>& before,
                              const std::vector<NamedParameter>& now) {
    const auto is_same = [](const NamedParameter& one, const NamedParameter& other) {
        return one.tensor.is_same(other.tensor);
    };
    const auto [gone, added] = std::ranges::mismatch(before, now, is_same);
    const std::string remedy =
        " after its module or optimizer was made a distributed one: make that anew on all ranks";
    if (gone != before.end() &&
        std::none_of(added, now.end(), [&](const auto& each) { return is_same(each, *gone); }))
        detail::refuse(gone->name, "was removed, or has ceased to require a gradient," + remedy);
    if (added != now.end())
        detail::refuse(added->name, "was added, or has begun to require a gradient," + remedy);
}

}  // namespace guozhuang::torch
