// The algorithms through arenas of devices, on arenas in memory of the host: each rank is a thread,
// and what it would enqueue on its stream is done at once.
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "collectives/device/arena_exchange.hpp"
#include "collectives/device/arena_ring.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using Numbers = std::vector<std::int64_t>;

constexpr std::size_t bytes_of_half = 512;  // so small that tensors take several chunks

struct Arenas {
    explicit Arenas(int count) : ranks(count), memory(static_cast<std::size_t>(count)) {
        for (auto& arena : memory) arena.resize(2 * bytes_of_half);
    }
    int ranks;
    std::vector<std::vector<std::byte>> memory;
    /// By phase, waiter and writer.
    std::array<std::array<std::array<std::atomic<std::uint32_t>, 8>, 8>, 3> words{};
};

/// One tensor of i64 on one rank: rows of two numbers.
struct Tensor {
    Numbers numbers;
    DType dtype = DType::i64;
    Numbers splits = {};
    Numbers rows = {};  ///< of the result
    Numbers result = {};
};

class HostSite {
public:
    struct Copy {
        std::span<std::byte> to;
        std::span<const std::byte> from;
        DType dtype = DType::u8;
    };
    using Copies = std::vector<Copy>;

    HostSite(Arenas& arenas, int rank, int root, std::vector<Tensor>& tensors)
        : arenas_(arenas), rank_(rank), root_(root), tensors_(tensors) {}

    int rank() const { return rank_; }
    int ranks() const { return arenas_.ranks; }
    int root() const { return root_; }
    std::size_t tensors() const { return tensors_.size(); }
    SiteTensor tensor(std::size_t i) const {
        auto& [numbers, dtype, splits, rows, result] = tensors_[i];
        return {.memory = std::as_writable_bytes(std::span(numbers)),
                .dtype = dtype,
                .rows = static_cast<std::int64_t>(numbers.size() / 2),
                .row_bytes = 16,
                .splits = splits};
    }
    std::vector<Numbers> rows() const {
        std::vector<Numbers> all;
        for (const auto& tensor : tensors_) all.push_back(tensor.rows);
        return all;
    }
    std::span<std::byte> result(std::size_t i, std::span<const std::int64_t> rows) const {
        auto& result = tensors_[i].result;
        result.resize(static_cast<std::size_t>(2 * std::accumulate(rows.begin(), rows.end(), 0L)));
        return std::as_writable_bytes(std::span(result));
    }
    /// The tests give all ranks the same numbers.
    Numbers gather(const Numbers& own) const {
        Numbers all;
        for (int peer = 0; peer < ranks(); ++peer) all.insert(all.end(), own.begin(), own.end());
        return all;
    }
    std::size_t half_bytes() const { return bytes_of_half; }
    std::span<std::byte> half(int rank, std::size_t which) const {
        return std::span(arenas_.memory[static_cast<std::size_t>(rank)])
            .subspan(which * bytes_of_half, bytes_of_half);
    }
    void copy(const Copies& copies) {
        for (const auto& [to, from, dtype] : copies) std::ranges::copy(from, to.begin());
        copied_ += copies.size();
    }
    void copy_prescaled(const Copies& copies) { copy(copies); }
    void reduce(DType dtype, std::span<const std::span<std::byte>> outputs,
                const std::vector<std::span<const std::byte>>& inputs) const {
        add(dtype, outputs, inputs);
    }
    void add(DType, std::span<const std::span<std::byte>> outputs,
             const std::vector<std::span<const std::byte>>& inputs) const {
        Numbers sum(outputs.front().size() / 8);
        for (const auto& input : inputs)
            for (std::size_t i = 0; i < sum.size(); ++i)
                sum[i] += reinterpret_cast<const std::int64_t*>(input.data())[i];
        for (const auto& output : outputs)
            std::ranges::copy(std::as_bytes(std::span(sum)), output.begin());
    }
    std::uint32_t take_numbers(std::size_t chunks) {
        return std::exchange(next_, next_ + static_cast<std::uint32_t>(chunks));
    }
    void announce_to(int peer, const Moment& own) { word(own.phase, peer, rank_) = own.count; }
    void wait_for(int peer, const Moment& theirs) {
        while (static_cast<std::int32_t>(word(theirs.phase, rank_, peer) - theirs.count) < 0)
            std::this_thread::yield();
    }
    void meet(std::optional<Moment> own, std::optional<Moment> theirs) {
        for (int peer = 0; peer < ranks(); ++peer)
            if (own && peer != rank_) announce_to(peer, *own);
        for (int peer = 0; peer < ranks(); ++peer)
            if (theirs && peer != rank_) wait_for(peer, *theirs);
    }
    void start_at(std::uint32_t next) { next_ = next; }
    std::uint32_t next() const { return next_; }
    std::size_t copied() const { return copied_; }

private:
    std::atomic<std::uint32_t>& word(Phase phase, int waiter, int writer) const {
        return arenas_.words[static_cast<std::size_t>(phase)][static_cast<std::size_t>(waiter)]
                            [static_cast<std::size_t>(writer)];
    }
    Arenas& arenas_;
    const int rank_, root_;
    std::vector<Tensor>& tensors_;
    std::uint32_t next_ = 0;
    std::size_t copied_ = 0;
};
static_assert(ArenaSite<HostSite>);

