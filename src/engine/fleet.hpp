#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.hpp"

namespace guozhuang::engine {

class Engine;

/// The engines of a rank that has no coordinator threads, by context id: whoever waits for one of them drives them all. Any thread.
///
/// A bundle keeps its driver until its last member has come, and that member may sit in a bundle of another set. So while data moves, engines of
/// higher contexts take turns, and only these: a driver is in bundles of ascending contexts, one within the other. Among the sets that are in
/// the middle of a bundle anywhere, take the one of the highest context. Each of its members is in that bundle, or in none, or in bundles of
/// lower contexts alone, and so comes to it: it ends. Then the same holds for the next; nobody waits for ever.
class Fleet {
public:
    void add(std::uint16_t context, const std::shared_ptr<Engine>& engine);
    /// A turn of every engine above the context, or of every other one; false if none made progress. Throws what ended the job.
    bool turns_above(std::uint16_t context);
    bool turns_beside(std::uint16_t context);
    /// Completes what has ended in turns above the context, by a caller that is in no bundle any more.
    void complete_above(std::uint16_t context) noexcept;

private:
    /// The first engine from this context on; the context is then its own.
    std::shared_ptr<Engine> next(std::uint32_t& context);
    template <class Visit>
    void for_each(std::uint32_t first, Visit&& visit);

    base::Mutex mutex_;
    std::map<std::uint16_t, std::weak_ptr<Engine>> engines_ GUOZHUANG_GUARDED_BY(mutex_);
};

}  // namespace guozhuang::engine
