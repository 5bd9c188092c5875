#include "backends/device/path_choice.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backends/device/peer_words.hpp"
#include "base/config.hpp"
#include "base/parse.hpp"

namespace guozhuang::backends {
namespace {

using base::DevicePath;

constexpr int most_queues = 32;

std::string why_no_arenas(std::span<const RankDevice> ranks) {
    const auto elsewhere = std::ranges::find_if(
        ranks, [&](const RankDevice& rank) { return rank.host != ranks.front().host; });
    if (elsewhere != ranks.end())
        return fmt::format("ranks 0 and {} of the set are on different hosts",
                           elsewhere - ranks.begin());
    if (ranks.size() > PeerWords::most_ranks)
        return fmt::format("it is for {} ranks at most, and the set has {}", PeerWords::most_ranks,
                           ranks.size());
    return {};
}

std::string why_no_own_order(const PathConditions& conditions) {
    return conditions.reproducible
               ? "GUOZHUANG_REPRODUCIBLE is 1, and its sums have an order of their own"
               : "";
}

std::string why_not_ring(std::span<const RankDevice> ranks, const PathConditions& conditions) {
    if (auto reason = why_no_own_order(conditions); !reason.empty()) return reason;
    return why_no_arenas(ranks);
}

bool may_be(DevicePath path, const PathConditions& conditions) {
    return conditions.wanted == DevicePath::automatic || conditions.wanted == path;
}

std::string why_not_nccl(std::span<const RankDevice> ranks, const PathConditions& conditions) {
    if (conditions.reproducible) return "GUOZHUANG_REPRODUCIBLE is 1";
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const std::string_view text = ranks[rank].nccl.data();
        if (!ranks[rank].has_nccl) return fmt::format("rank {} of the set: {}", rank, text);
        if (text != ranks[0].nccl.data())
            return fmt::format("rank 0 of the set has NCCL {}, and rank {} has {}",
                               ranks[0].nccl.data(), rank, text);
        for (std::size_t other = 0; other < rank; ++other)
            if (ranks[other].host == ranks[rank].host && ranks[other].device == ranks[rank].device)
                return fmt::format("ranks {} and {} of the set share a device", other, rank);
    }
    return {};
}

}  // namespace

/// Default and limits of CUDA_DEVICE_MAX_CONNECTIONS as in the CUDA C++ Programming Guide.
int cuda_queues() {
    constexpr int usual = 8;
    const auto asked =
        base::parse_number<int>(base::environment("CUDA_DEVICE_MAX_CONNECTIONS").value_or(""));
    return asked ? std::clamp(*asked, 1, most_queues) : usual;
}

/// Streams of a process that share a queue run one after the other. If streams of several ranks in
/// the process wait for each other, each needs its own queue: per rank the library's stream and two
/// of the program, and four more for other users of the device.
std::string why_no_path(std::span<const RankDevice> ranks) {
    for (const auto& rank : ranks) {
        const auto sharing = std::ranges::count_if(ranks, [&](const RankDevice& other) {
            return other.host == rank.host && other.process == rank.process &&
                   other.device == rank.device;
        });
        const auto needed = 3 * sharing + 4;
        if (sharing > 1 && rank.queues < needed)
            return fmt::format(
                "{} ranks of one process share a device, and their streams need {} of its queues, "
                "of which CUDA_DEVICE_MAX_CONNECTIONS allows {}: {}let ranks be processes",
                sharing, needed, rank.queues,
                needed > most_queues ? ""
                                     : "set it before the program starts (32 is the most), or ");
    }
    return {};
}

bool may_be_nccl(const PathConditions& conditions) {
    return may_be(DevicePath::nccl, conditions) && !conditions.reproducible;
}

PathChoice choose_paths(std::span<const RankDevice> ranks, const PathConditions& conditions) {
    PathChoice choice;
    const auto consider = [&](DevicePath path, std::string why_not) {
        if (!may_be(path, conditions)) return;
        if (why_not.empty())
            choice.candidates.push_back(path);
        else
            choice.refused.push_back({path, std::move(why_not)});
    };
    consider(DevicePath::nccl, why_not_nccl(ranks, conditions));
    consider(DevicePath::direct, why_no_arenas(ranks));
    consider(DevicePath::ring, why_not_ring(ranks, conditions));
    consider(DevicePath::staged, {});
    return choice;
}

std::string describe(std::span<const RefusedPath> refused, DevicePath wanted) {
    std::string text;
    if (wanted != DevicePath::automatic)
        text = fmt::format("GUOZHUANG_DEVICE_PATH is {}", name_of(wanted));
    for (const auto& [path, reason] : refused)
        text += fmt::format("{}not {}: {}", text.empty() ? "" : "; ", name_of(path), reason);
    return text;
}

}  // namespace guozhuang::backends
