// Many copies in one kernel. Each is cut into tiles, and the blocks share the tiles of all copies:
// so the time goes by the bytes, however they are spread over copies. The table of the copies is an
// argument of the kernel: it needs no memory that would have to live until the kernel ends.

#include <cstdint>

#include "device/cuda/copy_kernel.hpp"
#include "device/cuda/kernel_elements.hpp"
#include "device/cuda/kernel_shape.hpp"

namespace guozhuang::device {
namespace {

/// How many words a thread reads before it writes them.
constexpr unsigned words_in_flight = 4;
constexpr unsigned tile_bytes = threads_per_block * words_in_flight * pack_bytes;

struct Row {
    std::uint8_t* to;
    const std::uint8_t* from;
    std::size_t bytes;
};

constexpr std::size_t most_argument_bytes = 4096;  // in every version of CUDA
constexpr unsigned most_rows = (most_argument_bytes - 16) / (sizeof(Row) + sizeof(unsigned));

struct Table {
    Row rows[most_rows];
    unsigned first_tiles[most_rows];  ///< of each row, in all tiles
    unsigned count, tiles;
    double factor;
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

/// to = change(from), of so many words, by the threads of a block.
template <class Word, class Change>
__device__ void copy_words(Word* to, const Word* from, unsigned count, const Change& change) {
    for (unsigned first = threadIdx.x; first < count; first += words_in_flight * blockDim.x) {
        Word words[words_in_flight];
#pragma unroll
        for (unsigned i = 0; i < words_in_flight; ++i)
            if (first + i * blockDim.x < count) words[i] = from[first + i * blockDim.x];
#pragma unroll
        for (unsigned i = 0; i < words_in_flight; ++i)
            if (first + i * blockDim.x < count)
                write(to + first + i * blockDim.x, change(words[i]));
    }
}

/// In words, to which both sides are aligned alike, and before and after them in elements.
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

/// The bits in which the sides' alignment differs; 0 if both are aligned alike to a pack.
__device__ unsigned misalignment(const Tile& tile) {
    const auto differing =
        reinterpret_cast<std::uintptr_t>(tile.to) ^ reinterpret_cast<std::uintptr_t>(tile.from);
    return static_cast<unsigned>(differing % pack_bytes);
}

/// Bytes as they are.
class Unchanged {
public:
    explicit __device__ Unchanged(double) {}
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
class Scaled {
public:
    explicit __device__ Scaled(double factor) : factor_(factor) {}
    __device__ T operator()(T element) const { return scaled(element, factor_); }
    __device__ Pack<T> operator()(Pack<T> pack) const {
#pragma unroll
        for (unsigned lane = 0; lane < Pack<T>::lanes; ++lane)
            pack.lane[lane] = scaled(pack.lane[lane], factor_);
        return pack;
    }
    __device__ void copy(const Tile& tile) const {
        if (misalignment(tile) == 0) return copy_tile<T, Pack<T>>(tile, *this);
        copy_tile<T, T>(tile, *this);
    }

private:
    double factor_;
};

template <class Change>
__global__ void __launch_bounds__(threads_per_block)
    copy_kernel(const __grid_constant__ Table table) {
    const Change change(table.factor);
    for (unsigned tile = blockIdx.x; tile < table.tiles; tile += gridDim.x)
        change.copy(tile_at(table, tile));
}

struct Launch {
    Table& table;
    int processors;
    cudaStream_t stream;

    template <class Change>
    cudaError_t run_with() const {
        void* arguments[] = {&table};
        return cudaLaunchKernel(copy_kernel<Change>, dim3(blocks_up_to(table.tiles, processors)),
                                dim3(threads_per_block), arguments, 0, stream);
    }
    template <class T>
    cudaError_t run() const {
        return run_with<Scaled<T>>();
    }
};

struct Load {
    template <class T>
    cudaError_t run() const {
        return load(copy_kernel<Scaled<T>>);
    }
};

/// Moves copies into the table: from the first on, as many as one kernel does.
std::span<const Copy> fill(Table& table, std::span<const Copy> copies) {
    const auto dtype = copies.front().dtype;
    table.count = table.tiles = 0;
    while (!copies.empty() && table.count < most_rows) {
        const auto& [to, from, own_dtype] = copies.front();
        if (table.factor != 1 && own_dtype != dtype) break;
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

std::size_t full_grid_bytes(int processors) {
    return std::size_t{most_blocks(processors)} * tile_bytes;
}

cudaError_t launch_copies(std::span<const Copy> copies, double factor, int processors,
                          cudaStream_t stream) {
    Table table{};
    table.factor = factor;
    while (!copies.empty()) {
        const auto dtype = copies.front().dtype;
        copies = fill(table, copies);
        if (table.tiles == 0) continue;
        const Launch launch{table, processors, stream};
        const auto status =
            factor == 1 ? launch.run_with<Unchanged>() : with_floating(dtype, launch);
        if (status != cudaSuccess) return status;
    }
    return cudaSuccess;
}

cudaError_t load_copy_kernels() {
    const auto status = with_each_floating(Load{});
    return status == cudaSuccess ? load(copy_kernel<Unchanged>) : status;
}

}  // namespace guozhuang::device
