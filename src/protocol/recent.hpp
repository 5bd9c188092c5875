#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "protocol/description.hpp"
#include "protocol/name.hpp"

namespace guozhuang::protocol {

/// Names, and descriptions of one tensor, that were made lately. Whoever makes the same again
/// shares them: that takes no memory, and to compare them later is to compare pointers. Not
/// thread-safe.
class Recent {
public:
    static Recent& of_this_thread();

    Name name(std::string_view text);
    /// `description`: without its tensor, and without agreements.
    SharedDescription describe(const Description& description, const TensorDescription& tensor);

private:
    std::array<Name, 4096> names_;                    ///< by their hashes
    std::array<SharedDescription, 64> descriptions_;  ///< by a hash of the tensor
};

}  // namespace guozhuang::protocol
