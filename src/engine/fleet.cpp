#include "engine/fleet.hpp"

#include "engine/engine.hpp"

namespace guozhuang::engine {

void Fleet::add(std::uint16_t context, const std::shared_ptr<Engine>& engine) {
    const base::Lock lock(mutex_);
    engines_.insert_or_assign(context, engine);
}

bool Fleet::turns_above(std::uint16_t context) {
    return turns(context + 1u, context);
}

bool Fleet::turns_beside(std::uint16_t context) {
    return turns(0, context);
}

/// A turn may make or end engines: no lock and no iterator is held across it.
bool Fleet::turns(std::uint32_t first, std::uint16_t except) {
    bool progressed = false;
    for (auto context = first; const auto engine = next(context); ++context)
        if (context != except) progressed |= engine->take_turn();
    return progressed;
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
