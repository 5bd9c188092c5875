#pragma once

#include <dlib/dnn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/training.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Guozhuang for programs that train with dlib's dnn_trainer (dlib 19.24). docs/integrations.md has
/// a trainer.
namespace guozhuang::dlib {

/// Copies root's net to all ranks: its parameters, and what its layers keep besides, such as the
/// running means of batch normalisation. Collective. Throws Error(invalid_argument) on all ranks if
/// root's net has no parameters: dlib makes them when a net sees its first samples.
template <class Net>
void broadcast_net(Net& net, int root = 0, const ProcessSet& process_set = {}) {
    std::ostringstream out;
    const bool is_root = rank() == root;
    if (is_root && ::dlib::count_parameters(net) > 0) serialize(net, out);
    auto bytes = out.str();
    broadcast_bytes(bytes, root, process_set);
    if (bytes.empty())
        throw Error(ErrorCode::invalid_argument,
                    "broadcast_net: the net of rank " + std::to_string(root) +
                        " has no parameters yet: dlib makes them when a net sees its first "
                        "samples, so give it some before, by net(samples)");
    if (is_root) return;
    std::istringstream in(std::move(bytes));
    deserialize(net, in);
}

namespace detail {

/// A net's tensors as parameters, "layer 0" being the one before the loss. Layers without any are
/// left out.
template <class Net>
std::vector<Parameter> parameters_of(Net& net) {
    std::vector<TensorView> values, gradients;
    const auto into = [](std::vector<TensorView>& views) {
        return [&views](::dlib::tensor& tensor) {
            views.emplace_back(tensor.host(), Shape{static_cast<std::int64_t>(tensor.size())});
        };
    };
    ::dlib::visit_layer_parameters(net, into(values));
    ::dlib::visit_layer_parameter_gradients(net, into(gradients));
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i].count() > 0)
            parameters.push_back({"layer " + std::to_string(i), values.at(i), gradients[i]});
    return parameters;
}

/// Averages the gradients of a net once for each step of its trainer, which calls the solvers of
/// its layers one after the other.
class NetGradients {
public:
    NetGradients(std::function<std::vector<Parameter>()> parameters, OptimizerOptions options)
        : parameters_(std::move(parameters)), options_(std::move(options)) {
        if (options_.backward_passes_per_step != 1)
            refuse("backward_passes_per_step is not for dlib, which steps after each backward");
        // The trainer steps on a thread of its own.
        if (options_.session == nullptr) options_.session = &Session::current();
    }

    /// For the solver that is given this gradient: whether to step with it. If so, it is the
    /// average when this returns, and so are those of all layers behind it; if not, a rank has
    /// discarded the batch. Solvers come in the order of the layers, of which some may have none in
    /// this step.
    bool average(const ::dlib::tensor& gradient, float learning_rate) {
        const void* const memory = gradient.host();
        const auto find_from = [&](std::vector<const void*>::const_iterator first) {
            return std::find(first, gradients_.cend(), memory);
        };
        auto layer = find_from(next_);
        if (layer == gradients_.cend()) {
            is_discarded_ = !reduce(learning_rate);
            layer = find_from(gradients_.cbegin());
        }
        if (layer == gradients_.cend()) refuse(another_net);
        next_ = std::next(layer);
        return !is_discarded_;
    }
    /// In place of a step of this rank's trainer.
    void discard() { agree(0, true); }
    float learning_rate() const noexcept { return learning_rate_; }

private:
    static constexpr const char* another_net =
        "its trainer trains another net than the one it was made for, or a copy of it";

    [[noreturn]] static void refuse(const std::string& problem) {
        throw Error(ErrorCode::invalid_argument, "DistributedSolver: " + problem);
    }

    /// Whether no rank discards the batch. Then learning_rate_ is the mean of their rates.
    bool agree(float learning_rate, bool discards) {
        std::array<float, 2> means{learning_rate, discards ? 1.0F : 0.0F};
        allreduce(means, {.name = options_.name.empty() ? "" : options_.name + ".learning_rate",
                          .op = ReduceOp::average,
                          .session = options_.session,
                          .process_set = options_.process_set});
        if (means[1] > 0) return false;
        learning_rate_ = means[0];
        return true;
    }

    /// Whether no rank discards the batch. Then the gradients are averages.
    bool reduce(float learning_rate) {
        auto parameters = parameters_();
        if (parameters.empty()) refuse(another_net);
        std::set<const void*> memory;
        for (const auto& [name, value, gradient] : parameters)
            memory.insert({value.data, gradient.data});
        if (memory_.empty()) {
            for (const auto& parameter : parameters) gradients_.push_back(parameter.gradient.data);
            next_ = gradients_.cend();
            memory_ = memory;
        }
        if (memory != memory_)
            refuse(
                "the net's memory has moved since its first step; make a solver and a trainer "
                "anew after it was cleaned, read from a file or copied to");
        if (!agree(learning_rate, false)) return false;
        if (!reducer_) reducer_.emplace(std::move(parameters), options_);
        reducer_->finish_pass();
        return true;
    }

