#include "training/shard_bundles.hpp"

#include <fmt/format.h>

#include <set>
#include <string_view>
#include <tuple>

#include "base/error_text.hpp"

namespace guozhuang {
namespace {

bool is_contiguous(const TensorView& tensor) {
    if (tensor.strides.empty()) return true;
    if (tensor.strides.size() != tensor.shape.size()) return false;
    std::int64_t expected = 1;
    for (std::size_t i = tensor.shape.size(); i-- > 0; expected *= tensor.shape[i])
        if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    return true;
}

/// The reason why a parameter with a gradient cannot be trained; empty if it can.
std::string problem_of(const Parameter& parameter, bool takes_f64) {
    const auto& [name, value, gradient] = parameter;
    if (value.shape != gradient.shape) return "its value and gradient differ in shape";
    if (value.dtype != gradient.dtype) return "its value and gradient differ in dtype";
    if (value.dtype != DType::f32 && value.dtype != DType::f64)
        return fmt::format("it is of {}; f32 and f64 can be sharded", name_of(value.dtype));
    if (value.dtype == DType::f64 && !takes_f64)
        return "it is of f64, which the rule does not take";
    for (const auto& tensor : {value, gradient}) {
        if (tensor.device.kind != DeviceKind::host)
            return fmt::format("it is on {} {}; only host memory can be sharded",
                               name_of(tensor.device.kind), tensor.device.index);
        if (!is_contiguous(tensor)) return "it is not contiguous";
        if (tensor.data == nullptr && tensor.count() > 0) return "it has no memory";
    }
    return {};
}

void refuse_overlaps(const std::vector<Parameter>& parameters, const std::string& optimizer) {
    std::set<std::tuple<const std::byte*, const std::byte*, std::size_t>> memories;
    for (std::size_t i = 0; i < parameters.size(); ++i)
        for (const auto& tensor : {parameters[i].value, parameters[i].gradient})
            if (const auto memory = tensor.memory();
                parameters[i].has_gradient() && !memory.empty() &&
                !memories.emplace(memory.data(), memory.data() + memory.size(), i).second)
                refuse_sharded(optimizer,
                               fmt::format("value and gradient of {} have the same memory",
                                           base::quote(parameters[i].name)),
                               parameters[i].name);
    const std::byte* end = nullptr;
    for (std::size_t last = 0; const auto& [from, to, i] : memories) {
        const auto &one = parameters[last].name, &other = parameters[i].name;
        if (from < end)
            refuse_sharded(
                optimizer,
                fmt::format("{} and {} have memory in common; tied weights cannot be "
                            "sharded",
                            base::quote(std::min(one, other)), base::quote(std::max(one, other))),
                other);
        end = to;
        last = i;
    }
}

void check(const std::vector<Parameter>& parameters, const ShardedOptimizerOptions& options,
           bool takes_f64) {
    if (options.backward_passes_per_step < 1)
        refuse_sharded(options.name,
                       fmt::format("backward_passes_per_step is {}; it must be 1 at least",
                                   options.backward_passes_per_step));
    std::set<std::string_view> names;
    for (const auto& parameter : parameters) {
        const auto& name = parameter.name;
        if (name.empty()) refuse_sharded(options.name, "a parameter has no name");
        if (!names.insert(name).second)
            refuse_sharded(options.name, "two parameters are called " + base::quote(name), name);
        if (!parameter.has_gradient()) continue;
        if (const auto problem = problem_of(parameter, takes_f64); !problem.empty())
            refuse_sharded(options.name, base::quote(name) + ": " + problem, name);
    }
    if (std::ranges::none_of(parameters, &Parameter::has_gradient))
        refuse_sharded(options.name, "no parameter has a gradient");
    refuse_overlaps(parameters, options.name);
}

/// Divides each bundle evenly. Elements left over go to one rank after the other, so that all
/// elements together are divided evenly, too.
void divide(std::vector<ShardBundle>& bundles, const ProcessSet& ranks) {
    const auto size = static_cast<std::size_t>(ranks.size());
    const auto self = static_cast<std::size_t>(ranks.rank());
    std::size_t next = 0;  // the rank that gets the next element that is left over
    for (auto& bundle : bundles) {
        const auto left = bundle.count % size;
        for (std::size_t rank = 0; rank < size; ++rank) {
            const bool one_more = (rank + size - next) % size < left;
            const auto own = bundle.count / size + (one_more ? 1 : 0);
            bundle.splits.push_back(static_cast<std::int64_t>(own));
            if (rank < self) bundle.first += own;
            if (rank == self) bundle.own = own;
        }
        next = (next + left) % size;
    }
}

}  // namespace

void refuse_sharded(const std::string& optimizer, const std::string& problem,
                    const std::string& tensor) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ShardedOptimizer{}: {}",
                            optimizer.empty() ? "" : " " + base::quote(optimizer), problem),
                {.tensor = tensor, .operation = "step"});
}

std::vector<ShardBundle> shard_bundles(const std::vector<Parameter>& parameters,
                                       const ShardedOptimizerOptions& options,
                                       const detail::ShardRule& rule, const ProcessSet& ranks) {
    check(parameters, options, static_cast<bool>(rule.f64));
    std::vector<ShardBundle> bundles;
    for (std::size_t i = parameters.size(); i-- > 0;) {
        if (!parameters[i].has_gradient()) continue;
        const auto& value = parameters[i].value;
        if (bundles.empty() || bundles.back().dtype != value.dtype ||
            bundles.back().count * size_of(value.dtype) + value.bytes() > options.bundle_bytes)
            bundles.emplace_back().dtype = value.dtype;
        bundles.back().parameters.push_back(i);
        bundles.back().count += value.count();
    }
    divide(bundles, ranks);
    for (auto& bundle : bundles) {
        bundle.moments = rule.moments();
        bundle.state.resize(bundle.moments * bundle.own * bundle.width());
    }
    return bundles;
}

}  // namespace guozhuang
