// Arenas, and memory that is shared in place, of ranks that are threads.
#include <atomic>
#include <cstdio>
#include <fstream>
#include <sys/mman.h>

#include "support/cases/arena_cases.hpp"
#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/sanitizer.hpp"
#include "wire/shm/regions.hpp"
#include "wire/shm/shared_file.hpp"
#include "wire/shm/shared_pages.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

TEST_CASE("arenas of threads") {
    for (const int ranks : rank_counts({1, 2, 3, 5}))
        for (const auto& body : all_arena_cases) CHECK(problems_among(ranks, body) == "");
}

TEST_CASE("tensors in arenas and elsewhere, in turns that are drawn") {
    for (std::uint64_t seed = 0; seed < 5; ++seed)
        CHECK(problems_among(3, unequal_arenas, {.turns = seed}) == "");
}

TEST_CASE("sharing is not measured between hosts, in process sets, or on devices") {
    CHECK(problems_among(3, measured_sharing, {.hosts = 2}) == "");
    CHECK(
        problems_among(3, [](Session& session, Report& report) {
            std::vector<float> gradient(many, 7);
            const auto measured = [&](Device device, const ProcessSet& set) {
                const TensorView view(gradient.data(), DType::f32, {many}, device);
                return GradientReducer({{"w", view, view}}, {.process_set = set}).measure_sharing();
            };
            const auto set = ProcessSet::create({0, 2}, &session);
            if (set.contains(session.rank())) {
                const auto in_a_set = measured({}, set);
                report.expect(!in_a_set.possible && !in_a_set.pays(), "in a set");
                report.expect(in_a_set.private_s > 0, "how long a step takes there");
            }
            const auto on_a_device = measured({DeviceKind::cuda, 0}, &session);
            report.expect(!on_a_device.possible && on_a_device.private_s == 0, "on a device");
        }) == "");
}

