#pragma once

#include <cstdint>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <guozhuang/torch.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <torch/torch.h>
#include <vector>

#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

/// Models that the tests of bindings/torch train, and references to compare them with. All in
/// float64, so that the order of sums does not show.
namespace models {

namespace gz = guozhuang;
using at::Tensor;
using gz::Session;
using gz::test::problems_here;
using gz::test::Report;
using gz::test::text_of;

/// A layer of each kind that matters: a convolution, two layers with one weight, a layer that only
/// some batches use, one that none uses, and one that is frozen.
struct NetImpl : torch::nn::Module {
    explicit NetImpl(std::uint64_t seed) {
        torch::manual_seed(seed);
        convolution = register_module(
            "convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)));
        tied = register_parameter("tied", torch::randn({16, 16}) / 4);
        register_parameter("tied_again", tied);
        sometimes = register_module("sometimes", torch::nn::Linear(16, 16));
        never = register_module("never", torch::nn::Linear(16, 16));
        frozen = register_module("frozen", torch::nn::Linear(16, 16));
        for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
        last = register_module("last", torch::nn::Linear(16, 3));
        to(at::kDouble);
    }
    Tensor features(const Tensor& images) {
        return torch::relu(convolution->forward(images)).flatten(1).slice(1, 0, 16);
    }
    /// Images whose first value is above 0 go through the layer that some use.
    Tensor forward(const Tensor& images) {
        auto hidden = torch::tanh(features(images).matmul(tied)).matmul(tied);
        const auto chosen = images.flatten(1).select(1, 0) > 0;
        if (chosen.any().item<bool>())
            hidden = torch::where(chosen.unsqueeze(1), sometimes->forward(hidden), hidden);
        return last->forward(frozen->forward(hidden));
    }

    torch::nn::Conv2d convolution{nullptr};
    Tensor tied;
    torch::nn::Linear sometimes{nullptr}, never{nullptr}, frozen{nullptr}, last{nullptr};
};
TORCH_MODULE(Net);

inline constexpr std::int64_t batch_of_rank = 2;

struct Batch {
    Tensor inputs, targets;

    /// This rank's samples.
    Batch share(Session& session) const {
        const auto first = session.rank() * batch_of_rank;
        return {inputs.slice(0, first, first + batch_of_rank),
                targets.slice(0, first, first + batch_of_rank)};
    }
};

/// The same on all ranks. With `some_chosen` only the last sample of all is above 0 at its
/// beginning, else none is.
inline Batch batch_of(Session& session, std::uint64_t seed, bool some_chosen = true) {
    torch::manual_seed(seed);
    const auto count = session.size() * batch_of_rank;
    auto images = torch::randn({count, 2, 4, 4}, at::kDouble);
    images.select(1, 0).select(1, 0).select(1, 0).copy_(torch::full({count}, -1.0));
    if (some_chosen) images[count - 1][0][0][0] = 1;
    return {images, torch::randint(3, {count}, at::kLong)};
}

/// Each of the module's parameters once, as optimizers need it.
inline std::vector<Tensor> parameters_of(const torch::nn::Module& module) {
    std::vector<Tensor> parameters;
    for (const auto& item : module.named_parameters())
        if (item.key() != "tied_again") parameters.push_back(item.value());
    return parameters;
}

template <class Model>
Tensor loss_of(Model& model, const Batch& batch) {
    return torch::nn::functional::cross_entropy(model.forward(batch.inputs), batch.targets);
}

/// Every parameter and buffer of one module is that of the other, and so are gradients.
inline void expect_same(Report& report, const torch::nn::Module& module,
                        const torch::nn::Module& expected, const std::string& when) {
    const auto all = expected.named_parameters();
    for (const auto& item : module.named_parameters()) {
        const auto& other = all[item.key()];
        report.expect(torch::allclose(item.value(), other, 1e-10, 1e-12),
                      text_of(when, ": '", item.key(), "' has another value"));
        const auto& gradient = item.value().grad();
        const auto& wanted = other.grad();
        report.expect(gradient.defined() == wanted.defined(),
                      text_of(when, ": '", item.key(), "' has ", gradient.defined() ? "a" : "no",
                              " gradient"));
        if (gradient.defined() && wanted.defined())
            report.expect(torch::allclose(gradient.to_dense(), wanted.to_dense(), 1e-10, 1e-12),
                          text_of(when, ": '", item.key(), "' has another gradient"));
    }
    std::ostringstream bits;
    for (const auto& value : module.parameters()) {
        const auto elements = value.detach().contiguous();
        bits.write(static_cast<const char*>(elements.data_ptr()),
                   static_cast<std::streamsize>(elements.nbytes()));
    }
    report.same_everywhere(when, bits.str());
}

/// How libtorch clears gradients: zeros in the memory that they have, or no gradient at all.
enum class Cleared { to_zero, to_none };

inline void clear_gradients(const torch::nn::Module& module, Cleared how) {
    for (auto& parameter : module.parameters()) {
        if (how == Cleared::to_none)
            parameter.mutable_grad().reset();
        else if (parameter.grad().defined())
            parameter.mutable_grad().zero_();
    }
}

/// The code and the text of the Error that `act` throws; empty if it throws none.
inline std::string error_of(const std::function<void()>& act) {
    try {
        act();
    } catch (const gz::Error& error) {
        return text_of(gz::name_of(error.code()), ": ", error.what());
    }
    return "";
}

inline void expect_error(Report& report, const std::string& parts, const std::string& more,
                         const std::function<void()>& act) {
    const auto error = error_of(act);
    report.expect(error.find(parts) != std::string::npos && error.find(more) != std::string::npos,
                  text_of("'", error, "' instead of '", parts, "' and '", more, "'"));
}

}  // namespace models
