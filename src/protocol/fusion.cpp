#include "protocol/fusion.hpp"

#include <cstdint>

namespace guozhuang::protocol {
namespace {

// Upper bound for an item's id and for the lengths of its name and description.
constexpr std::size_t most_bytes_beside_name = 20;

std::size_t tensor_bytes_of(const Description& description) {
    std::size_t bytes = 0;
    for (const auto& tensor : description.tensors)
        bytes += count_of(tensor.shape) * size_of(tensor.dtype);
    return bytes;
}

/// Most bytes that the request's name and description take in the entry.
std::size_t entry_bytes_of(const ReadyRequest& request) {
    return request.name.text().size() +
           (request.absent.empty() ? 0 : encode(*request.description).size());
}

bool is_fusable(const Description& description) {
    return row_of(description.operation).in_place && !description.group &&
           description.tensors.size() == 1;
}

bool can_fuse(const ReadyRequest& one, const ReadyRequest& other) {
    const auto &first = *one.description, &second = *other.description;
    return is_fusable(first) && is_fusable(second) && are_same_but_for_tensors(first, second) &&
           first.tensors.front().dtype == second.tensors.front().dtype &&
           one.absent == other.absent && one.contributions.empty() && other.contributions.empty();
}

}  // namespace

std::size_t count_fused(std::span<const ReadyRequest> ready, const FusionLimits& limits) {
    auto tensor_bytes = tensor_bytes_of(*ready.front().description);
    auto entry_bytes = entry_bytes_of(ready.front());
    std::size_t count = 1;
    for (; count < ready.size() && can_fuse(ready[count - 1], ready[count]); ++count) {
        tensor_bytes += tensor_bytes_of(*ready[count].description);
        entry_bytes += most_bytes_beside_name + entry_bytes_of(ready[count]);
        if (tensor_bytes > limits.tensor_bytes || entry_bytes > limits.entry_bytes) break;
    }
    return count;
}

}  // namespace guozhuang::protocol
