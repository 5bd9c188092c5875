#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace guozhuang::trace {

/// A short text that a process writes now and then, and that others may read at any time in memory
/// that they share. A reader gets the whole text or nothing: a writer may have died half-way.
/// Writing costs nanoseconds and never waits; if two threads write at a time, one is ignored.
/// Readers check lengths, and replace unprintable characters by question marks. Any thread.
class Note {
public:
    /// A longer text is cut and ends with a hash of the whole, so texts that differ still do.
    static constexpr std::size_t capacity = 224;

    /// Writes `kind` and `text`.
    void write(std::string_view kind, std::string_view text = {}) noexcept;
    void clear() noexcept { write({}); }

    struct Content {
        std::string kind, text;
    };
    /// Empty if nothing was written, or if it cannot be read.
    std::optional<Content> read() const;

private:
    static constexpr std::size_t words = capacity / sizeof(std::uint64_t);

    std::atomic<std::uint32_t> version_{0};  ///< odd: being written
    std::atomic<std::uint32_t> lengths_{0};  ///< of the kind, and of the text above 16 bits
    std::array<std::atomic<std::uint64_t>, words> bytes_{};
};

/// An operation that has been pending for a while.
struct WaitingSlot {
    std::atomic<bool> taken{false};
    Note note;  ///< "allreduce", "loss" or "loss in process set 0,2"
};

/// A rank's current activity. It lies in shared memory; the other ranks of the host look at it when
/// this rank is late or dead, and tell other hosts (RankStatus).
struct alignas(64) Activity {
    /// The last operation that the program asked for: "allreduce", "loss" or "loss in process set
    /// 0,2".
    Note submitted;
    /// Not null while that operation is pending. The address means nothing to other ranks.
    std::atomic<const void*> last_pending{nullptr};
    /// The operation whose data moves, or "init" or "shutdown"; cleared at its end.
    Note running;
    /// Operations that are overdue on this rank, in all its process sets; as many as fit.
    std::array<WaitingSlot, 64> waiting;
    /// The number of further operations that were overdue at the last look and did not fit.
    std::atomic<std::int64_t> unlisted_count{0};
    /// Why the rank has quit without waiting for the others.
    Note quit_reason;
    /// The rank has closed together with all others, so its process may end.
    std::atomic<bool> closed{false};
};

/// The activity of a rank, as this rank read it, or another one on that rank's host.
struct RankStatus {
    /// For messages: "pid 7, stopped". Empty: nobody on its host answers.
    std::string process = {};
    bool is_stopped = false;  ///< then it writes nothing
    bool is_awaited = false;  ///< its host has been asked: look again a little later
    bool is_crowded = false;  ///< more operations are overdue than `waiting` lists
    std::string doing = {};   ///< as describe() says
    std::vector<Note::Content> waiting = {};  ///< overdue operations
    /// The operation that it submitted last, if that is pending.
    std::optional<Note::Content> last = {};
};

/// Takes a slot of this rank's activity, until its `taken` is cleared; null if all are taken. Any
/// thread of the process.
WaitingSlot* take_slot(Activity& activity) noexcept;

/// "during allreduce 'grad7'", "after it had submitted ...", "before its first operation".
std::string describe(const Activity& activity);

RankStatus status_of(const Activity& activity, std::string process, bool is_stopped);
/// Writes a status for another rank, in at most so many bytes (1000 or more): some of the waiting
/// operations may be left out.
std::string encode(RankStatus status, std::size_t most_bytes);
/// Empty if that is no status.
std::optional<RankStatus> decode(std::string_view text);

}  // namespace guozhuang::trace
