#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <guozhuang/arena.hpp>
#include <memory>
#include <new>
#include <span>
#include <string_view>

#include "mpi_job.hpp"
#include "tensor_device.hpp"

namespace guozhuang::perf {

/// Kinds of memory that tensors may be in.
enum class MemoryKind : std::uint8_t {
    ordinary,  ///< "private": only this process has it
    arena,     ///< a GradientArena
    shared,    ///< of the process, then shared where it is
    device     ///< of a TensorDevice
};
inline constexpr std::array host_memory_kinds = {MemoryKind::ordinary, MemoryKind::arena,
                                                 MemoryKind::shared};
constexpr std::string_view name_of(MemoryKind kind) noexcept {
    switch (kind) {
        case MemoryKind::ordinary: return "private";
        case MemoryKind::arena: return "arena";
        case MemoryKind::shared: return "shared";
        case MemoryKind::device: return "device";
    }
    return "";
}

/// Zeroed memory whose pages have all been touched, so no page fault falls into a measurement.
/// Aligned to cache lines, as a trainer's tensors are.
class Memory {
public:
    static constexpr std::size_t alignment = 64;

    /// Allocates on the device, if there is one, else on the host as `kind` says. Collective if the
    /// ranks share the memory. Throws std::bad_alloc, Error(out_of_memory) for a device, and
    /// Refusal if the ranks cannot share it.
    explicit Memory(std::size_t bytes, MemoryKind kind = MemoryKind::ordinary,
                    const TensorDevice* device = nullptr)
        : bytes_(bytes) {
        if (device != nullptr) {
            on_device_ = device->allocate(round_up(bytes));
            data_ = on_device_.memory.data();
            return;
        }
        if (kind == MemoryKind::arena) {
            arena_ = std::make_unique<GradientArena>(round_up(bytes));
            require(arena_->is_shared());
            data_ = arena_->allocate(round_up(bytes), alignment);
        } else {
            own_.reset(std::aligned_alloc(alignment, round_up(bytes)));
            if (own_ == nullptr) throw std::bad_alloc();
            data_ = own_.get();
        }
        std::memset(data_, 0, round_up(bytes));
        if (kind == MemoryKind::shared) share_in_place();
    }

    std::span<std::byte> all() const noexcept { return {static_cast<std::byte*>(data_), bytes_}; }

    /// The next multiple of the alignment, at least one.
    static constexpr std::size_t round_up(std::size_t bytes) noexcept {
        return (bytes / alignment + (bytes % alignment != 0 || bytes == 0)) * alignment;
    }

private:
    static void require(bool is_shared) {
        if (!is_shared) throw Refusal("the ranks cannot share memory");
    }
    void share_in_place() {
        const TensorView tensor(data_, DType::u8, {static_cast<std::int64_t>(round_up(bytes_))});
        shared_ = share({&tensor, 1});
        require(shared_.is_shared());
    }
    struct Free {
        void operator()(void* data) const noexcept { std::free(data); }
    };
    std::size_t bytes_;
    std::unique_ptr<GradientArena> arena_;
    std::unique_ptr<void, Free> own_;
    device::OwnedMemory on_device_;
    void* data_ = nullptr;
    SharedMemory shared_;
};

}  // namespace guozhuang::perf
