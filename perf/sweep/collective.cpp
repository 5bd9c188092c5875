#include "sweep/collective.hpp"

#include <algorithm>

namespace guozhuang::perf {

std::string_view name_of(Collective collective) noexcept {
    switch (collective) {
        case Collective::allreduce: return "allreduce";
        case Collective::all_gather: return "all_gather";
        case Collective::broadcast: return "broadcast";
        case Collective::reduce_scatter: return "reduce_scatter";
        case Collective::all_to_all: return "all_to_all";
        case Collective::barrier: return "barrier";
    }
    return "";
}

double bus_factor(Collective collective, int ranks) noexcept {
    const double others = static_cast<double>(ranks - 1) / ranks;
    switch (collective) {
        case Collective::allreduce: return 2 * others;
        case Collective::all_gather:
        case Collective::reduce_scatter:
        case Collective::all_to_all: return others;
        case Collective::broadcast: return 1;
        case Collective::barrier: return 0;
    }
    return 0;
}

Case::Share Case::share(int r) const noexcept {
    const auto position = static_cast<std::size_t>(r);
    const auto parts = static_cast<std::size_t>(ranks);
    const std::size_t more = count % parts;
    return {position * (count / parts) + std::min(position, more),
            count / parts + (position < more ? 1 : 0)};
}

std::size_t Case::output_count() const noexcept {
    if (collective == Collective::reduce_scatter) return share(rank).count;
    if (collective == Collective::all_to_all)
        return share(rank).count * static_cast<std::size_t>(ranks);
    return count;
}

void fill_input(const Case& test, const Pattern& pattern, std::span<std::byte> input,
                std::size_t first) {
    pattern.fill(input.first(test.input_count() * size_of(test.dtype)), test.rank, first);
}

namespace {

/// The result as shares, each with one rank's elements. share_of(r) is where r's share starts in
/// r's input.
template <class ShareOf>
std::uint64_t wrong_by_share(const Case& test, const Pattern& pattern,
                             std::span<const std::byte> result, ShareOf share_of) {
    std::uint64_t wrong = 0;
    for (int r = 0; r < test.ranks; ++r) {
        const auto [first, count] = share_of(r);
        const std::size_t bytes = count * size_of(test.dtype);
        wrong += pattern.wrong(result.first(bytes), r, first);
        result = result.subspan(bytes);
    }
    return wrong;
}

}  // namespace

std::uint64_t wrong_elements(const Case& test, const Pattern& pattern,
                             std::span<const std::byte> result, std::size_t first) {
    if (result.size() != test.output_count() * size_of(test.dtype))
        return std::max<std::uint64_t>(test.output_count(), 1);
    const auto own = test.share(test.rank);
    switch (test.collective) {
        case Collective::allreduce: return pattern.wrong_reduced(result, first);
        case Collective::reduce_scatter: return pattern.wrong_reduced(result, first + own.first);
        case Collective::broadcast: return pattern.wrong(result, Case::root, first);
        case Collective::all_gather:
            return wrong_by_share(test, pattern, result, [&](int r) {
                return Case::Share{first, test.share(r).count};
            });
        case Collective::all_to_all:
            return wrong_by_share(test, pattern, result, [&](int) {
                return Case::Share{first + own.first, own.count};
            });
        case Collective::barrier: return 0;
    }
    return 0;
}

}  // namespace guozhuang::perf
