#pragma once

#include <cstdint>
#include <functional>
#include <guozhuang/optimizer.hpp>
#include <optional>
#include <vector>

namespace guozhuang {

/// Compares the values of parameters between the ranks: in the first batch, and in the first after
/// each join, since ranks that had joined miss steps. It compares the values at the start of the
/// batch: until step() a trainer may change and restore them, on each rank in its own way. One
/// thread at a time.
class ValueCheck {
public:
    /// Nothing is ever compared unless `is_wanted`; values of parameters without a gradient are
    /// compared only if `with_others`.
    ValueCheck(bool is_wanted, bool with_others) noexcept
        : is_wanted_(is_wanted), with_others_(with_others) {}

    /// Whether the current batch compares values.
    bool is_due(const Plan& plan) const { return is_wanted_ && passed_ != plan.joins(); }
    void start_batch() noexcept { values_.reset(); }
    /// Hashes the values if a comparison is due and they have not been hashed in this batch.
    using HashOf = std::function<std::uint64_t(const TensorView& value)>;
    void note_values(const std::vector<Parameter>& parameters, const Plan& plan,
                     const HashOf& hash_of);
    /// The hashes that were noted: what all ranks must agree on.
    const std::vector<Agreement>& agreements() const { return *values_; }
    /// The batch was reduced, so all values were the same.
    void pass(const Plan& plan) { passed_ = plan.joins(); }
    /// Whether the values were compared since the last join.
    bool has_passed(const Plan& plan) const { return passed_ == plan.joins(); }

private:
    bool is_wanted_, with_others_;
    std::optional<std::uint64_t> passed_;  ///< number of joins at the last comparison
    std::optional<std::vector<Agreement>> values_;
};

}  // namespace guozhuang
