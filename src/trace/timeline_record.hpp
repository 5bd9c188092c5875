#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace guozhuang::trace {

/// What a timeline says of a request, a bundle or a part. The views are of texts that live for
/// ever.
struct TimelineFacts {
    std::string_view operation = {}, algorithm = {};  ///< empty: not said
    std::size_t bytes = 0, tensors = 0;               ///< 0: not said
    /// The name of the process set; null: the world.
    std::shared_ptr<const std::string> set = {};
};

/// One thing that a timeline has recorded.
struct TimelineRecord {
    enum class Kind : std::uint8_t {
        begin,  ///< of a request, which enters its first phase
        enter,  ///< the request leaves the phase it is in for the next one
        end,    ///< of a request
        slice   ///< of a thread: from one time to the other
    };
    Kind kind = Kind::slice;
    bool failed = false;            ///< end
    int thread = 0;                 ///< slice: the kernel's number
    const void* request = nullptr;  ///< which one, of those that live
    std::int64_t from_ns = 0, at_ns = 0;
    std::string name = {};        ///< begin: of the request, as the user wrote it
    std::string_view phase = {};  ///< begin, enter, slice: what it is called; lives for ever
    TimelineFacts facts = {};     ///< begin, slice
};

/// Where a timeline is recorded.
struct TimelineOwner {
    int rank = 0, ranks = 1;
};

}  // namespace guozhuang::trace
