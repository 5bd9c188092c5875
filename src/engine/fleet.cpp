#include "engine/fleet.hpp"

#include "engine/engine.hpp"

namespace guozhuang::engine {

void Fleet::add(std::uint16_t context, const std::shared_ptr<Engine>& engine) {
    const base::Lock lock(mutex_);
    engines_.insert_or_assign(context, engine);
}

bool Fleet::turns_above(std::uint16_t context) {
    bool progressed = false;
    for_each(context + 1u, [&](Engine& engine, std::uint32_t) { progressed |= engine.take_turn_within(); });
    return progressed;
}

void Fleet::complete_above(std::uint16_t context) noexcept {
    for_each(context + 1u, [](Engine& engine, std::uint32_t) { engine.complete_ended(); });
}

bool Fleet::turns_beside(std::uint16_t context) {
    bool progressed = false;
    for_each(0, [&](Engine& engine, std::uint32_t its) { progressed |= its != context && engine.take_turn(); });
    return progressed;
}

/// A turn may make or end engines: no lock and no iterator is held across it.
template <class Visit>
void Fleet::for_each(std::uint32_t first, Visit&& visit) {
    for (auto context = first; const auto engine = next(context); ++context) visit(*engine, context);
}

std::shared_ptr<Engine> Fleet::next(std::uint32_t& context) {
    const base::Lock lock(mutex_);
    for (auto found = engines_.lower_bound(static_cast<std::uint16_t>(context)); found != engines_.end();) {
        if (auto engine = found->second.lock()) {
            context = found->first;
            return engine;
        }
        found = engines_.erase(found);
    }
    return nullptr;
}

}  // namespace guozhuang::engine
