#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "protocol/description.hpp"
#include "protocol/name.hpp"

namespace guozhuang::protocol {

/// What a request is known by.
struct KnownRequest {
    Name name;
    SharedDescription description;
};

/// The names, and the descriptions of one tensor, that requests have used last: 4096 and 64 slots
/// by hash, in which the newer one stays. A caller that makes the same again gets the same objects
/// without an allocation, and whoever compares them finds equal pointers. Takes about 100 KiB. Not
/// thread-safe.
class RequestCache {
public:
    /// `description`: without its tensor, and without agreements.
    KnownRequest find(std::string_view name, const Description& description,
                      const TensorDescription& tensor) {
        return {find(name), find(description, tensor)};
    }

private:
    const Name& find(std::string_view text);
    const SharedDescription& find(const Description& description, const TensorDescription& tensor);

    std::vector<Name> names_;  // both are made when they are first used
    std::vector<SharedDescription> descriptions_;
};

}  // namespace guozhuang::protocol