/// A rank has this number at `index` of a tensor.
std::int64_t number(int rank, std::size_t tensor, std::size_t index) {
    return 1'000'000 * (rank + 1) + 10'000 * static_cast<std::int64_t>(tensor) +
           static_cast<std::int64_t>(index);
}

/// Tensors of these numbers of rows on one rank.
std::vector<Tensor> tensors_of(int rank, const Numbers& rows) {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        Tensor tensor;
        for (std::size_t at = 0; at < static_cast<std::size_t>(2 * rows[i]); ++at)
            tensor.numbers.push_back(number(rank, i, at));
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

/// Runs the operation twice on each rank, on arenas that it finds as the first run left them.
template <class Operation>
void on_each_rank(int ranks, int root, const Operation& operation,
                  const std::function<std::vector<Tensor>(int)>& given,
                  const std::function<void(int, const std::vector<Tensor>&)>& check) {
    Arenas arenas(ranks);
    std::vector<std::vector<Tensor>> all(static_cast<std::size_t>(ranks));
    std::uint32_t next = 0;
    for (int run = 0; run < 2; ++run) {
        std::vector<std::uint32_t> ends(static_cast<std::size_t>(ranks));
        {
            std::vector<std::jthread> threads;
            for (int rank = 0; rank < ranks; ++rank)
                threads.emplace_back([&, rank] {
                    auto& own = all[static_cast<std::size_t>(rank)];
                    own = given(rank);
                    HostSite site(arenas, rank, root, own);
                    site.start_at(next);
                    operation(site);
                    ends[static_cast<std::size_t>(rank)] = site.next();
                });
        }
        next = ends.front();
        CHECK(ends == std::vector(ends.size(), next));
        for (int rank = 0; rank < ranks; ++rank) check(rank, all[static_cast<std::size_t>(rank)]);
    }
}

const std::vector<Numbers> sizes = {{1}, {0, 3}, {32}, {33, 1, 100}, {200, 0, 31, 32}};

template <class Operation>
void check_allreduce(const Operation& operation) {
    for (const int ranks : {2, 3, 4, 7})
        for (const auto& rows : sizes)
            on_each_rank(
                ranks, 0, operation, [&](int rank) { return tensors_of(rank, rows); },
                [&](int, const std::vector<Tensor>& tensors) {
                    for (std::size_t i = 0; i < tensors.size(); ++i)
                        for (std::size_t at = 0; at < tensors[i].numbers.size(); ++at) {
                            std::int64_t sum = 0;
                            for (int peer = 0; peer < ranks; ++peer) sum += number(peer, i, at);
                            REQUIRE(tensors[i].numbers[at] == sum);
                        }
                });
}

template <class Operation>
void check_broadcast(const Operation& operation) {
    for (const int ranks : {2, 3, 7})
        for (const int root : {0, ranks - 1})
            for (const auto& rows : sizes)
                on_each_rank(
                    ranks, root, operation, [&](int rank) { return tensors_of(rank, rows); },
                    [&](int, const std::vector<Tensor>& tensors) {
                        const auto expected = tensors_of(root, rows);
                        for (std::size_t i = 0; i < tensors.size(); ++i)
                            REQUIRE(tensors[i].numbers == expected[i].numbers);
                    });
}

template <class Operation>
void check_all_gather(const Operation& operation) {
    const auto rows_of = [](int rank) { return Numbers{5 * rank, 40 + rank}; };
    for (const int ranks : {2, 3, 7})
        on_each_rank(
            ranks, 0, operation,
            [&](int rank) {
                auto tensors = tensors_of(rank, rows_of(rank));
                for (std::size_t i = 0; i < tensors.size(); ++i)
                    for (int peer = 0; peer < ranks; ++peer)
                        tensors[i].rows.push_back(rows_of(peer)[i]);
                return tensors;
            },
            [&](int, const std::vector<Tensor>& tensors) {
                for (std::size_t i = 0; i < tensors.size(); ++i) {
                    Numbers expected;
                    for (int peer = 0; peer < ranks; ++peer) {
                        const auto theirs = tensors_of(peer, rows_of(peer))[i].numbers;
                        expected.insert(expected.end(), theirs.begin(), theirs.end());
                    }
                    REQUIRE(tensors[i].result == expected);
                }
            });
}

}  // namespace

