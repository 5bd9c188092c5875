#include "protocol/request_cache.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace guozhuang::protocol {
namespace {

constexpr std::size_t most_names = 16384, most_name_bytes = std::size_t{4} << 20,
                      most_descriptions = 4096;

std::size_t hash_of(const Description& description, const TensorDescription& tensor) noexcept {
    std::size_t hash = 0;
    const auto add = [&](auto value) { hash = hash * 31 + std::hash<decltype(value)>()(value); };
    add(description.operation);
    add(description.op);
    add(description.prescale);
    add(description.postscale);
    add(description.root);
    add(tensor.dtype);
    for (const auto extent : tensor.shape) add(extent);
    return hash;
}

}  // namespace

const Name& RequestCache::get(std::string_view text) {
    if (const auto known = names_.find(text); known != names_.end()) return *known;
    if (names_.size() == most_names || name_bytes_ + text.size() > most_name_bytes) {
        names_.clear();
        name_bytes_ = 0;
    }
    const auto& name = *names_.emplace(text).first;
    name_bytes_ += text.size();
    return name;
}

const SharedDescription& RequestCache::get(const Description& description,
                                           const TensorDescription& tensor) {
    const auto hash = hash_of(description, tensor);
    const auto [begin, end] = descriptions_.equal_range(hash);
    const auto known = std::find_if(begin, end, [&](const auto& each) {
        return each.second->tensors.front() == tensor &&
               are_same_but_for_tensors(*each.second, description);
    });
    if (known != end) return known->second;
    if (descriptions_.size() == most_descriptions) descriptions_.clear();
    auto made = description;
    made.tensors = {tensor};
    return descriptions_.emplace(hash, share(std::move(made)))->second;
}

}  // namespace guozhuang::protocol
