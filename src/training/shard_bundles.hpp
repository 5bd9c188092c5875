#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <guozhuang/handle.hpp>
#include <guozhuang/sharded_optimizer.hpp>
#include <string>
#include <vector>

namespace guozhuang {

/// Parameters whose elements, one after the other, are divided among the ranks.
struct ShardBundle {
    std::vector<std::size_t> parameters;
    DType dtype = DType::f32;
    std::size_t count = 0;             ///< elements
    std::vector<std::int64_t> splits;  ///< how many of them each rank owns, in the order of ranks
    std::size_t first = 0, own = 0;    ///< this rank's elements

    std::size_t moments = 0;
    std::vector<std::byte> state;  ///< moment k of this rank's element i is number k * own + i
    std::size_t missing = 0;       ///< gradients that are not marked yet
    ResultHandle reducing;         ///< empty until the gradients of this pass are sent
    Result sum;                    ///< averages of this rank's elements, added up over the passes
    ResultHandle gathering;

    std::size_t width() const noexcept { return size_of(dtype); }
    /// One parameter is moved where it lies; several are packed.
    bool is_packed() const noexcept { return parameters.size() > 1; }
    /// Calls visit(parameter, first element in it, the same element counted from this rank's first,
    /// elements) for each run of this rank's elements.
    template <class Visit>
    void for_own(const std::vector<Parameter>& all, const Visit& visit) const {
        for (std::size_t begin = 0; const auto parameter : parameters) {
            const auto end = begin + all[parameter].value.count();
            const auto from = std::max(begin, first), to = std::min(end, first + own);
            if (from < to) visit(parameter, from - begin, from - first, to - from);
            begin = end;
        }
    }
};

/// Throws Error(invalid_argument) for a mistake of the caller.
[[noreturn]] void refuse_sharded(const std::string& optimizer, const std::string& problem,
                                 const std::string& tensor = {});

/// Lays out the bundles, with a state of zeros, in reverse order of the parameters, the order in
/// which backward finishes them. Throws Error(invalid_argument) as the optimizer's constructor.
std::vector<ShardBundle> shard_bundles(const std::vector<Parameter>& parameters,
                                       const ShardedOptimizerOptions& options,
                                       const detail::ShardRule& rule, const ProcessSet& ranks);

}  // namespace guozhuang
