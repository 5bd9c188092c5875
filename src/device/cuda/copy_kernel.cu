// Many copies in one kernel. Each is cut into tiles, and the blocks share the tiles of all copies,
// so the time depends on the bytes, however they are spread over copies. The table of copies is a
// kernel argument, so no memory has to live until the kernel ends.

#include <cstdint>
#include <type_traits>

#include "device/cuda/copy_kernel.hpp"
#include "device/cuda/kernel_elements.hpp"
#include "device/cuda/kernel_shape.hpp"

namespace guozhuang::device {
namespace {

/// How many words a thread reads before it writes them. With four of integers, whose division needs
/// more registers, CUDA 13 spills for compute capability 10.0.
template <class T>
constexpr unsigned words_in_flight = std::is_same_v<T, std::int64_t> ||
                                     std::is_same_v<T, std::uint64_t> ? 2 : 4;
constexpr unsigned tile_bytes = threads_per_block * 4 * pack_bytes;

struct Row {
    std::uint8_t* to;
    const std::uint8_t* from;
    std::size_t bytes;
};

constexpr std::size_t most_argument_bytes = 4096;  // in every version of CUDA
constexpr unsigned most_rows = (most_argument_bytes - 2 * sizeof(unsigned) - sizeof(Finish)) /
                               (sizeof(Row) + sizeof(unsigned));

struct Table {
    Row rows[most_rows];
    unsigned first_tiles[most_rows];  ///< of each row, in all tiles
    unsigned count, tiles;
    Finish finish;
};
static_assert(sizeof(Table) <= most_argument_bytes);

struct Tile {
    std::uint8_t* to;
    const std::uint8_t* from;
    unsigned bytes;
};

/// Finds the last row that begins at this tile or before.
__device__ Tile tile_at(const Table& table, unsigned tile) {
    unsigned row = 0, end = table.count;
    while (end - row > 1) {
        const unsigned middle = (row + end) / 2;
        (table.first_tiles[middle] <= tile ? row : end) = middle;
    }
    const auto& [to, from, bytes] = table.rows[row];
    const std::size_t first = std::size_t{tile - table.first_tiles[row]} * tile_bytes;
    const std::size_t rest = bytes - first;
    return {to + first, from + first, rest < tile_bytes ? static_cast<unsigned>(rest) : tile_bytes};
}

template <class Word>
__device__ void write(Word* to, const Word& word) {
    *to = word;
}
template <class T>
__device__ void write(Pack<T>* to, const Pack<T>& pack) {
    write_pack(to->lane, pack);
}

/// to = change(from) for this many words, by the threads of a block.
template <class Word, class Change>
__device__ void copy_words(Word* to, const Word* from, unsigned count, const Change& change) {
    constexpr unsigned in_flight = words_in_flight<typename Change::Element>;
    for (unsigned first = threadIdx.x; first < count; first += in_flight * blockDim.x) {
        Word words[in_flight];
#pragma unroll
        for (unsigned i = 0; i < in_flight; ++i)
            if (first + i * blockDim.x < count) words[i] = from[first + i * blockDim.x];
#pragma unroll
        for (unsigned i = 0; i < in_flight; ++i)
            if (first + i * blockDim.x < count)
                write(to + first + i * blockDim.x, change(words[i]));
    }
}

/// In words if both sides have the same alignment to a word, and before and after them in elements.
template <class T, class Word, class Change>
__device__ void copy_tile(const Tile& tile, const Change& change) {
    auto* to = reinterpret_cast<T*>(tile.to);
    const auto* from = reinterpret_cast<const T*>(tile.from);
    constexpr unsigned per_word = sizeof(Word) / sizeof(T);
    const unsigned count = tile.bytes / sizeof(T);
    const auto past = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(to) % sizeof(Word));
    const unsigned before = (sizeof(Word) - past) % sizeof(Word) / sizeof(T);
    const unsigned head = before < count ? before : count;
    const unsigned words = (count - head) / per_word;
    const unsigned tail = head + words * per_word;
    copy_words(to, from, head, change);
    copy_words(reinterpret_cast<Word*>(to + head), reinterpret_cast<const Word*>(from + head),
               words, change);
    copy_words(to + tail, from + tail, count - tail, change);
}

/// The bits in which the alignment of the sides differs; 0 if both have the same alignment to a
/// pack.
__device__ unsigned misalignment(const Tile& tile) {
    const auto differing =
        reinterpret_cast<std::uintptr_t>(tile.to) ^ reinterpret_cast<std::uintptr_t>(tile.from);
    return static_cast<unsigned>(differing % pack_bytes);
}

/// Bytes as they are.
class Unchanged {
public:
    using Element = std::uint8_t;
    explicit __device__ Unchanged(const Finish&) {}
    template <class Word>
    __device__ Word operator()(const Word& word) const {
        return word;
    }
    __device__ void copy(const Tile& tile) const {
        const unsigned differing = misalignment(tile);
        if (differing == 0) return copy_tile<std::uint8_t, uint4>(tile, *this);
        if (differing % 4 == 0) return copy_tile<std::uint8_t, std::uint32_t>(tile, *this);
        if (differing % 2 == 0) return copy_tile<std::uint8_t, std::uint16_t>(tile, *this);
        copy_tile<std::uint8_t, std::uint8_t>(tile, *this);
    }
};

template <class T>
class Finished {
public:
    using Element = T;
    explicit __device__ Finished(const Finish& finish) : finish_(finish) {}
    __device__ T operator()(T element) const {
        return Arithmetic<T>::store(finished(Arithmetic<T>::load(element), finish_));
    }
    __device__ Pack<T> operator()(Pack<T> pack) const {
#pragma unroll
        for (unsigned lane = 0; lane < Pack<T>::lanes; ++lane)
            pack.lane[lane] = (*this)(pack.lane[lane]);
        return pack;
    }
    __device__ void copy(const Tile& tile) const {
        if (misalignment(tile) == 0) return copy_tile<T, Pack<T>>(tile, *this);
        copy_tile<T, T>(tile, *this);
    }

private:
    const Finish finish_;
};

template <class Change>
__global__ void __launch_bounds__(threads_per_block)
    copy_kernel(const __grid_constant__ Table table) {
    const Change change(table.finish);
    for (unsigned tile = blockIdx.x; tile < table.tiles; tile += gridDim.x)
        change.copy(tile_at(table, tile));
}

struct Launch {
    Table& table;
    const Multiprocessors& processors;
    cudaStream_t stream;

