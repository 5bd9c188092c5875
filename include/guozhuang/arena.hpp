#pragma once

#include <cstddef>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>

/// Memory that every rank of the host has mapped. If the tensors of an allreduce lie in such memory
/// on all ranks, nothing is copied to and fro; they may lie at different offsets on each rank.
/// Tensors in other memory are reduced as always. While an operation is pending, other ranks write
/// to its tensors directly.
///
/// If the ranks are not all on one host, or if one of them cannot share so much memory (this logs
/// one warning), all go on without shared memory.
namespace guozhuang {

class Session;

/// An arena of such memory for new tensors.
///
///     gz::GradientArena arena(64 << 20);
///     std::pmr::vector<float> gradient(count, &arena);
///
/// Allocations start at cache lines; allocating throws std::bad_alloc when the arena is full. As in
/// std::pmr::monotonic_buffer_resource, freed memory is not used again before the arena's end. One
/// thread at a time. A child of fork() sees the parent's current values until it writes to a page;
/// its own writes stay with the child. If the job has ended by an error, a late rank may still
/// write to tensors of operations that failed: do not use their memory for anything else.
class GUOZHUANG_API GradientArena final : public std::pmr::memory_resource {
public:
    /// Collective: every rank of the session (null: Session::current()) makes its arenas and
    /// registrations in the same order; sizes may differ. The memory is allocated at once, in huge
    /// pages where the kernel can make them (Linux 6.1), and zero. Throws std::bad_alloc,
    /// Error(not_initialised), and what operations throw.
    explicit GradientArena(std::size_t bytes, Session* session = nullptr);
    /// The same on a device, where tensors that follow each other are copied as one: for allocate()
    /// alone, since containers would write to it from the host. Not yet mapped by other ranks
    /// (is_shared() is false). The kind of device is the same on all ranks. Also throws Error:
    /// unavailable where the device cannot be used, invalid_argument if there is none of that
    /// index, out_of_memory.
    ///
    ///     gz::GradientArena arena(64 << 20, {gz::DeviceKind::cuda, index});
    ///     auto* gradient = static_cast<float*>(arena.allocate(count * sizeof(float)));
    GradientArena(std::size_t bytes, Device device, Session* session = nullptr);
    /// Not collective. The program must not use the memory any more. Operations may be pending:
    /// those that wait for other ranks go on with a copy of this rank's tensors, those whose data
    /// moves are waited for. Memory that MPI may still write to after a failure stays allocated.
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

/// A tensor of a plan or a registration, with the name that errors give it. The name is the same on
/// all ranks, and unique within a plan.
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
    /// pending: one whose data moves is waited for, others go on with the memory as it is then,
    /// which becomes private; it must outlive them.
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

/// Shares memory that the trainer has, where it is: of each tensor the whole pages, which keep
/// their addresses and contents. Ends that share a page with other data stay private, and are
/// reduced separately. The registration must end before the memory is freed.
///
/// The memory must be ordinary: from malloc, new or an anonymous mmap; not of a file, a stack or a
/// device, nor locked or registered elsewhere. Sharing copies it once, in steps of 16 MiB that
/// exist twice meanwhile, and so does ending, also when the job ends by an error: then a late rank
/// can write to it no more, but what other threads write at that moment may be lost.
///
/// Tensors with the same memory (tied weights) count once. Memory in an arena or in another
/// registration is left there, and shared as long as that lives. Tensors that overlap otherwise, or
/// of which only some pages are in another registration, throw Error(invalid_argument), which names
/// them, on all ranks; on several hosts, where nothing is shared, only on that rank. A warning says
/// so if most of the memory cannot be shared, because the tensors have no whole pages.
///
/// Collective, as a GradientArena's constructor; every rank passes its own tensors, of any number
/// and size. No thread may write to them meanwhile. A child of fork() sees the parent's current
/// values until it writes to a page; its own writes stay with the child. Throws
/// Error(not_initialised) and the errors of operations.
[[nodiscard]] GUOZHUANG_API SharedMemory share(std::span<const NamedTensor> tensors,
                                               Session* session = nullptr);
/// The same for tensors without names; errors call them "tensor 0", "tensor 1" ...
[[nodiscard]] GUOZHUANG_API SharedMemory share(std::span<const TensorView> tensors,
                                               Session* session = nullptr);

}  // namespace guozhuang
