#pragma once

#include <algorithm>
#include <array>
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

/// The rooms of a group of threads, and how far each has come. A wait that lasts half a minute is a
/// deadlock.
class Stages {
public:
    static constexpr std::size_t rooms = 3;

    Stages(int ranks, std::size_t room_bytes, bool ranks_share_cores = false)
        : progress_(static_cast<std::size_t>(ranks)),
          notes_(progress_.size() * rooms),
          lines_(progress_.size() * rooms * room_bytes / sizeof(Line)),
          room_bytes_(room_bytes),
          ranks_share_cores_(ranks_share_cores) {}

    int ranks() const { return static_cast<int>(progress_.size()); }
    bool ranks_share_cores() const { return ranks_share_cores_; }
    std::span<std::byte> room(int rank, std::uint64_t round) {
        return std::as_writable_bytes(std::span(lines_))
            .subspan(index(rank, round) * room_bytes_, room_bytes_);
    }
    std::span<std::byte, note_bytes> note(int rank, std::uint64_t round) {
        return notes_[index(rank, round)];
    }
    std::uint64_t round(int rank) {
        const std::lock_guard lock(mutex_);
        return progress_[static_cast<std::size_t>(rank)].published + 1;
    }
    void publish(int rank) {
        const std::lock_guard lock(mutex_);
        ++progress_[static_cast<std::size_t>(rank)].published;
        news_.notify_all();
    }
    void answer(int rank, std::uint64_t round) {
        const std::lock_guard lock(mutex_);
        progress_[static_cast<std::size_t>(rank)].answered = round;
        news_.notify_all();
    }
    void await(std::uint64_t round) { await_all(&Progress::published, round); }
    void await_answers(std::uint64_t round) { await_all(&Progress::answered, round); }

private:
    struct Progress {
        std::uint64_t published = 0, answered = 0;  ///< the last rounds
    };
    struct alignas(scratch_alignment) Line {
        std::byte bytes[scratch_alignment];
    };

    std::size_t index(int rank, std::uint64_t round) const {
        return static_cast<std::size_t>(rank) * rooms + round % rooms;
    }
    void await_all(std::uint64_t Progress::*word, std::uint64_t round) {
        std::unique_lock lock(mutex_);
        const auto all_there = [&] {
            return std::ranges::all_of(progress_,
                                       [&](const Progress& each) { return each.*word >= round; });
        };
        if (!news_.wait_for(lock, std::chrono::seconds(30), all_there))
            throw std::runtime_error("deadlock: a round is never published or answered");
    }

    std::mutex mutex_;
    std::condition_variable news_;
    std::vector<Progress> progress_;
    std::vector<std::array<std::byte, note_bytes>> notes_;
    std::vector<Line> lines_;
    std::size_t room_bytes_;
    bool ranks_share_cores_;
};

/// A PeerMemory between threads. Each time another rank dawdles where it reads or writes, so that a
/// too early overwrite shows. Counts a rank's writes and waits.
class ThreadGroup {
public:
    ThreadGroup(Stages& stages, int rank) : stages_(&stages), rank_(rank) {}

    int rank() const { return rank_; }
    int size() const { return stages_->ranks(); }
    std::uint64_t round() { return stages_->round(rank_); }
    std::span<std::byte> room(int peer, std::uint64_t round) { return stages_->room(peer, round); }
    std::span<std::byte, note_bytes> note(int peer, std::uint64_t round) {
        return stages_->note(peer, round);
    }
    bool ranks_share_cores() const { return stages_->ranks_share_cores(); }
    std::size_t put(std::span<std::byte> room, std::span<const std::byte> bytes) {
        std::ranges::copy(bytes, room.begin());
        return bytes.size();
    }
    void publish(std::size_t bytes) {
        bytes_ += bytes;
        ++rounds_;
        stages_->publish(rank_);
    }
    bool await(std::uint64_t round) {
        stages_->await(round);
        dawdle(round);
        return true;
    }
    void answer(std::uint64_t round, std::size_t bytes) {
        bytes_ += bytes;
        ++answers_;
        stages_->answer(rank_, round);
    }
    void await_answers(std::uint64_t round) {
        stages_->await_answers(round);
        dawdle(round + 1);
    }

    /// From here on all memory of this rank is in this region, except this many bytes at both ends
    /// of each tensor; 0: in no region. `only`: if not empty, only these tensors.
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
    std::size_t answers() const { return answers_; }

private:
    void dawdle(std::uint64_t round) const {
        if ((round + static_cast<std::uint64_t>(rank_)) % 3 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    }

    Stages* stages_;
    int rank_;
    std::size_t bytes_ = 0, rounds_ = 0, answers_ = 0;
    std::uint64_t region_ = 0;
    std::size_t ends_ = 0;
    std::vector<const std::byte*> only_;
};

static_assert(PeerMemory<ThreadGroup>);

}  // namespace guozhuang::test
