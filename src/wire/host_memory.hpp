#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/activity.hpp"
#include "base/wait.hpp"
#include "wire/staging.hpp"

namespace guozhuang::wire {

/// Memory that the ranks of one host have all mapped: a doorbell for each (MPI cannot wake a process that sleeps, a futex word can), what each
/// is doing and, if wanted, a stage for each.
///
/// The host's first rank creates it and gives its `offer()` to the others, which attach; each reserves its own part; once all have,
/// `close_file()` leaves nothing but the mappings. The memory has no name anywhere and cannot be resized, so it can neither be left behind
/// nor shrink under a reader. Creating, attaching and reserving throw Error(unavailable) saying why. Not thread-safe, except for the bells
/// and the stages themselves.
class HostMemory {
public:
    /// What a process needs to attach: plain bytes, to be sent as they are.
    struct Offer {
        std::int64_t process = 0;  ///< 0: there is nothing to attach to
        std::int64_t file = 0;
        std::uint64_t nonce = 0;  ///< also written into the memory: proves that the file found is the file meant
    };
    struct Size {
        int ranks = 1;
        std::size_t stage_bytes = 0;  ///< of each rank; whole pages, 0 for none
    };

    static HostMemory create(const Size& size);
    static HostMemory attach(const Offer& offer, const Size& size);

    HostMemory(HostMemory&& other) noexcept;
    HostMemory& operator=(HostMemory&& other) noexcept;
    ~HostMemory();

    Offer offer() const noexcept;
    void close_file() noexcept;
    /// Makes this rank's stage real memory, near the calling thread: full memory is an error now rather than a SIGBUS at the first touch.
    /// Before anybody touches it.
    void reserve_stage(int rank);

    int ranks() const noexcept { return size_.ranks; }
    /// The bell of the host's i-th rank. Valid while this object lives, as are the stages.
    base::Doorbell& bell(int rank) noexcept;
    base::Activity& activity(int rank) noexcept;
    Staging staging() noexcept;

private:
    HostMemory(int file, const Size& size);
    void map();
    template <class T>
    T* at(std::size_t offset) noexcept;

    void* memory_ = nullptr;
    int file_ = -1;
    Size size_;
};

}  // namespace guozhuang::wire