TEST_CASE("rank 0 says when most of what a trainer shares cannot be shared") {
    std::atomic<bool> is_possible{false};
    const auto warnings_about = [&](std::size_t tensors, std::size_t floats) {
        const LogCapture log;
        CHECK(problems_among(2, [&](Session& session, Report&) {
                  is_possible = can_share();
                  std::vector<std::vector<float>> memory(tensors, std::vector<float>(floats));
                  memory.emplace_back(5000);
                  const std::vector<TensorView> views(memory.begin(), memory.end());
                  static_cast<void>(share(views, &session));
              }) == "");
        return log
            .with(
                "are in whole pages of their own, and so can be shared; the rest is reduced as "
                "other memory is")
            .size();
    };
    const auto of_small_ones = warnings_about(200, 1000);
    CHECK(of_small_ones == (is_possible ? 1 : 0));
    CHECK(warnings_about(2, 50'000) == 0);
}

TEST_CASE("a trial of sharing says once how much cannot be shared") {
    std::atomic<bool> is_possible{false};
    const LogCapture log;
    CHECK(problems_among(2, [&](Session& session, Report& report) {
              std::vector<std::vector<float>> gradients(200, std::vector<float>(1000));
              gradients.emplace_back(5000);
              std::vector<Parameter> parameters;
              for (auto& gradient : gradients)
                  parameters.push_back({text_of("p", parameters.size()), gradient, gradient});
              const auto times =
                  GradientReducer(parameters, {.session = &session}).measure_sharing();
              report.expect_equal(times.possible, can_share(), "whether it can be shared");
              is_possible = times.possible;
          }) == "");
    CHECK(log.with("are in whole pages of their own").size() == (is_possible ? 1 : 0));
}

TEST_CASE("an arena outlives its session") {
    std::unique_ptr<GradientArena> arena;
    CHECK(problems_among(1, [&](Session& session, Report&) {
              arena = std::make_unique<GradientArena>(100, &session);
          }) == "");
    std::pmr::vector<int> numbers(10, 7, arena.get());
    CHECK(numbers.back() == 7);
    CHECK(problems_among(1, [&](Session&, Report& report) {
              allreduce(numbers);
              report.expect_equal(numbers.back(), 7, "the sum");
          }) == "");
}

TEST_CASE("an arena on a device has zeros, and is reduced there") {
    CHECK(problems_among(3, [](Session& session, Report& report) {
              constexpr std::size_t count = 5000;
              const Device device{DeviceKind::cuda, 0};
              GradientArena arena(50'000, device, &session);
              report.expect(!arena.is_shared(), "it is not shared yet");
              TensorView views[2];
              for (auto& view : views) {
                  auto* const numbers = static_cast<float*>(arena.allocate(count * sizeof(float)));
                  report.expect_equal(numbers[count - 1], 0.0F, "at first");
                  numbers[count - 1] = static_cast<float>(session.rank());
                  view = {numbers, DType::f32, {count}, device};
              }
              grouped_allreduce(views);
              for (const auto& view : views)
                  report.expect_equal(static_cast<float*>(view.data)[count - 1], 3.0F, "the sum");
              bool is_full = false;
              try {
                  static_cast<void>(arena.allocate(20'000));
              } catch (const std::bad_alloc&) {
                  is_full = true;
              }
              report.expect(is_full, "there is no more room");
          }) == "");
}

TEST_CASE("an arena on a device that is not there is an error") {
    CHECK(problems_among(2, [](Session& session, Report& report) {
              expect_error(report, ErrorCode::invalid_argument,
                           {"GradientArena: device 7 does not exist"}, [&] {
                               GradientArena(100, {DeviceKind::cuda, 7}, &session);
                           });
          }) == "");
}

TEST_CASE("where memory lies is where its largest part in one range lies") {
    std::vector<std::byte> own(100), theirs(50);
    wire::Regions regions;
    regions.add(7, {{std::span(own).first(60), 1000}, {std::span(own).subspan(70), 60}},
                {own, theirs});
    const auto whole = std::span<const std::byte>(own);
    const auto is = [&](const RegionRef& ref, std::uint64_t offset, std::uint64_t begin,
                        std::uint64_t bytes) {
        return ref.region == 7 && ref.offset == offset && ref.begin == begin && ref.bytes == bytes;
    };
    CHECK(is(regions.locate(whole), 1000, 0, 60));
    CHECK(is(regions.locate(whole.subspan(10, 20)), 1010, 0, 20));
    CHECK(is(regions.locate(whole.subspan(50)), 60, 20, 30));
    CHECK(regions.locate(whole.subspan(60, 10)).region == 0);
    CHECK(regions.locate(theirs).region == 0);
    CHECK(regions.locate({}).region == 0);
    CHECK(regions.at(1, {.region = 7, .offset = 10, .bytes = 40}).data() == theirs.data() + 10);
    CHECK(regions.at(1, {.region = 7, .offset = 10, .bytes = 41}).empty());
    CHECK(regions.at(1, {.region = 7, .offset = ~std::uint64_t{0}, .bytes = 41}).empty());
    CHECK(regions.at(2, {.region = 7, .offset = 0, .bytes = 1}).empty());
    CHECK(regions.at(1, {.region = 6, .offset = 0, .bytes = 1}).empty());
    std::vector<std::byte> other(100);
    const auto later = std::span(other);
    regions.add(9, {{later.subspan(50, 30), 30}, {later.first(30), 0}}, {other});
    CHECK(regions.locate(later.subspan(20, 40)).bytes == 10);
    CHECK(regions.locate(later.subspan(45)).offset == 30);
    CHECK(regions.locate(later.subspan(80)).region == 0);
    CHECK(is(regions.locate(whole), 1000, 0, 60));
    regions.remove(7);
    CHECK(regions.locate(whole).region == 0);
    CHECK(regions.locate(later.subspan(45)).region == 9);
}

namespace {

constexpr std::size_t page = 4096;

/// Pages of its own, as an allocator would map them.
struct Pages {
    std::span<std::byte> memory;

    explicit Pages(std::size_t count)
        : memory(static_cast<std::byte*>(mmap(nullptr, count * page, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
                 count * page) {}
    ~Pages() { munmap(memory.data(), memory.size()); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
};

}  // namespace

TEST_CASE("the whole pages of stretches, those of neighbours joined") {
    const Pages pages(10);
    const auto part = [&](std::size_t first, std::size_t last) {
        return pages.memory.subspan(first, last - first);
    };
    const auto whole = [](std::vector<std::span<std::byte>> stretches) {
        return wire::whole_pages(stretches);
    };
    CHECK(whole({part(0, page)}).front().data() == pages.memory.data());
    CHECK(whole({part(1, 2 * page - 1)}).empty());
    CHECK(whole({part(0, 0)}).empty());
    const auto joined =
        whole({part(3 * page, 4 * page + 7), part(1, page / 2), part(page / 2, 3 * page)});
    REQUIRE(joined.size() == 1);
    CHECK(joined.front().data() == pages.memory.data() + page);
    CHECK(joined.front().size() == 3 * page);
    CHECK(whole({part(0, page + 1), part(page + 2, 4 * page)}).size() == 2);
}

TEST_CASE("memory is shared where it is, and private again afterwards") {
    const Pages pages(4);
    pages.memory[page] = std::byte{1};
    const auto inner = pages.memory.subspan(10, 3 * page);
    auto shared = std::make_unique<wire::SharedPages>(std::span(&inner, 1));
    CHECK(pages.memory[page] == std::byte{1});
    auto peer = wire::SharedFile::attach(shared->file().offer(), 2 * page);
    peer.memory()[0] = std::byte{2};
    CHECK(pages.memory[page] == std::byte{2});
    pages.memory[3 * page - 1] = std::byte{3};
    CHECK(peer.memory().back() == std::byte{3});
    pages.memory[3 * page] = std::byte{4};  // the rest of inner: not a whole page of it
    shared.reset();
    CHECK(pages.memory[page] == std::byte{2});
    CHECK(pages.memory[3 * page] == std::byte{4});
    peer.memory()[0] = std::byte{9};  // a peer that was slow
    CHECK(pages.memory[page] == std::byte{2});
}

TEST_CASE("memory that is moved in several steps keeps what it holds, in both directions") {
    const Pages pages(10'000);
    const auto number_of = [](std::size_t i) { return static_cast<std::byte>(i * 7 + 1); };
    for (std::size_t i = 0; i < pages.memory.size(); i += page / 2) pages.memory[i] = number_of(i);
    const auto wrong = [&] {
        std::size_t count = 0;
        for (std::size_t i = 0; i < pages.memory.size(); i += page / 2)
            count += pages.memory[i] != number_of(i);
        return count;
    };
    {
        wire::SharedPages shared(std::span(&pages.memory, 1));
        REQUIRE(shared.ranges().size() == 1);
        CHECK(shared.ranges().front().memory.size() == pages.memory.size());
        CHECK(wrong() == 0);
        auto peer = wire::SharedFile::attach(shared.file().offer(), shared.file().memory().size());
        const auto its_pages = peer.memory().subspan(shared.ranges().front().offset);
        CHECK(std::ranges::equal(its_pages, pages.memory));
        its_pages.back() = std::byte{9};
    }
    CHECK(wrong() == 0);
    CHECK(pages.memory.back() == std::byte{9});
}

/// How many KiB of the mapping in which the address lies are in huge pages.
std::size_t huge_kib_at(const void* memory) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    std::ifstream maps("/proc/self/smaps");
    bool is_here = false;
    for (std::string line; std::getline(maps, line);) {
        std::uintptr_t begin = 0, end = 0;
        std::size_t kib = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
            is_here = begin <= address && address < end;
        else if (is_here && std::sscanf(line.c_str(), "ShmemPmdMapped: %zu kB", &kib) == 1)
            return kib;
    }
    return 0;
}

TEST_CASE("memory that is shared where it is has huge pages where an arena has") {
    constexpr std::size_t bytes = 8u << 20;
    auto file = wire::SharedFile::create(bytes);
    file.reserve(0, bytes);
    file.use_huge_pages();
    file.memory()[bytes / 2] = std::byte{1};
    Pages pages(bytes / page);
    pages.memory[bytes / 2] = std::byte{7};
    const wire::SharedPages shared(std::span(&pages.memory, 1));
    CHECK(pages.memory[bytes / 2] == std::byte{7});
    if (huge_kib_at(file.memory().data()) > 0)
        CHECK(huge_kib_at(pages.memory.data() + bytes / 2) > 0);
}

TEST_CASE("a peer that wakes after the job has ended cannot write to what was shared") {
    const Pages pages(2);
    wire::SharedPages shared(std::span(&pages.memory, 1));
    auto peer = wire::SharedFile::attach(shared.file().offer(), 2 * page);
    wire::Regions regions;
    regions.add(1, shared.ranges(), {shared.file().memory(), peer.memory()},
                [&] { shared.make_private(); });
    CHECK(regions.locate(pages.memory).region == 1);
    regions.remove_all();
    CHECK(regions.locate(pages.memory).region == 0);
    peer.memory()[5] = std::byte{9};
    CHECK(pages.memory[5] == std::byte{0});
}

TEST_CASE("what is no ordinary memory is not touched") {
    Pages pages(3);
    const auto all = pages.memory;
    const auto refused = [](std::span<std::byte> memory) {
        try {
            const wire::SharedPages shared(std::span(&memory, 1));
        } catch (const Error& error) {
            return error.code() == ErrorCode::unavailable;
        }
        return false;
    };
    mprotect(all.data() + 2 * page, page, PROT_READ);
    CHECK(refused(all));
    pages.memory = all.first(2 * page);  // the rest may soon be somebody else's
    munmap(all.data() + 2 * page, page);
    CHECK(refused(all));
    auto file = wire::SharedFile::create(4 * page);
    CHECK(refused(file.memory()));
    CHECK_FALSE(refused(pages.memory.first(page)));
}

TEST_CASE("children of a child keep what it has written") {
    const Pages pages(2);
    const wire::SharedPages shared(std::span(&pages.memory, 1));
    base::notice_forks();
    if (const auto child = fork(); child == 0) {
        pages.memory[0] = std::byte{1};
        if (const auto grandchild = fork(); grandchild == 0)
            _exit(pages.memory[0] == std::byte{1} ? 0 : 1);
        int status = -1;
        wait(&status);
        _exit(status == 0 ? 0 : 1);
    }
    int status = -1;
    wait(&status);
    CHECK(status == 0);
    CHECK(pages.memory[0] == std::byte{0});
}

TEST_CASE("what somebody else has mapped meanwhile is left alone") {
    const Pages pages(2);
    {
        const wire::SharedPages shared(std::span(&pages.memory, 1));
        REQUIRE(mmap(pages.memory.data() + page, page, PROT_READ,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    }
    CHECK(pages.memory.back() == std::byte{0});
}
