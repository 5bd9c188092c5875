#pragma once

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <limits>

#include "wire/messages.hpp"

namespace guozhuang::wire::mpi {

/// The tag of messages that tell other hosts why the job ends.
inline constexpr Tag abort_notice_tag{job_context, Lane::host_data, 0};
/// The tags by which ranks agree on who is left, and make a communicator of these.
inline constexpr Tag roll_call_tag{job_context, Lane::device_data, 0};
inline constexpr Tag survivors_tag{job_context, Lane::point_to_point, 0};

/// The fields of a tag within MPI's tag, from the right: lane, context, user tag.
constexpr int lane_bits = 2, context_bits = 12, user_shift = lane_bits + context_bits;
static_assert(static_cast<int>(last_of(Lane{})) < 1 << lane_bits);

/// `largest`: the largest MPI tag, MPI_TAG_UB.
inline std::uint16_t largest_user_tag(std::int64_t largest) noexcept {
    return static_cast<std::uint16_t>(
        std::min<std::int64_t>(largest >> user_shift, std::numeric_limits<std::uint16_t>::max()));
}

/// Throws Error(invalid_argument) for a context or user tag that does not fit into MPI's tag.
inline int encode(Tag tag, std::int64_t largest) {
    const std::int64_t code = (std::int64_t{tag.user} << user_shift) | (tag.context << lane_bits) |
                              static_cast<int>(tag.lane);
    if (tag.context >= 1 << context_bits)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("too many process sets: {}", tag.context));
    if (code > largest)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("tag {} is too large for this MPI: at most {}", tag.user,
                                largest_user_tag(largest)));
    return static_cast<int>(code);
}

}  // namespace guozhuang::wire::mpi
