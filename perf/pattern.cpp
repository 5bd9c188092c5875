#include "pattern.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>

namespace guozhuang::perf {
namespace {

constexpr std::size_t period = 16381;  // prime: no block or segment size is a multiple of it

bool is_integer(DType dtype) {
    return !is_floating(dtype) && dtype != DType::boolean;
}

/// The number as the dtype stores it: modulo 2^bits for integers, as sums and products wrap. For
/// u64 its bits.
std::int64_t wrapped(DType dtype, std::uint64_t value) {
    switch (dtype) {
        case DType::u8: return static_cast<std::uint8_t>(value);
        case DType::i8: return static_cast<std::int8_t>(value);
        case DType::i16: return static_cast<std::int16_t>(value);
        case DType::i32: return static_cast<std::int32_t>(value);
        case DType::u16: return static_cast<std::uint16_t>(value);
        case DType::u32: return static_cast<std::uint32_t>(value);
        default: return static_cast<std::int64_t>(value);
    }
}

/// The largest number up to which a dtype that does not wrap holds all whole numbers exactly.
std::int64_t largest_exact(DType dtype) {
    switch (dtype) {
        case DType::boolean: return 1;
        case DType::bf16: return 256;
        case DType::f16: return 2048;
        default: return 1 << 24;
    }
}

std::int64_t input(std::optional<ReduceOp> op, DType dtype, int ranks, std::uint64_t hash) {
    // The factors of a product are odd, so none makes it 0.
    if (is_integer(dtype)) return wrapped(dtype, op == ReduceOp::product ? hash | 1 : hash);
    const auto draw = static_cast<std::int64_t>(hash >> (dtype == DType::boolean ? 63 : 62));
    if (op == ReduceOp::product) return draw == 3 ? 2 : 1;
    return op == ReduceOp::average ? draw * ranks : draw;  // makes the average a whole number
}

std::uint64_t hash_of(std::size_t index, int rank) {
    std::uint64_t h = (index + 1) * 0x9E3779B97F4A7C15u ^
                      (static_cast<std::uint64_t>(rank) + 1) * 0xC2B2AE3D27D4EB4Fu;
    h = (h ^ (h >> 31)) * 0xD6E8FEB86659FD93u;
    return h ^ (h >> 32);  // the lower bits of a product depend little on its upper factors
}

/// The largest value that a partial reduction can have.
double bound(std::optional<ReduceOp> op, DType dtype, int ranks) {
    const double highest = static_cast<double>(dtype == DType::boolean ? 1 : 3);
    if (op == ReduceOp::sum) return highest * ranks;
    if (op == ReduceOp::average) return highest * ranks * ranks;
    if (op == ReduceOp::product) return std::pow(2.0, ranks);
    return highest;
}

std::int64_t combine(ReduceOp op, DType dtype, std::span<const std::int64_t> values) {
    const auto sum = [&] {
        return wrapped(dtype, std::accumulate(values.begin(), values.end(), std::uint64_t{0},
                                              std::plus<std::uint64_t>()));
    };
    const auto less = [&](std::int64_t a, std::int64_t b) {
        return dtype == DType::u64 ? static_cast<std::uint64_t>(a) < static_cast<std::uint64_t>(b)
                                   : a < b;
    };
    switch (op) {
        case ReduceOp::sum: return sum();
        case ReduceOp::average:
            if (dtype == DType::u64)
                return static_cast<std::int64_t>(static_cast<std::uint64_t>(sum()) / values.size());
            return sum() / static_cast<std::int64_t>(values.size());
        case ReduceOp::min: return *std::min_element(values.begin(), values.end(), less);
        case ReduceOp::max: return *std::max_element(values.begin(), values.end(), less);
        case ReduceOp::product:
            return wrapped(dtype, std::accumulate(values.begin(), values.end(), std::uint64_t{1},
                                                  std::multiplies<std::uint64_t>()));
        case ReduceOp::adasum: return values.front();
    }
    return 0;
}

template <class T>
void store(std::byte* element, T value) {
    std::memcpy(element, &value, sizeof value);
}

std::uint16_t half_bits(std::int64_t value) {
    if (value == 0) return 0;
    // The exponent is at most 11, for 2048.
    const int exponent = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value))) - 1;
    const auto mantissa = static_cast<std::uint64_t>(value) << 10 >> exponent & 0x3FF;
    return static_cast<std::uint16_t>(static_cast<std::uint64_t>(exponent + 15) << 10 | mantissa);
}

