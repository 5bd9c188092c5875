#include "backends/device/path_choice.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backends/device/peer_words.hpp"

namespace guozhuang::backends {
namespace {

using base::DevicePath;

std::string why_not_direct(std::span<const RankDevice> ranks) {
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

}  // namespace

PathChoice choose_paths(std::span<const RankDevice> ranks, DevicePath wanted) {
    PathChoice choice;
    const auto consider = [&](DevicePath path, std::string why_not) {
        if (wanted != DevicePath::automatic && wanted != path)
            why_not = fmt::format("GUOZHUANG_DEVICE_PATH is {}", name_of(wanted));
        if (why_not.empty())
            choice.candidates.push_back(path);
        else
            choice.refused.push_back({path, std::move(why_not)});
    };
    consider(DevicePath::direct, why_not_direct(ranks));
    consider(DevicePath::staged, {});
    return choice;
}

std::string describe(std::span<const RefusedPath> refused) {
    std::string text;
    for (const auto& [path, reason] : refused)
        text += fmt::format("{}not {}: {}", text.empty() ? "" : "; ", name_of(path), reason);
    return text;
}

}  // namespace guozhuang::backends
