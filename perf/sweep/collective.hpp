#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <guozhuang/types.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pattern.hpp"

namespace guozhuang::perf {

enum class Collective { allreduce, all_gather, broadcast, reduce_scatter, all_to_all, barrier };

inline constexpr std::array all_collectives{Collective::allreduce,  Collective::all_gather,
                                            Collective::broadcast,  Collective::reduce_scatter,
                                            Collective::all_to_all, Collective::barrier};

std::string_view name_of(Collective collective) noexcept;
constexpr bool reduces(Collective collective) noexcept {
    return collective == Collective::allreduce || collective == Collective::reduce_scatter;
}

/// Bus bandwidth is bandwidth times this: what each link carries, comparable between collectives
/// and numbers of ranks. The factors are those of nccl-tests (github.com/NVIDIA/nccl-tests,
/// doc/PERFORMANCE.md).
double bus_factor(Collective collective, int ranks) noexcept;

/// One size of one collective, seen from one rank. `count` follows nccl-tests: the elements of the
/// larger of a rank's two sides, so all ranks' together for all_gather. It need not divide by the
/// ranks: the first count % ranks get one element more.
struct Case {
    Collective collective = Collective::allreduce;
    DType dtype = DType::f32;
    ReduceOp op = ReduceOp::sum;
    std::size_t count = 0;
    int rank = 0;
    int ranks = 1;

    static constexpr int root = 0;

    std::size_t bytes() const noexcept { return count * size_of(dtype); }
    /// Which of `count` elements are r's.
    struct Share {
        std::size_t first;
        std::size_t count;
    };
    Share share(int r) const noexcept;
    std::size_t input_count() const noexcept {
        return collective == Collective::all_gather ? share(rank).count : count;
    }
    std::size_t output_count() const noexcept;
};

/// What this rank contributes, starting at the pattern's element `first`.
void fill_input(const Case& test, const Pattern& pattern, std::span<std::byte> input,
                std::size_t first);

/// Elements of this rank's result that are not what they must be; all of them if the result is of
/// another size.
std::uint64_t wrong_elements(const Case& test, const Pattern& pattern,
                             std::span<const std::byte> result, std::size_t first);

/// One way of running a case again and again, on buffers that outlive it.
class Series {
public:
    virtual ~Series() = default;
    virtual std::string_view name() const noexcept = 0;
    virtual void run() = 0;
    /// Of the last run; valid until the next or until forget().
    virtual std::span<const std::byte> result() const = 0;
    /// Gives the last result's memory back, outside of the timed part.
    virtual void forget() {}
};

/// Through this library: what works in place does so on `input`, the rest returns results that the
/// library allocates.
std::unique_ptr<Series> make_guozhuang_series(const Case& test, std::span<std::byte> input);

}  // namespace guozhuang::perf
