#include "support/emulated_cuda/protection.hpp"

#include <array>
#include <functional>
#include <sys/mman.h>

#include "support/runner/sanitizer.hpp"

namespace guozhuang::emulated_cuda {
namespace {

constexpr std::size_t address_bytes = std::size_t{256} << 30;
constexpr int most_keys = 8;  // of the processor's 15; devices beyond share

thread_local bool on_stream_thread = false;

struct Keys {
    std::array<int, most_keys> key{};
    bool enforced = !test::under_sanitizer;

    Keys() {
        for (auto& each : key) {
            if (enforced) each = pkey_alloc(0, PKEY_DISABLE_ACCESS);
            enforced = enforced && each > 0;
        }
    }
};

const Keys& keys() {
    static const Keys all;
    return all;
}

}  // namespace

bool keys_are_enforced() {
    return keys().enforced;
}

void protect(std::span<std::byte> memory, int device) {
    if (keys().enforced)
        pkey_mprotect(memory.data(), memory.size(), PROT_READ | PROT_WRITE,
                      keys().key[static_cast<std::size_t>(device % most_keys)]);
}

void set_rights(unsigned devices) noexcept {
    if (!keys().enforced) return;
    unsigned granted = 0;
    for (unsigned device = 0; device < 32; ++device)
        granted |= (devices >> device & 1) << device % most_keys;
    for (unsigned i = 0; i < most_keys; ++i)
        pkey_set(keys().key[i], (granted >> i & 1) != 0 ? 0 : PKEY_DISABLE_ACCESS);
}

void become_stream_thread() noexcept {
    on_stream_thread = true;
}

bool is_stream_thread() noexcept {
    return on_stream_thread;
}

std::span<std::byte> device_addresses() {
    static const std::span<std::byte> all = [] {
        void* start = mmap(nullptr, address_bytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return start == MAP_FAILED
                   ? std::span<std::byte>()
                   : std::span<std::byte>(static_cast<std::byte*>(start), address_bytes);
    }();
    return all;
}

bool in_device_addresses(const void* address) noexcept {
    const auto all = device_addresses();
    const std::less<const void*> before;
    return !all.empty() && !before(address, all.data()) && before(address, all.data() + all.size());
}

}  // namespace guozhuang::emulated_cuda
