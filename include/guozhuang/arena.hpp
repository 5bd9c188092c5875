#pragma once

#include <cstddef>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>

/// Memory that every rank of the host has mapped: an allreduce of tensors that lie in it, on all
/// ranks, copies nothing to and fro. Tensors may lie at different places on each rank; those in
/// other memory are reduced as always. While an operation is on its way, other ranks write to its
/// tensors directly.
///
/// If the ranks are not all on one host, or one of them cannot share so much memory, all go on as
/// without it; with one warning in the second case.
namespace guozhuang {

class Session;

/// Such memory for new tensors.
///
///     gz::GradientArena arena(64 << 20);
///     std::pmr::vector<float> gradient(count, &arena);
///
/// What is allocated starts at a cache line. What is given back is not used again before the
/// arena's end, as with std::pmr::monotonic_buffer_resource. Allocating throws std::bad_alloc when
/// the arena is full; one thread at a time. What a child of fork() writes there stays with it; what
/// it has not written it sees as its parent has it now. After a job that has ended by an error, a
/// rank that is late may still write to the tensors of what has failed: do not use their memory for
/// anything else.
class GUOZHUANG_API GradientArena final : public std::pmr::memory_resource {
public:
    /// Collective: every rank of the session (null: Session::current()) makes its arenas and
    /// registrations in the same order; sizes may differ. The memory is there from the start, in
    /// huge pages where the kernel can make them (Linux 6.1), and zero. Throws std::bad_alloc,
    /// Error(not_initialised), and what operations throw.
    explicit GradientArena(std::size_t bytes, Session* session = nullptr);
    /// Not collective. The program must not use what lies in it any more. Operations may be
    /// pending: those that wait for other ranks go on with a copy of this rank's tensors, those
    /// whose data moves are waited for. What MPI may still write to after a failure stays
    /// allocated.
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

/// A tensor of a plan or a registration. The name is the same on all ranks, unique within a plan,
/// and what errors call it.
struct NamedTensor {
    std::string name;
    TensorView tensor;
};

/// What share() returns: as long as it lives, the memory is shared. Move-only.
class GUOZHUANG_API SharedMemory {
public:
    SharedMemory() noexcept;
    SharedMemory(SharedMemory&&) noexcept;
    SharedMemory& operator=(SharedMemory&&) noexcept;
    /// Not collective. Nobody may write to the memory meanwhile. Operations on it may be pending:
    /// one whose data moves is waited for, others go on with the memory as it is then, private; it
    /// must outlive them.
    ~SharedMemory();

    /// Whether it holds some of this rank's memory: not where all of it is in an arena, or in
    /// another registration.
    bool is_shared() const noexcept;

private:
    friend SharedMemory share(std::span<const NamedTensor>, Session*);
    struct State;
    explicit SharedMemory(std::unique_ptr<State> state) noexcept;
    std::unique_ptr<State> state_;
};

/// Shares memory that the trainer already has, where it is: of each tensor the whole pages, which
/// keep their addresses and contents (the ends that share a page with something else stay private,
/// and are reduced apart). Before the memory is freed, the registration must have ended. It has to
/// be ordinary memory, from malloc, new or an anonymous mmap: no file's, no stack, no device's, nor
/// locked or registered with anybody else. Costs a copy of the memory at the start (in pieces: 16
/// MiB are there twice) and at the end; or when the job ends by an error, so that a rank that is
/// late writes to it no more: what other threads write to it at that moment may be lost.
///
/// Memory that is given twice (of tied weights) counts once. What lies in an arena, or in another
/// registration, is left as it is: it is shared as long as that lives. Tensors that overlap
/// otherwise, or have only a part of their pages in another registration, are
/// Error(invalid_argument) on all ranks, which names them and the rank; where nothing can be shared
/// (on several hosts), on that rank alone. A warning says so if most
/// of the memory cannot be shared, because the tensors have no whole pages.
///
/// Collective, as a GradientArena's constructor; every rank passes its own tensors, of any number
/// and size. Nobody may write to them meanwhile. What a child of fork() writes there stays with it;
/// what it has not written it sees as its parent has it now. Throws Error(not_initialised), and
/// what operations throw.
[[nodiscard]] GUOZHUANG_API SharedMemory share(std::span<const NamedTensor> tensors,
                                               Session* session = nullptr);
/// The same of tensors that errors call "tensor 0", "tensor 1" ...
[[nodiscard]] GUOZHUANG_API SharedMemory share(std::span<const TensorView> tensors,
                                               Session* session = nullptr);

}  // namespace guozhuang
