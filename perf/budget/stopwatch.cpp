#include "budget/stopwatch.hpp"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

namespace {
thread_local std::size_t allocations = 0;
}

// Not inlined: GCC would take new and free() for a pair that does not match.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    ++allocations;
    if (void* const memory = std::malloc(bytes)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

namespace guozhuang::perf {

Stopwatch::Stopwatch() {
    std::vector<double> readings(1000);
    for (auto& reading : readings) {
        start();
        lap(Station::whole);
        reading = take()[Station::whole].ns;
    }
    reading_ns_ = quantile(readings, 0.5);
    start();
    ::operator delete(::operator new(1));
    lap(Station::whole);
    if (take()[Station::whole].allocations != 1)
        throw std::logic_error("allocations are not counted");
}

void Stopwatch::start() {
    allocations_at_start_ = allocations;
    start_ = Clock::now();
}

void Stopwatch::lap(Station station) {
    const std::chrono::duration<double, std::nano> passed = Clock::now() - start_;
    auto& cost = costs_[station];
    cost.ns += passed.count() - reading_ns_;
    cost.allocations += static_cast<double>(allocations - allocations_at_start_);
    start();
}

Costs Stopwatch::take() {
    return std::exchange(costs_, {});
}

}  // namespace guozhuang::perf
