#pragma once

#include <cstddef>
#include <guozhuang/export.hpp>
#include <guozhuang/optimizer.hpp>
#include <guozhuang/tensor.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace guozhuang {

/// The tensors on which the optimizer of MasterWeights works. Local; one thread at a time.
class GUOZHUANG_API MasterCopies {
public:
    /// See MasterWeights.
    explicit MasterCopies(std::vector<Parameter> parameters);
    MasterCopies(MasterCopies&&) noexcept = default;

    /// The parameters with these copies as values and gradients, under the same names. Their memory
    /// stays where it is as long as this object, or one that is moved from it, lives.
    const std::vector<Parameter>& parameters() const& noexcept { return copies_; }
    const std::vector<Parameter>& parameters() && = delete;
    /// Copies the gradients, times `factor`, which is applied in the dtype of the copies. Values
    /// that are no longer those that write_values() has written are copied, too.
    void read(double factor);
    /// Rounds the copies to the trainer's values.
    void write_values() const;
    /// The f32 copies of 16-bit values, by name.
    std::vector<std::pair<std::string, std::vector<float>>>& masters() & noexcept {
        return masters_;
    }

private:
    bool is_current(std::size_t parameter);

    std::vector<Parameter> trained_;
    std::vector<Parameter> copies_;
    std::vector<std::pair<std::string, std::vector<float>>> masters_;
    std::vector<std::vector<std::byte>> gradients_;
    std::vector<std::byte> rounded_;  ///< room for the largest 16-bit value
};

/// Lets an optimizer step on f32 copies of f16 and bf16 parameters (Micikevicius et al., Mixed
/// Precision Training, ICLR 2018): updates below half a unit in the last place of a 16-bit value,
/// which rounding would lose, add up in the copies. For DistributedOptimizer, directly or under a
/// GradScaler:
///
///     gz::MasterWeights master(parameters, [](const std::vector<gz::Parameter>& copies) {
///         return Adam(copies, 1e-3);
///     });
///     gz::DistributedOptimizer optimizer(master, parameters);
///
/// Values and gradients of 16 bits have an f32 copy each. Values of f32 and f64 are the trainer's
/// own, with copies of their gradients, so step() never changes the trainer's gradients. In all, 8
/// bytes for each 16-bit parameter besides the 4 of the trainer. One thread at a time.
template <Optimizer O>
class MasterWeights {
public:
    /// `make` gets the parameters that the optimizer steps on, and returns the optimizer, which
    /// this object owns. Without gradient: no copies. Throws Error(invalid_argument) for a value or
    /// gradient that is not floating, on a device or not contiguous, for a 16-bit gradient of an
    /// f64 value, and for an f64 gradient of another value.
    template <class Make>
    MasterWeights(std::vector<Parameter> parameters, const Make& make)
        : copies_(std::move(parameters)), optimizer_(make(copies_.parameters())) {}

    /// Copies the trainer's gradients, lets the optimizer step, and rounds the copies to the
    /// trainer's values. Values that somebody else has changed since the last step, such as
    /// broadcast_parameters(), replace their copies first. Throws what the optimizer throws.
    void step() { step_scaled(1); }
    /// The same with gradients that are multiplied by `factor` after they are converted: what
    /// GradScaler calls.
    void step_scaled(double factor) {
        copies_.read(factor);
        optimizer_.step();
        copies_.write_values();
    }

    /// The copies, then the state of the optimizer, if it has any: for broadcast_optimizer_state()
    /// and checkpoints.
    template <class V>
    void visit_state(V&& visit) {
        for (auto& [name, values] : copies_.masters()) visit("master/" + name, values);
        if constexpr (requires { optimizer_.visit_state(visit); }) optimizer_.visit_state(visit);
    }

    O& wrapped() noexcept { return optimizer_; }  ///< what `make` has returned

private:
    MasterCopies copies_;
    O optimizer_;
};

template <class Make>
MasterWeights(std::vector<Parameter>, const Make&)
    -> MasterWeights<std::invoke_result_t<const Make&, const std::vector<Parameter>&>>;

}  // namespace guozhuang
