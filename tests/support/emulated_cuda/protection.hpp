#pragma once

#include <cstddef>
#include <span>

namespace guozhuang::emulated_cuda {

/// Device memory carries a protection key of its device, and each thread has its own rights to
/// keys: host threads have none, like every new thread.
bool keys_are_enforced();

/// Gives the memory the key of the device; does nothing if the processor has no keys.
void protect(std::span<std::byte> memory, int device);

/// Memory of which devices the calling thread may touch: bit d is that of device d.
void set_rights(unsigned devices) noexcept;
inline constexpr unsigned no_rights = 0, all_rights = ~0u;

/// Stream threads say so once; the others are the host's.
void become_stream_thread() noexcept;
bool is_stream_thread() noexcept;

/// The one range of addresses in which all device memory lies, with unmapped pages around each
/// piece of it. Empty if the system grants none.
std::span<std::byte> device_addresses();
bool in_device_addresses(const void* address) noexcept;

}  // namespace guozhuang::emulated_cuda
