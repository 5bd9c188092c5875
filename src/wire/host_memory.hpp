#pragma once

#include <cstddef>
#include <utility>

#include "base/activity.hpp"
#include "base/wait.hpp"
#include "wire/message_rings.hpp"
#include "wire/shared_file.hpp"
#include "wire/staging.hpp"

namespace guozhuang::wire {

/// Memory that the ranks of one host have all mapped: a doorbell for each (MPI cannot wake a process that sleeps, a futex word can), what each
/// is doing, rings for their messages and, if wanted, a stage for each.
///
/// The host's first rank creates it, the others attach (see SharedFile); each reserves its own part. Not thread-safe, except for the bells and the
/// stages themselves.
class HostMemory {
public:
    using Offer = SharedFile::Offer;
    struct Size {
        int ranks = 1;
        std::size_t stage_bytes = 0;  ///< of each rank; whole pages, 0 for none
    };

    static HostMemory create(const Size& size);
    static HostMemory attach(const Offer& offer, const Size& size);

    Offer offer() const noexcept { return file_.offer(); }
    void close_file() noexcept { file_.close_file(); }
    /// Makes this rank's stage real memory, before anybody touches it.
    void reserve_stage(int rank);

    int ranks() const noexcept { return size_.ranks; }
    /// The bell of the host's i-th rank. Valid while this object lives, as are the stages.
    base::Doorbell& bell(int rank) noexcept;
    base::Activity& activity(int rank) noexcept;
    MessageRings rings() noexcept;
    Staging staging() noexcept;

private:
    HostMemory(SharedFile file, const Size& size) : file_(std::move(file)), size_(size) {}
    template <class T>
    T* at(std::size_t offset) noexcept;

    SharedFile file_;
    Size size_;
};

}  // namespace guozhuang::wire
