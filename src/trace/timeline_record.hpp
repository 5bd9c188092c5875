#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace guozhuang::trace {

/// Facts of a request, a bundle or fused tensors in a timeline. The views refer to literals.
struct TimelineFacts {
    std::string_view operation = {}, algorithm = {};  ///< empty: not said
    std::size_t bytes = 0, tensors = 0;               ///< 0: not said
    /// The name of the process set; null: the world.
    std::shared_ptr<const std::string> set = {};
};

/// One record of a timeline.
struct TimelineRecord {
    enum class Kind : std::uint8_t {
        begin,  ///< of a request, which enters its first phase
        enter,  ///< the request goes on to its next phase
        end,    ///< of a request
        slice   ///< of a row: from one time to the other
    };
    Kind kind = Kind::slice;
    bool failed = false;            ///< end
    int thread = 0;                 ///< slice: whose row; the thread's number in the kernel
    const void* request = nullptr;  ///< its address
    std::int64_t from_ns = 0, at_ns = 0;
    /// begin: the request's name, as the user wrote it; slice: the row's name, if no thread has it
    std::string name = {};
    std::string_view phase = {};  ///< begin, enter, slice: what it is called; a literal
    TimelineFacts facts = {};     ///< begin, slice
};

/// The rank that a timeline belongs to.
struct TimelineOwner {
    int rank = 0, ranks = 1;
};

}  // namespace guozhuang::trace
