#include "api/output_checks.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "backends/rows.hpp"
#include "collectives/layout/rows.hpp"

namespace guozhuang::api {
namespace {

/// The rows that each rank gets in a reduce_scatter of tensor i.
std::vector<std::int64_t> scattered_rows(const SetRuntime& set, const engine::Call& call,
                                         std::size_t i) {
    return reduce_scatter_rows(call.tensors[i].shape.front(), call.splits, set.size());
}

/// No rank knows yet how many rows all_gather and all_to_all return.
void check_output(const SetRuntime& set, const engine::Call& call, std::size_t i,
                  const Check& check) {
    const auto &output = call.outputs[i], &tensor = call.tensors[i];
    check_tensor(output, check);
    check.that(output.dtype == tensor.dtype, "it is of {}, but the tensor of {}",
               name_of(output.dtype), name_of(tensor.dtype));
    check.that(output.device == tensor.device, "it is on {}, but the tensor on {}",
               name_of(output.device), name_of(tensor.device));
    check.that(
        output.shape.size() == tensor.shape.size() &&
            std::equal(output.shape.begin() + 1, output.shape.end(), tensor.shape.begin() + 1),
        "shape [{}] differs from the tensor's, [{}], in more than dim 0", list_of(output.shape),
        list_of(tensor.shape));
    if (call.description.operation != OperationKind::reduce_scatter) return;
    const auto own = scattered_rows(set, call, i)[static_cast<std::size_t>(set.group_rank())];
    check.that(output.shape.front() == own, "it has {} rows, but this rank gets {} of {}",
               output.shape.front(), own, tensor.shape.front());
}

/// Memory that must not be used twice.
struct Memory {
    std::span<const std::byte> bytes;
    bool is_output;  ///< or a tensor with its output in it
    std::string name;

    const std::byte* end() const { return bytes.data() + bytes.size(); }
    std::string text() const {
        return fmt::format("{} ({} bytes at {})", name, bytes.size(), fmt::ptr(bytes.data()));
    }
};

/// Whether tensor i of an all_gather lies in its output, a number of rows behind the start. Only
/// the operation finds out whether the ranks before this one have that many rows.
bool is_gathered_in_place(const engine::Call& call, std::size_t i) {
    if (call.description.operation != OperationKind::all_gather) return false;
    const auto tensor = call.tensors[i].memory(), output = call.outputs[i].memory();
    const auto row = backends::row_bytes(call.tensors[i]);
    return !tensor.empty() && tensor.data() >= output.data() &&
           tensor.data() + tensor.size() <= output.data() + output.size() &&
           static_cast<std::size_t>(tensor.data() - output.data()) % row == 0;
}

/// Whether output i of a reduce_scatter is exactly this rank's block of tensor i.
bool is_scattered_in_place(const SetRuntime& set, const engine::Call& call, std::size_t i) {
    if (call.description.operation != OperationKind::reduce_scatter) return false;
    const auto rows = scattered_rows(set, call, i);
    const auto before =
        std::accumulate(rows.begin(), rows.begin() + set.group_rank(), std::int64_t{0});
    const auto begin = static_cast<std::size_t>(before) * backends::row_bytes(call.tensors[i]);
    return !call.outputs[i].memory().empty() &&
           call.outputs[i].memory().data() == call.tensors[i].memory().data() + begin;
}

/// Outputs are written while inputs are read, except in place. Inputs may overlap each other.
void check_overlaps(const SetRuntime& set, const engine::Call& call, const Check& check) {
    std::vector<Memory> all;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
        const bool is_scattered = is_scattered_in_place(set, call, i);
        if (!is_gathered_in_place(call, i))
            all.push_back({call.tensors[i].memory(), is_scattered, fmt::format("tensor [{}]", i)});
        if (!is_scattered)
            all.push_back({call.outputs[i].memory(), true, fmt::format("output [{}]", i)});
    }
    std::erase_if(all, [](const Memory& memory) { return memory.bytes.empty(); });
    std::ranges::sort(all, std::less<>{}, [](const Memory& memory) { return memory.bytes.data(); });
    // The memory and the output before this one that reach furthest.
    const Memory *furthest = nullptr, *furthest_output = nullptr;
    for (const auto& memory : all) {
        const auto* other = memory.is_output ? furthest : furthest_output;
        if (other != nullptr && other->end() > memory.bytes.data())
            check.fail(ErrorCode::invalid_argument,
                       fmt::format("{} and {} overlap; only this rank's own block may be input and "
                                   "output at once",
                                   other->text(), memory.text()));
        if (furthest == nullptr || furthest->end() < memory.end()) furthest = &memory;
        if (memory.is_output) furthest_output = &memory;
    }
}

}  // namespace

std::string name_of_output(const engine::Call& call, std::size_t i) {
    return call.description.group ? fmt::format("output [{}]", i) : "output";
}

void check_outputs(const SetRuntime& set, const engine::Call& call, const Check& check) {
    if (call.outputs.empty()) return;
    check.that(row_of(call.description.operation).has_rows,
               "it takes no outputs, because it has no results of its own");
    check.that(call.outputs.size() == call.tensors.size(),
               "{} outputs were given, but it needs {}, one for each tensor", call.outputs.size(),
               call.tensors.size());
    for (std::size_t i = 0; i < call.outputs.size(); ++i)
        check_output(set, call, i, check.of(name_of_output(call, i)));
    check_overlaps(set, call, check);
}

}  // namespace guozhuang::api
