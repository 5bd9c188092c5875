#include "collectives/hierarchical/allreduce.hpp"

#include <deque>

#include "support/cases/bundles.hpp"
#include "support/fakes/thread_group.hpp"
#include "support/runner/catch.hpp"

namespace {

using namespace guozhuang;
using namespace guozhuang::test;
using TensorSpans = std::span<const std::span<std::byte>>;

constexpr std::size_t stage_bytes = std::size_t{64} << 10;
constexpr std::size_t whole = std::size_t{1} << 20;

struct Job {
    int hosts = 0, locals = 0;
    int ranks() const { return hosts * locals; }
};
constexpr Job jobs[] = {{2, 1}, {2, 2}, {2, 3}, {2, 4}, {3, 1}, {3, 2}, {3, 3}, {4, 2}, {5, 2}};

/// What each rank of a job has at hand: a host's ranks are neighbours.
struct Group {
    ThreadGroup local;
    ThreadWire across;
};

/// Runs body(rank, group) on a thread per rank; returns the groups, for their counts.
template <class Body>
std::vector<Group> run_job(const Job& job, const Body& body) {
    std::deque<Stages> hosts;
    for (int host = 0; host < job.hosts; ++host) hosts.emplace_back(job.locals, stage_bytes);
    std::deque<Switchboard> columns;
    for (int local = 0; local < job.locals; ++local) columns.emplace_back(job.hosts);
    std::vector<Group> all_groups;
    for (int rank = 0; rank < job.ranks(); ++rank) {
        const int host = rank / job.locals, local = rank % job.locals;
        all_groups.push_back({{hosts[static_cast<std::size_t>(host)], local},
                              {columns[static_cast<std::size_t>(local)], host}});
    }
    // The board is for the threads and their exceptions: no message goes through it.
    Switchboard board(job.ranks());
    run_ranks(board, [&](int rank) {
        try {
            body(rank, all_groups[static_cast<std::size_t>(rank)]);
        } catch (...) {
            for (auto& column : columns) column.fail();
            throw;
        }
    });
    for (auto& column : columns)
        if (column.unmatched() != 0) throw std::runtime_error("messages left over");
    return all_groups;
}

void hierarchical_allreduce(Group& group, TensorSpans tensors, const Reduce& reduce,
                            const Reduce& within, std::size_t segment_bytes) {
    auto& [local, across] = group;
    const Blocks blocks(tensors, reduce.element_bytes(), local.size() * across.size());
    TestScratch scratch(
        hierarchical::allreduce_scratch_bytes(local, across, blocks, segment_bytes));
    hierarchical::allreduce(local, across, {blocks, scratch.span(), reduce, segment_bytes}, within);
}

/// The serial reference: block b of a tensor is in the ring of local rank b / hosts, and its block
/// b % hosts.
template <class Format>
BundleTensors<typename Format::Element> level_sum(
    const std::vector<BundleTensors<typename Format::Element>>& inputs, const Job& job,
    typename Format::Partial divisor) {
    const ScalarReduce<Format> reduce(divisor), within(1);
    std::vector<BundleTensors<typename Format::Element>> sums;  // by host
    for (int host = 0; host < job.hosts; ++host) {
        const auto first = inputs.begin() + host * job.locals;
        sums.push_back(tree_sum<Format>({first, first + job.locals}, 1));
    }
    auto result = inputs[0];
    const auto hosts = static_cast<std::size_t>(job.hosts),
               blocks = static_cast<std::size_t>(job.ranks());
    for (std::size_t tensor = 0; tensor < result.size(); ++tensor) {
        const auto count = result[tensor].size();
        for (std::size_t block = 0, begin = 0; block < blocks; ++block) {
            const auto length = count / blocks + (block < count % blocks ? 1 : 0);
            const auto part = [&](std::size_t host) {
                return std::as_bytes(std::span(sums[host % hosts][tensor]).subspan(begin, length));
            };
            const auto into =
                std::as_writable_bytes(std::span(result[tensor]).subspan(begin, length));
            if (length != 0) std::memcpy(into.data(), part(block % hosts + 1).data(), into.size());
            for (std::size_t step = 2; step <= hosts; ++step)
                reduce.combine(into, into, part(block % hosts + step));
            reduce.finish(into);
            begin += length;
        }
    }
    return result;
}

/// All jobs, bundles and segment sizes; the bundles of a job one after another through the same
/// stages and wires.
template <class Format>
std::vector<std::string> failures() {
    using Element = typename Format::Element;
    std::vector<std::string> failures;
    for (const auto& job : jobs) {
        struct Case {
            BundleTensors<Element> expected;
            std::vector<BundleTensors<Element>> inputs;
            std::size_t segment_bytes;
        };
        std::vector<Case> cases;
        const auto divisor = static_cast<typename Format::Partial>(job.ranks());
        for (const auto& counts : bundles_for(job.ranks()))
            for (const std::size_t segment_bytes : {std::size_t{64}, std::size_t{1000}, whole}) {
                const auto inputs = inputs_of<Format>(job.ranks(), counts);
                cases.push_back({level_sum<Format>(inputs, job, divisor), inputs, segment_bytes});
            }
        const ScalarReduce<Format> reduce(divisor), within(1);
        run_job(job, [&](int rank, Group& group) {
            for (auto& test : cases)
                hierarchical_allreduce(group, spans_of(test.inputs[static_cast<std::size_t>(rank)]),
                                       reduce, within, test.segment_bytes);
        });
        for (std::size_t i = 0; i < cases.size(); ++i)
            if (!Outcome<Element>{cases[i].inputs, {}}.all_equal(cases[i].expected))
                failures.push_back(std::to_string(job.hosts) + " hosts of " +
                                   std::to_string(job.locals) + ", case " + std::to_string(i));
    }
    return failures;
}

TEST_CASE("the reference of the hierarchical sum is a sum, and not that of the tree or the ring",
          "[hierarchical]") {
    const Job job{.hosts = 3, .locals = 2};
    const auto integers = inputs_of<Plain<std::int64_t>>(job.ranks(), {501});
    CHECK(level_sum<Plain<std::int64_t>>(integers, job, 1) ==
          tree_sum<Plain<std::int64_t>>(integers, 1));
    const auto floats = inputs_of<Plain<float>>(job.ranks(), {501});
    CHECK(level_sum<Plain<float>>(floats, job, 1) != tree_sum<Plain<float>>(floats, 1));
    CHECK(level_sum<Plain<float>>(floats, job, 1) != ring_sum<Plain<float>>(floats, 1));
}

TEST_CASE(
    "hierarchical allreduce is a tree within each host and a ring across, bit for bit, fused or "
    "not",
    "[hierarchical]") {
    CHECK(failures<Plain<std::int64_t>>() == std::vector<std::string>{});
    CHECK(failures<Plain<float>>() == std::vector<std::string>{});
    CHECK(failures<HalfLike>() == std::vector<std::string>{});
}

TEST_CASE("hierarchical allreduce moves what its cost says", "[hierarchical]") {
    for (const auto& job : jobs) {
        auto inputs = inputs_of<Plain<float>>(job.ranks(), {40'099});
        const Blocks blocks(spans_of(inputs[0]), sizeof(float), job.ranks());
        const ScalarReduce<Plain<float>> reduce(1);
        const std::size_t segment_bytes = 256;
        const Chunks chunks(blocks.largest_bytes(), segment_bytes);
        const auto hops = 2 * static_cast<std::size_t>(job.hosts - 1);
        std::size_t across = 0;
        for (const auto& group : run_job(job, [&](int rank, Group& here) {
                 hierarchical_allreduce(here, spans_of(inputs[static_cast<std::size_t>(rank)]),
                                        reduce, reduce, segment_bytes);
             })) {
            // A rank writes the others' shares as they are, and its own one complete.
            CHECK(group.local.bytes() == blocks.total_bytes());
            CHECK(group.local.rounds() == chunks.count() + 3);
            CHECK(group.across.messages() <= hops * chunks.count());
            CHECK(group.across.messages() >= hops * (chunks.count() - 1));
            across += group.across.bytes();
        }
        CHECK(across == hops * blocks.total_bytes());  // what one ring of the hosts would move
    }
}

TEST_CASE("few segments take few rounds", "[hierarchical]") {
    const Job job{.hosts = 2, .locals = 2};
    auto inputs = inputs_of<Plain<float>>(job.ranks(), {1024});
    const ScalarReduce<Plain<float>> reduce(1);
    for (const auto& [segment_bytes, rounds] :
         {std::pair<std::size_t, std::size_t>{1024, 2}, {512, 4}, {256, 7}})
        for (const auto& group : run_job(job, [&](int rank, Group& here) {
                 hierarchical_allreduce(here, spans_of(inputs[static_cast<std::size_t>(rank)]),
                                        reduce, reduce, segment_bytes);
             }))
            CHECK(group.local.rounds() == rounds);
}

TEST_CASE("a stage has room for the segments of so many hosts, or says that it has none",
          "[hierarchical]") {
    CHECK(hierarchical::segment_limit_bytes(std::size_t{2} << 20, 2, 2) == 174'720);
    CHECK(hierarchical::segment_limit_bytes(stage_bytes, 4, 128) == 0);
    for (const auto& [hosts, locals] : jobs) {
        const direct::StageLayout layout(stage_bytes, locals);
        CHECK(hierarchical::segment_limit_bytes(stage_bytes, locals, hosts) *
                  static_cast<std::size_t>(hosts) <=
              layout.segment_bytes());
    }
}

}  // namespace
