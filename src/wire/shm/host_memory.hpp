#pragma once

#include <cstddef>
#include <utility>

#include "base/wait.hpp"
#include "trace/activity.hpp"
#include "wire/shm/message_rings.hpp"
#include "wire/shm/shared_file.hpp"

namespace guozhuang::wire {

/// Memory that the ranks of one host have all mapped: a doorbell for each (MPI cannot wake a
/// process that sleeps, a futex word can), what each is doing, and rings for their messages.
///
/// The host's first rank creates it, the others attach (see SharedFile). Not thread-safe, except
/// for the bells themselves.
class HostMemory {
public:
    using Offer = SharedFile::Offer;

    static HostMemory create(int ranks);
    static HostMemory attach(const Offer& offer, int ranks);

    Offer offer() const noexcept { return file_.offer(); }
    void close_file() noexcept { file_.close_file(); }

    int ranks() const noexcept { return ranks_; }
    /// The bell of the host's i-th rank. Valid while this object lives.
    base::Doorbell& bell(int rank) noexcept;
    trace::Activity& activity(int rank) noexcept;
    MessageRings rings() noexcept;

private:
    HostMemory(SharedFile file, int ranks) : file_(std::move(file)), ranks_(ranks) {}
    template <class T>
    T* at(std::size_t offset) noexcept;

    SharedFile file_;
    int ranks_;
};

}  // namespace guozhuang::wire
