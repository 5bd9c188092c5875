// Memory that ranks come to share together: all of them have it, or none, for a reason that all
// know.
#include "wire/shm/share_together.hpp"

#include <fstream>
#include <numeric>
#include <stdexcept>

#include "collectives/ring/ring_all_gather.hpp"
#include "support/fakes/inproc_ranks.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/open_files.hpp"
#include "wire/group/group_wire.hpp"
#include "wire/shm/shared_file.hpp"

using namespace guozhuang;
using Offer = wire::SharedFile::Offer;
using Offers = std::vector<Offer>;

namespace {

constexpr int ranks = 4, nobody = -1;
constexpr std::size_t bytes = 100;

/// Faults of a scene, each with its rank.
struct Scene {
    int refuses = nobody, cannot_offer = nobody, cannot_attach = nobody;
    int takes_no_part = nobody;
};

/// The outcome on one rank.
struct Seen {
    std::optional<wire::SharingFailure> failure;
    bool has_attached = false;
    std::vector<int> written_by;  ///< by rank: who has written to the memory; -1: none is there
};

template <class T>
std::vector<T> gather(wire::GroupWire& wire, const T& own) {
    std::vector<T> all(static_cast<std::size_t>(wire.size()));
    all[static_cast<std::size_t>(wire.rank())] = own;
    std::vector<std::span<std::byte>> blocks;
    for (auto& each : all) blocks.push_back(std::as_writable_bytes(std::span(&each, 1)));
    ring::all_gather(wire, blocks);
    return all;
}

Seen share(const Scene& scene, wire::GroupWire& wire) {
    Seen seen;
    std::vector<wire::SharedFile> files(ranks);
    auto& own = files[static_cast<std::size_t>(wire.rank())];
    seen.failure = wire::share_together(
        [&](const auto& report) {
            auto all = gather(wire, report);
            if (scene.takes_no_part != nobody)
                all[static_cast<std::size_t>(scene.takes_no_part)] = {};
            return all;
        },
        [&] {
            if (wire.rank() == scene.refuses)
                throw Error(ErrorCode::invalid_argument, "it is not mine");
            if (wire.rank() == scene.cannot_offer) throw std::runtime_error("there is none");
            own = wire::SharedFile::create(bytes);
            own.memory().front() = static_cast<std::byte>(wire.rank());
            return own.offer();
        },
        [&](const Offers& offers) {
            seen.has_attached = true;
            for (std::size_t rank = 0; rank < offers.size(); ++rank)
                if (&files[rank] != &own && offers[rank].process != 0)
                    files[rank] = wire::SharedFile::attach(offers[rank], bytes);
            if (wire.rank() == scene.cannot_attach) throw std::runtime_error("no room to map it");
        });
    if (seen.failure) return seen;
    for (auto& file : files) {
        file.close_file();
        seen.written_by.push_back(file.memory().empty() ? -1
                                                        : static_cast<int>(file.memory().front()));
    }
    return seen;
}

std::vector<Seen> share_among_ranks(const Scene& scene) {
    std::vector<Seen> all(ranks);
    std::vector<int> group_ranks(ranks);
    std::iota(group_ranks.begin(), group_ranks.end(), 0);
    test::run_inproc_ranks(ranks, [&](wire::Transport& transport) {
        wire::GroupWire wire({.transport = transport,
                              .ranks = group_ranks,
                              .group_rank = transport.rank(),
                              .tag = {0, wire::Lane::host_data}});
        all[static_cast<std::size_t>(transport.rank())] = share(scene, wire);
    });
    return all;
}

/// How many mappings of shared memory this process has.
int mappings() {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);)
        count += line.find("guozhuang-host-memory") != std::string::npos ? 1 : 0;
    return count;
}

/// All ranks name this one and its cause, which it alone has thrown, and nothing is left.
void check_failure(const Scene& scene, int culprit, bool is_refusal, const std::string& cause) {
    const auto files = test::open_files();
    const int mapped = mappings();
    const auto all = share_among_ranks(scene);
    CHECK(test::open_files() == files);
    CHECK(mappings() == mapped);
    for (const auto& seen : all) {
        REQUIRE(seen.failure);
        CHECK(seen.failure->rank == culprit);
        CHECK(seen.failure->is_refusal == is_refusal);
        CHECK(seen.failure->cause == cause);
        CHECK(seen.has_attached == (scene.cannot_attach == culprit));
    }
    for (int rank = 0; rank < ranks; ++rank)
        if (const auto& seen = all[static_cast<std::size_t>(rank)]; rank == culprit)
            CHECK_THROWS_WITH(std::rethrow_exception(seen.failure->own), cause);
}

}  // namespace

TEST_CASE("ranks that all offer and attach see each other's memory, which leaves no file open") {
    const auto files = test::open_files();
    for (const auto& seen : share_among_ranks({})) {
        CHECK_FALSE(seen.failure);
        CHECK(seen.written_by == std::vector{0, 1, 2, 3});
    }
    CHECK(test::open_files() == files);
}

TEST_CASE("what one rank cannot offer no rank attaches to, and all know why") {
    for (const int culprit : {0, 2, 3})
        check_failure({.cannot_offer = culprit}, culprit, false, "there is none");
}

TEST_CASE("what one rank cannot attach to all ranks drop, and all know why") {
    for (const int culprit : {0, 1, 3})
        check_failure({.cannot_attach = culprit}, culprit, false, "no room to map it");
}

TEST_CASE("a refusal goes before a failure of a lower rank") {
    check_failure({.refuses = 3, .cannot_offer = 1}, 3, true, "it is not mine");
}

TEST_CASE("a rank that takes no part offers nothing, and does not keep the others from it") {
    const auto all = share_among_ranks({.cannot_offer = 1, .takes_no_part = 1});
    for (const std::size_t rank : {0u, 2u, 3u}) {
        CHECK_FALSE(all[rank].failure);
        CHECK(all[rank].written_by == std::vector{0, -1, 2, 3});
    }
}
