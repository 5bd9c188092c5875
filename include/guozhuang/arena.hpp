#pragma once

#include <cstddef>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>

/// Memory that every rank of the host has mapped. If the tensors of an allreduce lie in such memory
/// on all ranks, they are reduced without copies; their offsets may differ between ranks. Tensors
/// in other memory are reduced as usual. While an operation is pending, other ranks write to its
/// tensors directly.
///
/// If the ranks are not all on one host, or if one of them cannot share that much memory (this logs
/// one warning), all ranks go on without shared memory.
namespace guozhuang {

class Session;

/// An arena of such memory for new tensors.
///
///     gz::GradientArena arena(64 << 20);
///     std::pmr::vector<float> gradient(count, &arena);
///
/// Allocations start at cache lines; allocating throws std::bad_alloc when the arena is full. As in
/// std::pmr::monotonic_buffer_resource, freed memory is not reused while the arena lives. One
/// thread at a time. A child of fork() sees the parent's current values until it writes to a page;
/// its own writes stay with the child. If the job has ended with an error, a late rank may still
/// write to tensors of operations that failed: do not use their memory for anything else.
class GUOZHUANG_API GradientArena final : public std::pmr::memory_resource {
public:
    /// Collective: every rank of the session (null: Session::current()) makes its arenas and
    /// registrations in the same order; sizes may differ. The memory is allocated at once, in huge
    /// pages where the kernel can make them (Linux 6.1), and zero. Throws std::bad_alloc,
    /// Error(not_initialised), and what operations throw.
    explicit GradientArena(std::size_t bytes, Session* session = nullptr);
    /// The same on a device, where adjacent tensors are copied as one. Only for allocate():
    /// containers would write to the memory from the host. Other ranks do not map it yet
    /// (is_shared() is false). The kind of device is the same on all ranks. Also throws Error:
    /// unavailable if the device cannot be used, invalid_argument if no device has that index,
    /// out_of_memory.
    ///
    ///     gz::GradientArena arena(64 << 20, {gz::DeviceKind::cuda, index});
    ///     auto* gradient = static_cast<float*>(arena.allocate(count * sizeof(float)));
    GradientArena(std::size_t bytes, Device device, Session* session = nullptr);
    /// Not collective. The program must not use the memory any more. Operations may be pending:
    /// those that wait for other ranks go on with a copy of this rank's tensors; the destructor
    /// waits for those whose data is moving. Memory that MPI may still write to after a failure
    /// stays allocated.
    ~GradientArena() override;
    GradientArena(const GradientArena&) = delete;
    GradientArena& operator=(const GradientArena&) = delete;

    std::size_t bytes() const noexcept;
    bool is_shared() const noexcept;

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override;
    void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

    struct State;
    std::unique_ptr<State> state_;
};

/// A tensor of a plan or a registration, with its name in errors. The name is the same on all
/// ranks, and unique within a plan.
struct NamedTensor {
    std::string name;
    TensorView tensor;
};

/// The registration that share() returns: the memory is shared as long as it lives. Move-only.
class GUOZHUANG_API SharedMemory {
public:
    SharedMemory() noexcept;
    SharedMemory(SharedMemory&&) noexcept;
    SharedMemory& operator=(SharedMemory&&) noexcept;
    /// Not collective. No thread may write to the memory meanwhile. Operations on it may be
    /// pending: the destructor waits for those whose data is moving; others go on with the memory
    /// as it is then, which becomes private and must outlive them.
    ~SharedMemory();

    /// Whether this shares some of the rank's memory. False if all of it is in an arena or in
    /// another registration.
    bool is_shared() const noexcept;

private:
    friend SharedMemory share(std::span<const NamedTensor>, Session*);
    struct State;
    explicit SharedMemory(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

/// Shares the trainer's memory in place: the whole pages of each tensor, which keep their addresses
/// and contents. The ends of a tensor that lie in a page with other data stay private, and are
/// reduced separately. The registration must end before the memory is freed.
///
/// The memory must be ordinary: from malloc, new or an anonymous mmap; not from a file, a stack or
/// a device, nor locked or registered elsewhere. Sharing copies it once, in steps of 16 MiB that
/// exist twice meanwhile. It is copied again when the registration ends, or when the job ends with
/// an error: after that a late rank can no longer write to it, but what other threads write at that
/// moment may be lost.
///
/// Tensors with the same memory (tied weights) count once. Memory in an arena or in another
/// registration stays there, shared as long as that lives. If tensors overlap in any other way, or
/// only some pages of one are in another registration, all ranks throw Error(invalid_argument),
/// which names them; on several hosts, where nothing is shared, only that rank does. Logs a warning
/// if most of the memory cannot be shared because the tensors have no whole pages.
///
/// Collective, like the constructor of GradientArena; every rank passes its own tensors, any number
/// of any size. No thread may write to them meanwhile. A child of fork() sees the parent's current
/// values until it writes to a page; its own writes stay with the child. Throws
/// Error(not_initialised) and the errors of operations.
[[nodiscard]] GUOZHUANG_API SharedMemory share(std::span<const NamedTensor> tensors,
                                               Session* session = nullptr);
/// The same for tensors without names; errors call them "tensor 0", "tensor 1" ...
[[nodiscard]] GUOZHUANG_API SharedMemory share(std::span<const TensorView> tensors,
                                               Session* session = nullptr);

}  // namespace guozhuang
