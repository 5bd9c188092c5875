#pragma once

#include <guozhuang/operations.hpp>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/torch/parameters.hpp>
#include <string>
#include <torch/utils.h>
#include <vector>

namespace guozhuang::torch::detail {

/// A tensor with the elements of a result.
inline at::Tensor tensor_of(Result& result, const at::TensorOptions& options) {
    return at::from_blob(result.view().data, result.shape, options).clone();
}

/// Returns the parameters. Refuses one with a sparse gradient if the op has no sums of rows.
inline std::vector<NamedParameter> require_sums(std::vector<NamedParameter> parameters,
                                                ReduceOp op) {
    for (const auto& each : parameters)
        if (each.has_sparse_gradient && op != ReduceOp::average && op != ReduceOp::sum)
            refuse(each.name,
                   "has a sparse gradient, of which there are averages and sums, but no '" +
                       std::string(guozhuang::name_of(op)) + "'");
    return parameters;
}

/// Replaces the sparse gradient of a parameter by that of all ranks: the rows of each of them, of
/// which equal ones are added up. A rank without a gradient contributes no rows. Collective.
inline void gather_gradient(const NamedParameter& parameter, const OptimizerOptions& options,
                            const std::string& operation) {
    const at::NoGradGuard no_graph;
    const auto& tensor = parameter.tensor;
    auto& gradient = tensor.mutable_grad();
    if (!gradient.defined())
        gradient = at::zeros_like(tensor).to_sparse(1);
    else if (!gradient.is_sparse())  // also used by a layer whose gradient is dense
        gradient = gradient.to_sparse(1);
    else if (gradient.sparse_dim() != 1)  // as libtorch 1.13 leaves it when it sets it to zero
        gradient = gradient.to_dense().to_sparse(1);
    gradient = gradient.coalesce();
    const auto rows = gradient.indices().t().contiguous();
    const auto values = gradient.values().contiguous();
    const std::vector views{view_of(rows, parameter.name), view_of(values, parameter.name)};
    auto results = grouped_all_gather(views, {.name = operation,
                                              .stream = stream_of(options.stream, values),
                                              .session = options.session,
                                              .process_set = options.process_set});
    auto sum = tensor_of(results[1], values.options());
    double scale = options.gradient_scale;
    if (options.op == ReduceOp::average) scale /= static_cast<double>(results[1].rows.size());
    if (scale != 1) sum.mul_(scale);
    const auto indices = tensor_of(results[0], rows.options()).t().contiguous();
    gradient = at::sparse_coo_tensor(indices, sum, tensor.sizes()).coalesce();
}

}  // namespace guozhuang::torch::detail
