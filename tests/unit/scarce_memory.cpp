#include "scarce_memory.hpp"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <pthread.h>
#include <string_view>

namespace guozhuang::test {
namespace {

constexpr int never = std::numeric_limits<int>::max();

thread_local int allocations_left = never;
thread_local Lack lack = Lack::one;
thread_local bool struck = false;

std::atomic<int> coordinators_left = never;

bool is_coordinator() noexcept {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    return std::string_view(name) == "gz-coordinator";
}

bool fails() noexcept {
    if (allocations_left != never && allocations_left-- <= 0) {
        struck = true;
        if (lack == Lack::one) allocations_left = never;
        return true;
    }
    return coordinators_left.load() != never && is_coordinator() &&
           coordinators_left.fetch_sub(1) == 0;
}

}  // namespace

Scarcity::Scarcity(int allocations, Lack how_many) noexcept {
    allocations_left = allocations;
    lack = how_many;
    struck = false;
}
Scarcity::~Scarcity() {
    lift();
}
void Scarcity::lift() noexcept {
    allocations_left = never;
}
bool Scarcity::has_struck() noexcept {
    return struck;
}

CoordinatorScarcity::CoordinatorScarcity(int allocations) noexcept {
    coordinators_left = allocations;
}
CoordinatorScarcity::~CoordinatorScarcity() {
    coordinators_left = never;
}
bool CoordinatorScarcity::has_struck() const noexcept {
    return coordinators_left.load() < 0;
}

}  // namespace guozhuang::test

[[gnu::noinline]] void* operator new(std::size_t bytes) {
    if (guozhuang::test::fails()) throw std::bad_alloc();
    if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
// std::stable_sort allocates here, and frees by the operators below.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return std::malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
// The host fake allocates here: no machine has more than `most` bytes.
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
    constexpr auto most = std::size_t{1} << 48;
    const auto unit = static_cast<std::size_t>(alignment);
    return bytes > most ? nullptr : std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
    if (void* memory = ::operator new(bytes, alignment, std::nothrow)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}
