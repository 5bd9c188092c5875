#pragma once

#include <cstddef>
#include <cstdint>

#include "base/wait.hpp"

namespace guozhuang::wire {

/// The doorbells of the ranks of one host, in memory that they all have mapped: MPI cannot wake a process that sleeps, a futex word can.
///
/// The host's first rank creates them and gives its `offer()` to the others, which attach; once all have, `close_file()` leaves nothing but
/// the mappings. The memory has no name anywhere and cannot be resized, so it can neither be left behind nor shrink under a reader.
/// Creating and attaching throw Error(unavailable) saying why. Not thread-safe, except for the bells themselves.
class Doorbells {
public:
    /// What a process needs to attach: plain bytes, to be sent as they are.
    struct Offer {
        std::int64_t process = 0;  ///< 0: there is nothing to attach to
        std::int64_t file = 0;
        std::uint64_t nonce = 0;  ///< also written into the memory: proves that the file found is the file meant
    };

    static Doorbells create(int ranks);
    static Doorbells attach(const Offer& offer, int ranks);

    Doorbells(Doorbells&& other) noexcept;
    Doorbells& operator=(Doorbells&& other) noexcept;
    ~Doorbells();

    Offer offer() const noexcept;
    void close_file() noexcept;

    int size() const noexcept { return ranks_; }
    /// The bell of the host's i-th rank. Valid while this object lives.
    base::Doorbell& operator[](int rank) noexcept;

private:
    Doorbells(int file, int ranks);
    void map();

    void* memory_ = nullptr;
    int file_ = -1;
    int ranks_ = 0;
};

}  // namespace guozhuang::wire
