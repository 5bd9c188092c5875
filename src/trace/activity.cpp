#include "trace/activity.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fmt/format.h>
#include <span>
#include <xxhash.h>

namespace guozhuang::trace {
namespace {

constexpr int tries = 100;
constexpr std::size_t longest_kind = Note::capacity / 2;

std::string printable(std::string_view text) {
    std::string result(text);
    const auto does_not_print = [](char c) {
        return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
    };
    std::replace_if(result.begin(), result.end(), does_not_print, '?');
    return result;
}

/// Shortens a text to the room: its beginning, then a hash of the whole.
std::string_view cut(std::string_view text, std::span<char> room) noexcept {
    constexpr std::size_t digits = 16;
    const auto beginning = room.size() - digits - 1;
    text.copy(room.data(), beginning);
    room[beginning] = '~';
    const auto hash = std::to_chars(&room[beginning + 1], room.data() + room.size(),
                                    XXH3_64bits(text.data(), text.size()), digits);
    return {room.data(), hash.ptr};
}

std::string name(const Note::Content& operation) {
    return operation.text.empty() ? operation.kind
                                  : fmt::format("{} '{}'", operation.kind, operation.text);
}

}  // namespace

// Release and acquire on every word instead of fences, which ThreadSanitizer does not know. A
// reader that gets a word of this text then also reads its odd version, or a later one.
void Note::write(std::string_view kind, std::string_view text) noexcept {
    std::array<char, capacity> bytes;
    kind = kind.substr(0, longest_kind);
    kind.copy(bytes.data(), kind.size());
    const auto room = std::span(bytes).subspan(kind.size());
    if (text.size() > room.size())
        text = cut(text, room);
    else
        text.copy(room.data(), text.size());
    const auto used =
        (kind.size() + text.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);
    std::memset(bytes.data() + kind.size() + text.size(), 0,
                used * sizeof(std::uint64_t) - kind.size() - text.size());

    auto version = version_.load(std::memory_order_relaxed);
    if (version % 2 != 0 ||
        !version_.compare_exchange_strong(version, version + 1, std::memory_order_acq_rel))
        return;
    lengths_.store(static_cast<std::uint32_t>(kind.size() | text.size() << 16),
                   std::memory_order_release);
    for (std::size_t i = 0; i < used; ++i) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
        bytes_[i].store(word, std::memory_order_release);
    }
    version_.store(version + 2, std::memory_order_release);
}

std::optional<Note::Content> Note::read() const {
    for (int attempt = 0; attempt < tries; ++attempt) {
        const auto version = version_.load(std::memory_order_acquire);
        const auto lengths = lengths_.load(std::memory_order_acquire);
        const std::size_t kind = lengths & 0xffffu, text = lengths >> 16;
        std::array<char, capacity> bytes;
        for (std::size_t i = 0; i < words; ++i) {
            const auto word = bytes_[i].load(std::memory_order_acquire);
            std::memcpy(bytes.data() + i * sizeof word, &word, sizeof word);
        }
        if (version % 2 != 0 || version_.load(std::memory_order_relaxed) != version) continue;
        if (kind + text == 0 || kind + text > capacity) return std::nullopt;
        const std::string_view all(bytes.data(), kind + text);
        return Content{printable(all.substr(0, kind)), printable(all.substr(kind))};
    }
    return std::nullopt;
}

WaitingSlot* take_slot(Activity& activity) noexcept {
    for (auto& slot : activity.waiting)
        if (!slot.taken.exchange(true)) return &slot;
    return nullptr;
}

std::string describe(const Activity& activity) {
    if (const auto running = activity.running.read())
        return fmt::format("during {}", name(*running));
    if (const auto submitted = activity.submitted.read())
        return fmt::format("after it had submitted {}", name(*submitted));
    return "before its first operation";
}

RankStatus status_of(const Activity& activity, std::string process, bool is_stopped) {
    RankStatus status{.process = std::move(process),
                      .is_stopped = is_stopped,
                      .is_crowded = activity.unlisted_count > 0,
                      .doing = describe(activity)};
    for (const auto& slot : activity.waiting)
        if (auto content = slot.note.read()) status.waiting.push_back(std::move(*content));
    if (activity.last_pending != nullptr) status.last = activity.submitted.read();
    return status;
}

// As lines, since notes have no line breaks.
std::string encode(RankStatus status, std::size_t most_bytes) {
    for (;; status.waiting.pop_back(), status.is_crowded = true) {
        const auto last = status.last.value_or(Note::Content{});
        auto text = fmt::format(
            "{}\n{}{}\n{}\n{}\n{}\n", status.process, status.is_stopped ? "stopped " : "",
            status.is_crowded ? "crowded" : "", status.doing, last.kind, last.text);
        for (const auto& each : status.waiting)
            text += fmt::format("{}\n{}\n", each.kind, each.text);
        if (text.size() <= most_bytes || status.waiting.empty()) return text;
    }
}

std::optional<RankStatus> decode(std::string_view text) {
    std::vector<std::string> lines;
    for (std::size_t end = 0; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
        lines.push_back(printable(text.substr(0, end)));
    constexpr std::size_t first = 5;  // of the operations
    if (!text.empty() || lines.size() < first || lines.size() % 2 != first % 2) return std::nullopt;
    RankStatus status{.process = lines[0],
                      .is_stopped = lines[1].starts_with("stopped"),
                      .is_crowded = lines[1].ends_with("crowded"),
                      .doing = lines[2]};
    if (!lines[3].empty()) status.last = {lines[3], lines[4]};
    for (std::size_t i = first; i < lines.size(); i += 2)
        status.waiting.push_back({lines[i], lines[i + 1]});
    return status;
}

}  // namespace guozhuang::trace
