#include "scarcity.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <limits>
#include <linux/futex.h>
#include <new>
#include <pthread.h>
#include <string>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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

std::string failing_call;  // set before there are other threads
std::atomic<long> calls_left{plenty};

/// Whether this system call is the one that fails; sets errno if so.
bool fails(std::string_view call, int error) {
    if (call != failing_call || calls_left.fetch_sub(1) != 0) return false;
    dprintf(STDERR_FILENO, "made %s fail\n", failing_call.c_str());
    errno = error;
    return true;
}

template <class Function>
Function* systems(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// These replace the system's functions for the whole program, its libraries included.
extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
    static auto* const create = systems<decltype(pthread_create)>("pthread_create");
    return threads_left.fetch_sub(1) > 0 ? create(thread, attributes, run, argument) : EAGAIN;
}

int memfd_create(const char* name, unsigned flags) noexcept {
    static auto* const create = systems<int(const char*, unsigned)>("memfd_create");
    return fails("memfd_create", EMFILE) ? -1 : create(name, flags);
}

int ftruncate(int file, off_t bytes) noexcept {
    static auto* const truncate = systems<int(int, off_t)>("ftruncate");
    return fails("ftruncate", ENOSPC) ? -1 : truncate(file, bytes);
}

int posix_fallocate(int file, off_t offset, off_t bytes) {
    static auto* const allocate = systems<int(int, off_t, off_t)>("posix_fallocate");
    return fails("posix_fallocate", ENOSPC) ? ENOSPC : allocate(file, offset, bytes);
}

// NOLINTNEXTLINE(readability-function-size): the parameters are the system's
void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
    static auto* const map = systems<void*(void*, size_t, int, int, int, off_t)>("mmap");
    return fails("mmap", ENOMEM) ? MAP_FAILED : map(at, bytes, protection, flags, file, offset);
}

int madvise(void* memory, size_t bytes, int advice) noexcept {
    static auto* const advise = systems<int(void*, size_t, int)>("madvise");
    return fails("madvise", EINVAL) ? -1 : advise(memory, bytes, advice);
}

int eventfd(unsigned value, int flags) noexcept {
    static auto* const make = systems<int(unsigned, int)>("eventfd");
    return fails("eventfd", EMFILE) ? -1 : make(value, flags);
}

long syscall(long number, ...) noexcept {
    static auto* const call = systems<long(long, ...)>("syscall");
    va_list rest;
    va_start(rest, number);
    long each[6];
    for (auto& argument : each) argument = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_pidfd_open && fails("pidfd_open", EMFILE)) return -1;
    if (number == SYS_mremap && fails("mremap", ENOMEM)) return -1;
    const bool waits = number == SYS_futex && (each[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
    if (waits && fails("futex", EINTR)) return -1;
    return call(number, each[0], each[1], each[2], each[3], each[4], each[5]);
}

}  // extern "C"

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
    if (name == "file_bytes") {
        std::signal(SIGXFSZ, SIG_IGN);  // so that writing beyond it is an error
        limit(RLIMIT_FSIZE, static_cast<rlim_t>(amount));
    }
    if (name == "threads") threads_left = amount;
    if (name == "allocation" || name == "allocations")
        leave_allocations(amount, name == "allocation");
    failing_call = name;
    calls_left = amount;
}

}  // namespace guozhuang::test
