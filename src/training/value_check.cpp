#include "training/value_check.hpp"

#include <fmt/format.h>

namespace guozhuang {

void ValueCheck::note_values(const std::vector<Parameter>& parameters, const Plan& plan,
                             const HashOf& hash_of) {
    if (values_ || !is_due(plan)) return;
    std::vector<Agreement> hashes;
    for (const auto& parameter : parameters) {
        const auto& [name, value, gradient] = parameter;
        const bool is_trained =
            parameter.has_gradient() ? value.data != gradient.data : with_others_;
        if (!is_trained || value.data == nullptr || !value.strides.empty()) continue;
        hashes.push_back({name,
                          "values (broadcast_parameters makes them the same; where they may "
                          "differ, OptimizerOptions::check_values = false)",
                          fmt::format("{:016x}", hash_of(value))});
    }
    values_ = std::move(hashes);
}

}  // namespace guozhuang
