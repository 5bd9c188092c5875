#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace guozhuang::base {

/// Keeps a thing until the process ends: memory that messages may still access after the job has
/// ended. It stays reachable, so leak checkers do not report it. One call succeeds even without
/// memory, since a lack of memory may have ended the job. Any thread.
template <class Thing>
void keep_for_ever(Thing thing) noexcept {
    struct Kept {
        Thing thing;
        Kept* next;
    };
    static std::atomic<Kept*> last{nullptr};
    alignas(Kept) static std::byte spare[sizeof(Kept)];
    static std::atomic<bool> is_taken{false};
    void* memory = ::operator new(sizeof(Kept), std::nothrow);
    if (memory == nullptr && !is_taken.exchange(true)) memory = spare;
    if (memory == nullptr) std::abort();
    auto* kept = ::new (memory) Kept{std::move(thing), nullptr};
    kept->next = last.exchange(kept);
}

}  // namespace guozhuang::base
