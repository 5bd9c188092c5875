#include "engine/outputs.hpp"

#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <guozhuang/error.hpp>
#include <map>
#include <string>
#include <vector>

#include "base/error_text.hpp"

namespace guozhuang::engine {
namespace {

/// "0 from ranks 0,3; 2 from rank 1".
std::string list_rows(const std::vector<std::int64_t>& rows,
                      const protocol::GroupRanks& group_ranks) {
    std::map<std::int64_t, std::vector<int>> ranks;
    for (std::size_t group_rank = 0; group_rank < rows.size(); ++group_rank)
        ranks[rows[group_rank]].push_back(group_ranks.world_rank(static_cast<int>(group_rank)));
    std::vector<std::string> all;
    for (const auto& [count, from] : ranks)
        all.push_back(fmt::format("{} from {}", count, base::list_ranks(from)));
    return fmt::format("{}", fmt::join(all, "; "));
}

}  // namespace

std::exception_ptr output_mismatch(const Pending& pending, const Context& context) noexcept try {
    const auto& request = pending.request();
    for (std::size_t i = 0; i < request.outputs.size(); ++i) {
        const auto* const output = pending.output(i);
        if (output == nullptr) continue;
        const auto& result = pending.result(i);
        const auto wanted = result.shape.front(), given = output->shape.front();
        // Then the result got other memory because the input was in the way.
        const bool is_elsewhere = !result.bytes.empty() || result.device_memory;
        if (given == wanted && !is_elsewhere) continue;
        return std::make_exception_ptr(Error(
            ErrorCode::invalid_argument,
            fmt::format(
                "{}: output{} of rank {} {}: {}", request.label(),
                request.description->group ? fmt::format(" [{}]", i) : std::string(), context.rank,
                given == wanted ? "overlaps its input, which is not this rank's own block of it"
                                : fmt::format("has {} rows, but its result has {}", given, wanted),
                list_rows(result.rows, context.group_ranks)),
            {.tensor = request.name,
             .operation = std::string(request.operation()),
             .ranks = {context.rank}}));
    }
    return nullptr;
} catch (...) {  // there is no memory for the text
    return std::current_exception();
}

SharedTensors outputs_without(const SharedTensors& outputs, const OwnsTensors& owner) {
    SharedTensors left(std::span(outputs.begin(), outputs.size()));
    for (auto& output : left)
        if (owner(SharedTensors{output})) output = TensorView(nullptr, output.dtype, Shape{});
    return left;
}

}  // namespace guozhuang::engine