void encode(std::byte* element, DType dtype, std::int64_t value) {
    switch (dtype) {
        case DType::u8:
        case DType::i8:
        case DType::boolean: return store(element, static_cast<std::int8_t>(value));
        case DType::i16:
        case DType::u16: return store(element, static_cast<std::int16_t>(value));
        case DType::i32:
        case DType::u32: return store(element, static_cast<std::int32_t>(value));
        case DType::i64:
        case DType::u64: return store(element, value);
        case DType::f16: return store(element, half_bits(value));
        case DType::bf16:
            return store(element,
                         static_cast<std::uint16_t>(
                             std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
        case DType::f32: return store(element, static_cast<float>(value));
        case DType::f64: return store(element, static_cast<double>(value));
    }
}

/// Calls visit(offset in the buffer, offset in the table, bytes) for each run of the buffer within
/// one period.
template <class Visit>
void for_each_run(std::size_t buffer_bytes, std::size_t table_bytes, std::size_t table_offset,
                  Visit visit) {
    for (std::size_t done = 0; done < buffer_bytes;) {
        const std::size_t run = std::min(buffer_bytes - done, table_bytes - table_offset);
        visit(done, table_offset, run);
        done += run;
        table_offset = 0;
    }
}

}  // namespace

Pattern::Pattern(DType dtype, std::optional<ReduceOp> op, int ranks)
    : element_bytes_(size_of(dtype)) {
    if (!is_integer(dtype) && bound(op, dtype, ranks) > static_cast<double>(largest_exact(dtype)))
        throw std::invalid_argument("no exact " + std::string(name_of(*op)) + " of " +
                                    std::string(name_of(dtype)) + " over " + std::to_string(ranks) +
                                    " ranks: check with a wider type or fewer ranks");
    of_rank_.assign(static_cast<std::size_t>(ranks), Table(period * element_bytes_));
    reduced_.resize(op ? period * element_bytes_ : 0);
    std::vector<std::int64_t> values(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < period; ++i) {
        for (int r = 0; r < ranks; ++r) {
            const auto at = static_cast<std::size_t>(r);
            // All ranks have the same input for Adasum, which is exact for equal tensors.
            values[at] = input(op, dtype, ranks, hash_of(i, op == ReduceOp::adasum ? 0 : r));
            encode(of_rank_[at].data() + i * element_bytes_, dtype, values[at]);
        }
        if (op) encode(reduced_.data() + i * element_bytes_, dtype, combine(*op, dtype, values));
    }
}

void Pattern::fill(std::span<std::byte> buffer, int rank, std::size_t first) const {
    const Table& table = of_rank_[static_cast<std::size_t>(rank)];
    for_each_run(buffer.size(), table.size(), first % period * element_bytes_,
                 [&](std::size_t to, std::size_t from, std::size_t bytes) {
                     std::memcpy(buffer.data() + to, table.data() + from, bytes);
                 });
}

std::uint64_t Pattern::wrong(std::span<const std::byte> buffer, int rank, std::size_t first) const {
    return differences(of_rank_[static_cast<std::size_t>(rank)], buffer, first);
}

std::uint64_t Pattern::wrong_reduced(std::span<const std::byte> buffer, std::size_t first) const {
    return differences(reduced_, buffer, first);
}

std::uint64_t Pattern::differences(const Table& table, std::span<const std::byte> buffer,
                                   std::size_t first) const {
    std::uint64_t count = 0;
    for_each_run(buffer.size(), table.size(), first % period * element_bytes_,
                 [&](std::size_t at, std::size_t expected, std::size_t bytes) {
                     if (std::memcmp(buffer.data() + at, table.data() + expected, bytes) == 0)
                         return;
                     for (std::size_t i = 0; i < bytes; i += element_bytes_)
                         count += std::memcmp(buffer.data() + at + i, table.data() + expected + i,
                                              element_bytes_) != 0;
                 });
    return count;
}

}  // namespace guozhuang::perf
