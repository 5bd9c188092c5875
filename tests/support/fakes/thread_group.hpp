#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/concepts/peer_memory.hpp"
#include "collectives/layout/scratch.hpp"

namespace guozhuang::test {

/// The stages of a group of threads, and how many rounds each has ended. A wait that lasts half a
/// minute is a deadlock.
class Stages {
public:
    Stages(int ranks, std::size_t stage_bytes)
        : rounds_(static_cast<std::size_t>(ranks)),
          lines_(rounds_.size() * stage_bytes / sizeof(Line)),
          stage_bytes_(stage_bytes) {}

    int ranks() const { return static_cast<int>(rounds_.size()); }
    std::span<std::byte> stage(int rank) {
        return std::as_writable_bytes(std::span(lines_))
            .subspan(static_cast<std::size_t>(rank) * stage_bytes_, stage_bytes_);
    }
    std::uint64_t rounds(int rank) {
        const std::lock_guard lock(mutex_);
        return rounds_[static_cast<std::size_t>(rank)];
    }
    void end_round(int rank) {
        const std::lock_guard lock(mutex_);
        ++rounds_[static_cast<std::size_t>(rank)];
        news_.notify_all();
    }
    /// Returns when every rank has ended as many rounds as this one.
    void await(int rank) {
        std::unique_lock lock(mutex_);
        const auto mine = rounds_[static_cast<std::size_t>(rank)];
        const auto all_there = [&] {
            for (const auto theirs : rounds_)
                if (theirs < mine) return false;
            return true;
        };
        if (!news_.wait_for(lock, std::chrono::seconds(30), all_there))
            throw std::runtime_error("deadlock: a round is never ended");
    }

private:
    struct alignas(scratch_alignment) Line {
        std::byte bytes[scratch_alignment];
    };
    std::mutex mutex_;
    std::condition_variable news_;
    std::vector<std::uint64_t> rounds_;
    std::vector<Line> lines_;
    std::size_t stage_bytes_;
};

/// A PeerMemory between threads. A rank dawdles where it reads and where it writes, each time
/// another one, so what is written over too early is seen; and counts what it stages.
class ThreadGroup {
public:
    ThreadGroup(Stages& stages, int rank) : stages_(&stages), rank_(rank) {}

    int rank() const { return rank_; }
    int size() const { return stages_->ranks(); }
    std::span<std::byte> stage(int peer) { return stages_->stage(peer); }
    std::uint64_t round() { return stages_->rounds(rank_); }
    std::size_t put(std::span<std::byte> room, std::span<const std::byte> bytes) {
        std::ranges::copy(bytes, room.begin());
        return bytes.size();
    }
    void publish(std::size_t bytes) {
        bytes_ += bytes;
        ++rounds_;
        stages_->end_round(rank_);
    }
    void await() {
        stages_->await(rank_);
        if ((round() + static_cast<std::uint64_t>(rank_)) % 3 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    }

    /// From here on all memory of this rank is in that region, but for so many bytes at both ends
    /// of each tensor; in none, if 0. `only`: if it is not empty, no other tensors.
    void open(std::uint64_t region, std::size_t but_at_the_ends = 0,
              std::span<const std::span<std::byte>> only = {}) {
        region_ = region;
        ends_ = but_at_the_ends;
        only_.clear();
        for (const auto memory : only) only_.push_back(memory.data());
    }
    RegionRef locate(std::span<const std::byte> memory) const {
        if (region_ == 0 || memory.size() <= 2 * ends_) return {};
        if (!only_.empty() && std::ranges::find(only_, memory.data()) == only_.end()) return {};
        const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
        return {.region = region_,
                .offset = address + ends_,
                .begin = ends_,
                .bytes = memory.size() - 2 * ends_};
    }
    std::span<std::byte> at(int, const RegionRef& ref) const {
        // NOLINTNEXTLINE(performance-no-int-to-ptr): a thread's memory is everybody's
        auto* const memory = reinterpret_cast<std::byte*>(ref.offset);
        return {memory, ref.bytes};
    }
    void yield_to_others() {}

    std::size_t bytes() const { return bytes_; }
    std::size_t rounds() const { return rounds_; }

private:
    Stages* stages_;
    int rank_;
    std::size_t bytes_ = 0, rounds_ = 0;
    std::uint64_t region_ = 0;
    std::size_t ends_ = 0;
    std::vector<const std::byte*> only_;
};

static_assert(PeerMemory<ThreadGroup>);

}  // namespace guozhuang::test
