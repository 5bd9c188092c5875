#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "protocol/description.hpp"
#include "protocol/name.hpp"

namespace guozhuang::protocol {

/// What a request is known by.
struct RequestIdentity {
    Name name;
    SharedDescription description;
};

/// Names and descriptions of the last requests of one tensor: 4096 and 64 slots by hash, in which
/// the newer one stays. A caller that makes the same again gets the same objects without an
/// allocation, and whoever compares them finds equal pointers. Takes about 100 KiB, without the
/// texts of the names. Not thread-safe.
class RequestCache {
public:
    /// `description`: without its tensor, and without agreements.
    RequestIdentity get(std::string_view name, const Description& description,
                        const TensorDescription& tensor) {
        return {get(name), get(description, tensor)};
    }

private:
    const Name& get(std::string_view text);
    const SharedDescription& get(const Description& description, const TensorDescription& tensor);

    std::vector<Name> names_;  // both are made when they are first used
    std::vector<SharedDescription> descriptions_;
};

}  // namespace guozhuang::protocol
