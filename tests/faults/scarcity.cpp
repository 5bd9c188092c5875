#include "scarcity.hpp"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <limits>
#include <map>
#include <new>
#include <pthread.h>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr auto plenty = std::numeric_limits<long>::max() / 2;

std::atomic<long> threads_left{plenty}, allocations_left{plenty};
std::atomic<bool> only_one_fails{false};

void limit(int resource, rlim_t amount) {
    rlimit limit{};
    getrlimit(static_cast<decltype(RLIMIT_AS)>(resource), &limit);
    limit.rlim_cur = amount;
    setrlimit(static_cast<decltype(RLIMIT_AS)>(resource), &limit);
}

void leave_files(long amount) {
    limit(RLIMIT_NOFILE, 256);
    std::vector<int> taken;
    for (int file = dup(STDERR_FILENO); file >= 0; file = dup(STDERR_FILENO)) taken.push_back(file);
    for (; amount > 0 && !taken.empty(); --amount, taken.pop_back()) close(taken.back());
}

void leave_memory(long kib) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limit(RLIMIT_AS, pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) +
                         (static_cast<std::size_t>(kib) << 10));
}

void leave_allocations(long amount, bool then_one_fails) {
    only_one_fails = then_one_fails;
    allocations_left = amount;
}

}  // namespace

// Both take the place of the system's for the whole program, its libraries included.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) {
    using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static auto* const create = reinterpret_cast<Create*>(dlsym(RTLD_NEXT, "pthread_create"));
    return threads_left.fetch_sub(1) > 0 ? create(thread, attributes, run, argument) : EAGAIN;
}

[[gnu::noinline]] void* operator new(std::size_t bytes) {
    const auto left = allocations_left.fetch_sub(1);
    if (left == 0 || (left < 0 && !only_one_fails)) throw std::bad_alloc();
    if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

namespace guozhuang::test {

void make_scarce(const std::string& what, int rank) {
    char resource[16], victim[16];
    long amount = 0;
    if (std::sscanf(what.c_str(), "%15[a-z_]@%15[a-z0-9]:%ld", resource, victim, &amount) != 3)
        std::exit(2);
    if (victim != std::string("all") && victim != std::to_string(rank)) return;
    const std::string name = resource;
    if (name == "files") leave_files(amount);
    if (name == "memory") leave_memory(amount);
    if (name == "file_bytes") limit(RLIMIT_FSIZE, static_cast<rlim_t>(amount));
    if (name == "threads") threads_left = amount;
    if (name == "allocation" || name == "allocations")
        leave_allocations(amount, name == "allocation");
}

}  // namespace guozhuang::test
