#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "protocol/description.hpp"
#include "protocol/name.hpp"

namespace guozhuang::protocol {

/// The names, and the descriptions of one tensor, that requests have used last: 4096 and 64 slots
/// by hash, in which the newer one stays. A caller that makes the same again gets the same object
/// without an allocation, and whoever compares them finds equal pointers. Takes about 100 KiB. Not
/// thread-safe.
class RequestCache {
public:
    Name name(std::string_view text);
    /// `description`: without its tensor, and without agreements.
    SharedDescription describe(const Description& description, const TensorDescription& tensor);

private:
    std::vector<Name> names_;  // both are made when they are first used
    std::vector<SharedDescription> descriptions_;
};

}  // namespace guozhuang::protocol
