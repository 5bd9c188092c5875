#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace guozhuang::trace {

/// A short text that a process writes now and then and others may read at any time, through memory
/// that they share. Writing costs a few nanoseconds and never waits; of two writers at a time one
/// is ignored. What a reader gets is what was written, whole, or nothing: a writer may have died
/// half-way. Nothing in it is trusted: lengths are checked and what does not print becomes a
/// question mark. Any thread.
class Note {
public:
    /// What is longer is cut, and then ends with a hash of the whole: other texts stay other texts.
    static constexpr std::size_t capacity = 224;

    /// Writes `kind` and `text`, one behind the other.
    void write(std::string_view kind, std::string_view text = {}) noexcept;
    void clear() noexcept { write({}); }

    struct Content {
        std::string kind, text;
    };
    /// Empty if nothing is written, or if it cannot be read.
    std::optional<Content> read() const;

private:
    static constexpr std::size_t words = capacity / sizeof(std::uint64_t);

    std::atomic<std::uint32_t> version_{0};  ///< odd: being written
    std::atomic<std::uint32_t> lengths_{0};  ///< of the kind, and of the text above 16 bits
    std::array<std::atomic<std::uint64_t>, words> bytes_{};
};

/// An operation that has been pending for a while, for those who may be waited for.
struct WaitingSlot {
    std::atomic<bool> taken{false};
    Note note;  ///< "allreduce", "loss" or "loss in process set 0,2"
};

/// What a rank is doing, for those who ask when it is late or dead. Lives where the ranks of a host
/// see each other.
struct alignas(64) Activity {
    /// The last operation that the program asked for: "allreduce", "loss" or "loss in process set
    /// 0,2".
    Note submitted;
    /// Not null as long as that operation is pending; the address means nothing to other ranks.
    std::atomic<const void*> last_pending{nullptr};
    /// The operation whose data moves, or "init" or "shutdown"; cleared at its end.
    Note running;
    /// Operations that are overdue on this rank, in all its process sets; as many as fit.
    std::array<WaitingSlot, 64> waiting;
    /// How many more there were, at the last look.
    std::atomic<std::int64_t> unlisted_count{0};
    /// Why it has quit the job without waiting for the others.
    Note quit_reason;
    /// It has left together with all others: its process may end.
    std::atomic<bool> closed{false};
};

/// Another rank, as far as this one can see it.
struct RankStatus {
    const Activity* activity = nullptr;  ///< valid as long as the rank's doorbell
    std::string process;                 ///< for people: "pid 7, stopped"
    bool is_stopped = false;             ///< nor can it say anything
};

/// A slot of the rank's own, to write what it waits for, until `taken` is cleared; null if all are
/// taken. Any thread of the process.
WaitingSlot* take_slot(Activity& activity) noexcept;

/// "during allreduce 'grad7'", "after it had submitted ...", "before its first operation".
std::string describe(const Activity& activity);

}  // namespace guozhuang::trace