TEST_CASE("tensors of a chunk are copied one by one; those of one dtype that follow are a run") {
    Arenas arenas(1);
    auto tensors = tensors_of(0, {2, 3, 4});
    tensors[2].dtype = DType::u64;
    HostSite site(arenas, 0, 0, tensors);
    const guozhuang::arenas::PackedTensors packed(site);
    REQUIRE(packed.chunks() == 1);
    packed.put(0, site.half(0, 0));
    CHECK(site.copied() == 3);
    const auto runs = packed.runs(0);
    REQUIRE(runs.size() == 2);
    CHECK((runs[0].first == 0 && runs[0].bytes == 64 + 48));
    CHECK((runs[1].first == 128 && runs[1].bytes == 64 && runs[1].dtype == DType::u64));
    CHECK(packed.bytes(0) == 192);
}

TEST_CASE("allreduce through arenas") {
    check_allreduce(arenas::exchange<OperationKind::allreduce>);
    check_allreduce(arenas::around<OperationKind::allreduce>);
}

TEST_CASE("broadcast through arenas") {
    check_broadcast(arenas::exchange<OperationKind::broadcast>);
    check_broadcast(arenas::around<OperationKind::broadcast>);
}

TEST_CASE("all_gather of different rows through arenas") {
    check_all_gather(arenas::exchange<OperationKind::all_gather>);
    check_all_gather(arenas::around<OperationKind::all_gather>);
}

TEST_CASE("all_to_all and reduce_scatter through arenas") {
    for (const int ranks : {2, 3, 7}) {
        Numbers splits;
        for (int peer = 0; peer < ranks; ++peer) splits.push_back(7 * peer);
        const auto all = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
        const auto begin_of = [&](int rank) {
            return static_cast<std::size_t>(
                2 * std::accumulate(splits.begin(), splits.begin() + rank, std::int64_t{0}));
        };
        const auto given = [&](int rank, Numbers rows) {
            auto tensors = tensors_of(rank, {all});
            tensors[0].splits = splits;
            tensors[0].rows = std::move(rows);
            return tensors;
        };
        on_each_rank(
            ranks, 0, arenas::exchange<OperationKind::all_to_all>,
            [&](int rank) {
                return given(rank, Numbers(static_cast<std::size_t>(ranks),
                                           splits[static_cast<std::size_t>(rank)]));
            },
            [&](int rank, const std::vector<Tensor>& tensors) {
                Numbers expected;
                for (int peer = 0; peer < ranks; ++peer)
                    for (std::size_t at = begin_of(rank); at < begin_of(rank + 1); ++at)
                        expected.push_back(number(peer, 0, at));
                REQUIRE(tensors[0].result == expected);
            });
        on_each_rank(
            ranks, 0, arenas::exchange<OperationKind::reduce_scatter>,
            [&](int rank) { return given(rank, {splits[static_cast<std::size_t>(rank)]}); },
            [&](int rank, const std::vector<Tensor>& tensors) {
                Numbers expected;
                for (std::size_t at = begin_of(rank); at < begin_of(rank + 1); ++at) {
                    std::int64_t sum = 0;
                    for (int peer = 0; peer < ranks; ++peer) sum += number(peer, 0, at);
                    expected.push_back(sum);
                }
                REQUIRE(tensors[0].result == expected);
            });
    }
}
