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
#include "tensor_device.hpp"

namespace guozhuang::perf {

enum class Collective { allreduce, all_gather, broadcast, reduce_scatter, all_to_all, barrier };

inline constexpr std::array all_collectives{Collective::allreduce,  Collective::all_gather,
                                            Collective::broadcast,  Collective::reduce_scatter,
                                            Collective::all_to_all, Collective::barrier};

std::string_view name_of(Collective collective) noexcept;
constexpr bool reduces(Collective collective) noexcept {
    return collective == Collective::allreduce || collective == Collective::reduce_scatter;
}

constexpr bool is_in_place(Collective collective) noexcept {
    return collective == Collective::allreduce || collective == Collective::broadcast;
}

/// Bus bandwidth is bandwidth times this factor: what each link carries, comparable between
/// collectives and numbers of ranks. The factors are those of nccl-tests
/// (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md).
double bus_factor(Collective collective, int ranks) noexcept;

/// One size of one collective, for one rank. As in nccl-tests, `count` is the elements of the
/// larger of a rank's two buffers: for all_gather that of all ranks together. If it does not divide
/// by the ranks, the first count % ranks get one element more.
struct Case {
    Collective collective = Collective::allreduce;
    DType dtype = DType::f32;
    ReduceOp op = ReduceOp::sum;
    std::size_t count = 0;
    int rank = 0;
    int ranks = 1;

    static constexpr int root = 0;

    std::size_t bytes() const noexcept { return count * size_of(dtype); }
    /// The part of `count` elements that belongs to rank r.
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

/// Fills this rank's input, starting with the pattern's element `first`.
void fill_input(const Case& test, const Pattern& pattern, std::span<std::byte> input,
                std::size_t first);

/// How many elements of this rank's result are wrong; all of them if its size is.
std::uint64_t wrong_elements(const Case& test, const Pattern& pattern,
                             std::span<const std::byte> result, std::size_t first);

/// One way to run a case again and again, on buffers that must outlive it.
class Series {
public:
    virtual ~Series() = default;
    virtual std::string_view name() const noexcept = 0;
    /// Called before each run(), outside of the timed part, when the input is as that run is to
    /// find it.
    virtual void prepare() {}
    virtual void run() = 0;
    /// The result of the last run, until the next run or forget().
    virtual std::span<const std::byte> result() const = 0;
    /// Frees the last result, outside of the timed part.
    virtual void forget() {}
};

/// By this library: collectives that work in place do so on `input`; the others return results that
/// the library allocates, or, of tensors on a device, write them to `output`.
std::unique_ptr<Series> make_guozhuang_series(const Case& test, std::span<std::byte> input,
                                              std::span<std::byte> output,
                                              const TensorDevice* device);

}  // namespace guozhuang::perf