    std::function<std::vector<Parameter>()> parameters_;
    OptimizerOptions options_;
    std::optional<GradientReducer> reducer_;
    std::set<const void*> memory_;
    std::vector<const void*> gradients_;                                 ///< layer by layer
    std::vector<const void*>::const_iterator next_ = gradients_.cend();  ///< to be stepped with
    bool is_discarded_ = false;                                          ///< the batch
    float learning_rate_ = 0;
};

}  // namespace detail

/// Makes a solver of dlib's (sgd, adam) a data-parallel one: in each step of its trainer the
/// gradients of all layers become their averages over the ranks, then the solver steps. All ranks
/// call the trainer alike, each with its share of a batch.
///
///     guozhuang::dlib::DistributedSolver solver(net, dlib::sgd());
///     dlib::dnn_trainer<Net, decltype(solver)> trainer(net, solver);
///
/// Each rank's trainer shrinks its learning rate by the losses that it sees itself. All step with
/// the mean of their rates: learning_rate(). A rank that cannot go on with a batch calls discard(),
/// else every rank steps. The first step compares the parameters over the ranks, unless
/// OptimizerOptions::check_values is false. An error ends the trainer's thread, and is thrown by
/// one of the trainer's next calls.
template <class Solver>
class DistributedSolver {
public:
    /// Fails at its first step: dlib makes solvers so before it reads them from a file.
    DistributedSolver() = default;
    /// The net must outlive it and its copies, which work on the same net; one trainer uses them.
    /// `options` as for DistributedOptimizer, but for its stream and passes; solvers of trainers
    /// that step at the same time need a name. Throws
    /// Error(not_initialised), Error(invalid_argument).
    template <class Net>
    DistributedSolver(Net& net, Solver solver, OptimizerOptions options = {})
        : gradients_(std::make_shared<detail::NetGradients>(
              [&net] { return detail::parameters_of(net); }, std::move(options))),
          solver_(std::move(solver)) {}

    /// For the trainer: the step of one layer. Throws what DistributedOptimizer::step() throws, and
    /// Error(invalid_argument) if the trainer has another net.
    template <class Layer>
    const ::dlib::tensor& operator()(float learning_rate, const Layer& layer,
                                     const ::dlib::tensor& gradient) {
        if (!gradients().average(gradient, learning_rate)) {
            no_step_.copy_size(gradient);
            no_step_ = 0;
            return no_step_;
        }
        return solver_(gradients().learning_rate(), layer, gradient);
    }

    /// In place of trainer.train_one_step(), on a rank that cannot go on with this batch: all ranks
    /// leave it out, keep their parameters as they are, and go on with the next. Waits for the
    /// steps before, and until the other ranks have come to this one. Logs the reason. Throws what
    /// these steps have thrown, and what an allreduce throws.
    template <class Trainer>
    void discard(Trainer& trainer, std::string_view reason) {
        trainer.get_net();
        log_message(LogLevel::warning,
                    "DistributedSolver: this rank discards a batch: " + std::string(reason));
        gradients().discard();
    }

    /// Returns the learning rate of the last step, the same on all ranks; 0 before the first. For
    /// the condition of a loop of train_one_step(); call it after trainer.get_net(), which waits
    /// for the steps.
    float learning_rate() const noexcept { return gradients_ ? gradients_->learning_rate() : 0; }
    const Solver& wrapped() const& noexcept { return solver_; }
    Solver wrapped() && { return std::move(solver_); }

    // As the wrapped solver's, so that files of single-process trainers can be read.
    friend void serialize(const DistributedSolver& solver, std::ostream& out) {
        serialize(solver.solver_, out);
    }
    friend void deserialize(DistributedSolver& solver, std::istream& in) {
        deserialize(solver.solver_, in);
    }
    friend std::ostream& operator<<(std::ostream& out, const DistributedSolver& solver) {
        return out << "distributed " << solver.solver_;
    }

private:
    detail::NetGradients& gradients() {
        if (!gradients_)
            throw Error(ErrorCode::invalid_argument,
                        "DistributedSolver: it was made without a net; give it to the trainer: "
                        "dnn_trainer<Net, decltype(solver)> trainer(net, solver)");
        return *gradients_;
    }

    std::shared_ptr<detail::NetGradients> gradients_;
    Solver solver_;
    ::dlib::resizable_tensor no_step_;
};

}  // namespace guozhuang::dlib
