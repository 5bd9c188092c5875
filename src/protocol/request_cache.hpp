#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "protocol/description.hpp"
#include "protocol/name.hpp"

namespace guozhuang::protocol {

/// Names and descriptions of requests of one tensor. A caller that repeats a request gets the same
/// objects without an allocation, and comparing them finds equal pointers. Before there are more
/// than 16384 names, 4 MiB of them, or 4096 descriptions, all of them are dropped. Not thread-safe.
class RequestCache {
public:
    /// `description`: without its tensor, and without agreements.
    std::pair<Name, SharedDescription> get(std::string_view name, const Description& description,
                                           const TensorDescription& tensor) {
        return {get(name), get(description, tensor)};
    }

private:
    const Name& get(std::string_view text);
    const SharedDescription& get(const Description& description, const TensorDescription& tensor);

    std::unordered_set<Name, NameHash, std::equal_to<>> names_;
    std::size_t name_bytes_ = 0;                                            ///< of all texts
    std::unordered_multimap<std::size_t, SharedDescription> descriptions_;  ///< by hash
};

}  // namespace guozhuang::protocol
