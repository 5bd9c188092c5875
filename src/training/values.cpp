#include "training/values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <guozhuang/error.hpp>
#include <set>

#include "base/error_text.hpp"

namespace guozhuang {
namespace {

/// Why a value cannot be averaged; empty if it can.
std::string problem_of(const TensorView& value) {
    if (value.device.kind != DeviceKind::host)
        return fmt::format("is on {} {}; only values in host memory are averaged here",
                           name_of(value.device.kind), value.device.index);
    if (value.dtype != DType::f32 && value.dtype != DType::f64)
        return fmt::format("is {}; only f32 and f64 are averaged here", name_of(value.dtype));
    if (!value.strides.empty()) return "is not contiguous";
    if (value.data == nullptr && value.count() != 0) return "has no memory";
    return {};
}

}  // namespace

std::vector<NamedTensor> values_of(std::span<const Parameter> parameters,
                                   const std::string& label) {
    std::string name;
    const auto refuse = [&](const std::string& problem) {
        throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", label, problem),
                    {.tensor = name, .operation = "step"});
    };
    if (parameters.empty()) refuse("there are no parameters");
    std::set<std::string> names;
    std::vector<NamedTensor> values;
    for (const auto& parameter : parameters) {
        name = parameter.name;
        if (name.empty()) refuse("a parameter has no name");
        if (!names.insert(name).second) refuse("two parameters are called " + base::quote(name));
        if (const auto problem = problem_of(parameter.value); !problem.empty())
            refuse(fmt::format("the value of {} {}", base::quote(name), problem));
        const auto memory = parameter.value.memory();
        bool is_there = false;
        for (const auto& [other, tensor] : values) {
            const auto before = tensor.memory();
            const std::less<const std::byte*> less;
            if (memory.empty() || before.empty() ||
                !less(memory.data(), before.data() + before.size()) ||
                !less(before.data(), memory.data() + memory.size()))
                continue;
            if (memory.data() != before.data() || memory.size() != before.size() ||
                tensor.dtype != parameter.value.dtype)
                refuse(fmt::format("the values of {} and {} overlap", base::quote(other),
                                   base::quote(name)));
            is_there = true;
        }
        if (!is_there) values.push_back({name, parameter.value});
    }
    return values;
}

Copies::Copies(std::span<const NamedTensor> originals)
    : tensors_(originals.begin(), originals.end()) {
    for (auto& [name, tensor] : tensors_) tensor.data = memory_.emplace_back(tensor.bytes()).data();
    copy(originals, tensors_);
}

void copy(std::span<const NamedTensor> from, std::span<const NamedTensor> to) {
    for (std::size_t i = 0; i < from.size(); ++i)
        std::ranges::copy(from[i].tensor.memory(), to[i].tensor.memory().begin());
}

std::vector<std::vector<NamedTensor>> bundles_of(std::span<const NamedTensor> tensors) {
    constexpr std::size_t limit = 25u << 20;
    std::vector<std::vector<NamedTensor>> bundles;
    std::size_t bytes = 0;
    for (const auto& each : tensors) {
        bytes += each.tensor.bytes();
        if (bundles.empty() || bytes > limit ||
            bundles.back().front().tensor.dtype != each.tensor.dtype) {
            bundles.emplace_back();
            bytes = each.tensor.bytes();
        }
        bundles.back().push_back(each);
    }
    return bundles;
}

ProcessSet ranks_of(Session* session, const ProcessSet& process_set) {
    return process_set != ProcessSet() ? process_set : ProcessSet(session);
}

}  // namespace guozhuang
