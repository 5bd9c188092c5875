#include "protocol/request_cache.hpp"

#include <utility>

namespace guozhuang::protocol {
namespace {

std::size_t hash_of(const TensorDescription& tensor) noexcept {
    auto hash = static_cast<std::size_t>(tensor.dtype);
    for (const auto extent : tensor.shape) hash = hash * 31 + static_cast<std::size_t>(extent);
    return hash ^ hash >> 6;  // extents are often multiples of 64
}

}  // namespace

const Name& RequestCache::get(std::string_view text) {
    if (names_.empty()) names_.resize(4096);
    auto& recent = names_[Name::hash_of(text) % names_.size()];
    if (recent.text() != text) recent = Name(text);
    return recent;
}

const SharedDescription& RequestCache::get(const Description& description,
                                           const TensorDescription& tensor) {
    if (descriptions_.empty()) descriptions_.resize(64);
    auto& recent = descriptions_[hash_of(tensor) % descriptions_.size()];
    if (!recent || recent->tensors.front() != tensor ||
        !are_same_but_for_tensors(*recent, description)) {
        auto made = description;
        made.tensors = {tensor};
        recent = share(std::move(made));
    }
    return recent;
}

}  // namespace guozhuang::protocol