    template <class Change>
    cudaError_t run_with() const {
        void* arguments[] = {&table};
        const auto blocks = processors.blocks_up_to(table.tiles, copy_kernel<Change>);
        return cudaLaunchKernel(copy_kernel<Change>, dim3(blocks), dim3(threads_per_block),
                                arguments, 0, stream);
    }
    template <class T>
    cudaError_t run() const {
        return run_with<Finished<T>>();
    }
};

struct Load {
    Occupancy& occupancy;

    template <class T>
    cudaError_t run() const {
        return occupancy.load(copy_kernel<Finished<T>>);
    }
};

/// Calls action.run<T>() for the type of a dtype that copies finish, and returns its answer.
template <class Action>
cudaError_t with_finished(DType dtype, const Action& action) {
    switch (dtype) {
        case DType::i64: return action.template run<std::int64_t>();
        case DType::u64: return action.template run<std::uint64_t>();
        default: return with_floating(dtype, action);
    }
}

/// Moves copies into the table, from the first on: as many as one kernel can do.
std::span<const Copy> fill(Table& table, std::span<const Copy> copies) {
    const auto dtype = copies.front().dtype;
    table.count = table.tiles = 0;
    while (!copies.empty() && table.count < most_rows) {
        const auto& [to, from, own_dtype] = copies.front();
        if (!table.finish.is_identity() && own_dtype != dtype) break;
        copies = copies.subspan(1);
        if (to.empty()) continue;
        table.rows[table.count] = {reinterpret_cast<std::uint8_t*>(to.data()),
                                   reinterpret_cast<const std::uint8_t*>(from.data()), to.size()};
        table.first_tiles[table.count++] = table.tiles;
        table.tiles += static_cast<unsigned>((to.size() + tile_bytes - 1) / tile_bytes);
    }
    return copies;
}

}  // namespace

std::size_t full_grid_bytes(const Multiprocessors& processors) {
    return std::size_t{processors.most_blocks(copy_kernel<Unchanged>)} * tile_bytes;
}

cudaError_t launch_copies(std::span<const Copy> copies, const Finish& finish,
                          const Multiprocessors& processors, cudaStream_t stream) {
    Table table{};
    table.finish = finish;
    while (!copies.empty()) {
        const auto dtype = copies.front().dtype;
        copies = fill(table, copies);
        if (table.tiles == 0) continue;
        const Launch launch{table, processors, stream};
        const auto status =
            finish.is_identity() ? launch.run_with<Unchanged>() : with_finished(dtype, launch);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

cudaError_t load_copy_kernels(Occupancy& occupancy) {
    auto status = with_each_floating(Load{occupancy});
    for (const auto dtype : {DType::i64, DType::u64})
        if (status == cudaSuccess) status = with_finished(dtype, Load{occupancy});
    return status == cudaSuccess ? occupancy.load(copy_kernel<Unchanged>) : status;
}

}  // namespace guozhuang::device
