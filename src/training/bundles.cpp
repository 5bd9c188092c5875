#include "training/bundles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/error_text.hpp"
#include "training/refuse.hpp"

namespace guozhuang {
namespace {

/// Whether they can be in one bundle.
bool are_alike(const TensorView& a, const TensorView& b) {
    return a.dtype == b.dtype && a.device == b.device;
}

void check(const OptimizerOptions& options, std::size_t parameters) {
    const auto fail = [&](const std::string& problem) { refuse(options.name, problem); };
    if (options.backward_passes_per_step < 1)
        fail(fmt::format("backward_passes_per_step is {}; it must be 1 at least",
                         options.backward_passes_per_step));
    if (options.memory == Memory::share && options.process_set.state())
        fail("memory is shared among all ranks of the job, not those of a process set");
    if (!options.groups.empty() && options.groups.size() != parameters)
        fail(fmt::format("there are groups of {} parameters, but {} parameters",
                         options.groups.size(), parameters));
    if (options.uses.empty()) return;
    if (options.uses.size() < parameters)
        fail(fmt::format("there is room for the uses of {} parameters; there are {}",
                         options.uses.size(), parameters));
    if (options.op != ReduceOp::average && options.op != ReduceOp::sum &&
        options.op != ReduceOp::adasum)
        fail(fmt::format("gradients are combined by average, sum or adasum, not by '{}'",
                         name_of(options.op)));
}

}  // namespace

Bundles::Bundles(const std::vector<Parameter>& parameters, const OptimizerOptions& options) {
    const bool tracks_uses = !options.uses.empty();
    if (parameters.empty() && !tracks_uses) refuse(options.name, "there are no parameters");
    check(options, parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [name, value, gradient] = parameters[i];
        if (name.empty()) refuse(options.name, fmt::format("parameter {} has no name", i));
        if (!index.emplace(name, i).second)
            refuse(options.name, "two parameters are called " + base::quote(name), name);
        if (parameters[i].has_gradient() && value.shape != gradient.shape)
            refuse(options.name,
                   fmt::format("value and gradient of {} differ in shape", base::quote(name)),
                   name);
    }
    if (std::ranges::none_of(parameters, &Parameter::has_gradient) && !tracks_uses)
        refuse(options.name, "no parameter has a gradient");
    lay_out(parameters, options);
    tie(parameters);
}

/// Bundles are in reverse order of the parameters, the order in which backward finishes them. A
/// bundle has one dtype and device; the first one is small. Groups come after the others.
void Bundles::lay_out(const std::vector<Parameter>& parameters, const OptimizerOptions& options) {
    constexpr auto any_size = std::numeric_limits<std::size_t>::max();
    bundle_of.resize(parameters.size());
    std::map<std::tuple<int, DType, DeviceKind, int>, std::vector<std::size_t>> grouped;
    for (std::size_t i = parameters.size(); i-- > 0;) {
        const auto& [name, value, gradient] = parameters[i];
        if (!parameters[i].has_gradient()) continue;
        if (const int group = options.groups.empty() ? -1 : options.groups[i]; group >= 0) {
            const auto& [kind, device] = gradient.device;
            grouped[{group, gradient.dtype, kind, device}].push_back(i);
            continue;
        }
        const auto limit = tensors.size() <= 1 ? options.first_bundle_bytes : options.bundle_bytes;
        bundle_of[i] = add({name, gradient}, limit);
    }
    if (!options.uses.empty()) {
        const auto count = static_cast<std::int64_t>(options.uses.size());
        uses_bundle =
            add({"used parameters", {options.uses.data(), DType::f32, {count}}}, any_size);
    }
    for (const auto& [key, group] : grouped) {
        begin_bundle();
        for (const auto i : group)
            bundle_of[i] = add({parameters[i].name, parameters[i].gradient}, any_size);
    }
}

/// Adds a tensor to the last bundle, or to a new one if that would become larger than `limit`.
std::size_t Bundles::add(NamedTensor tensor, std::size_t limit) {
    const auto bytes = tensor.tensor.bytes();
    const bool is_open =
        !tensors.empty() &&
        (tensors.back().empty() || are_alike(tensors.back().front().tensor, tensor.tensor));
    if (!is_open || bytes_ + bytes > limit) begin_bundle();
    tensors.back().push_back(std::move(tensor));
    ++size.back();
    bytes_ += bytes;
    return tensors.size() - 1;
}

void Bundles::begin_bundle() {
    tensors.emplace_back();
    size.push_back(0);
    bytes_ = 0;
}

/// A gradient that several parameters share is reduced with one of them. Its bundle waits for all
/// of them, since each adds to it.
void Bundles::tie(const std::vector<Parameter>& parameters) {
    std::unordered_map<const void*, std::size_t> first;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto memory = parameters[i].gradient.memory();
        tied_to.push_back(memory.empty() ? i : first.emplace(memory.data(), i).first->second);
        if (bundle_of[tied_to[i]] != bundle_of[i]) ++size[bundle_of[tied_to[i]]];
    }
}

}  // namespace guozhuang
