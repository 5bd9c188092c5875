#pragma once

#include <atomic>
#include <utility>

namespace guozhuang::base {

/// Keeps a thing to the end of the process: what messages that cannot be stopped may still touch after their job has ended. It stays reachable,
/// so that leak checkers do not report it. Any thread.
template <class Thing>
void keep_for_ever(Thing thing) {
    struct Kept {
        Thing thing;
        Kept* next;
    };
    static std::atomic<Kept*> last{nullptr};
    auto* kept = new Kept{std::move(thing), nullptr};
    kept->next = last.exchange(kept);
}

}  // namespace guozhuang::base
