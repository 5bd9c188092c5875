#include "protocol/fusion.hpp"

#include <cstdint>
#include <utility>

namespace guozhuang::protocol {
namespace {

// Of an item of an entry: its id, and the lengths of its name and description.
constexpr std::size_t most_bytes_beside_name = 20;

std::size_t tensor_bytes_of(const Description& description) {
    std::size_t bytes = 0;
    for (const auto& tensor : description.tensors)
        bytes += count_of(tensor.shape) * size_of(tensor.dtype);
    return bytes;
}

/// Of names and descriptions in the entry.
std::size_t entry_bytes_of(const ReadyRequest& request) {
    return request.name.size() + (request.absent.empty() ? 0 : request.description->bytes.size());
}

bool is_fusable(const Description& description) {
    const bool moves_in_place = description.operation == OperationKind::allreduce ||
                                description.operation == OperationKind::broadcast;
    return moves_in_place && !description.group && description.tensors.size() == 1;
}

bool can_fuse(const ReadyRequest& one, const ReadyRequest& other) {
    const auto &first = *one.description, &second = *other.description;
    return is_fusable(first) && is_fusable(second) && are_same_but_for_tensors(first, second) &&
           first.tensors.front().dtype == second.tensors.front().dtype &&
           one.absent == other.absent;
}

}  // namespace

std::vector<std::vector<ReadyRequest>> fuse(std::vector<ReadyRequest> ready,
                                            const FusionLimits& limits) {
    std::vector<std::vector<ReadyRequest>> entries;
    std::size_t tensor_bytes = 0, entry_bytes = 0;  // of the last entry
    for (auto& request : ready) {
        const auto more_tensor_bytes = tensor_bytes_of(*request.description);
        const auto more_entry_bytes = entry_bytes_of(request);
        if (entries.empty() || !can_fuse(entries.back().back(), request) ||
            tensor_bytes + more_tensor_bytes > limits.tensor_bytes ||
            entry_bytes + more_entry_bytes > limits.entry_bytes) {
            entries.emplace_back();
            tensor_bytes = entry_bytes = 0;
        }
        entries.back().push_back(std::move(request));
        tensor_bytes += more_tensor_bytes;
        entry_bytes += more_entry_bytes + most_bytes_beside_name;
    }
    return entries;
}

}  // namespace guozhuang::protocol
