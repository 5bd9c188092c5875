#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backends/device/path_choice.hpp"
#include "backends/device/path_maker.hpp"
#include "backends/device/paths.hpp"
#include "backends/device/rank_exchange.hpp"
#include "engine/backend.hpp"

namespace guozhuang::backends {

/// Moves a process set's tensors on a device. At the first bundle the ranks tell each other where
/// their devices are, try the possible paths, and choose one for all bundles. A bundle that this
/// path cannot move takes the staged path.
class DeviceBackend final : public engine::StreamBackend {
public:
    struct Dependencies {
        std::string set;  ///< its name for users
        PathConditions conditions;
        /// Called once with the path that bundles take, how much device memory it uses, and why
        /// there is no better one.
        std::function<void(const std::string&)> report;
        PathMaker::Dependencies maker;
    };
    explicit DeviceBackend(Dependencies dependencies)
        : deps_(std::move(dependencies)), maker_(deps_.maker, paths_) {}

    void enqueue(std::shared_ptr<engine::StreamBundle> bundle, device::Stream& stream) override;
    void release() noexcept override { paths_.release(); }
    bool was_released() const noexcept override { return paths_.was_released(); }
    void stop() noexcept override { paths_.stop(); }

private:
    const wire::Group& group() const noexcept { return deps_.maker.group; }
    bool is_of_one_rank() const noexcept { return group().ranks.size() == 1; }
    RankExchange exchange_with(const engine::Bundle& bundle) const {
        return exchange_for(bundle, group(), deps_.maker.driving);
    }
    Path& path_for(const engine::Bundle& bundle);
    Path& choose(const engine::Bundle& first);
    std::string describe_use(std::optional<std::size_t> free_before) const;

    const Dependencies deps_;
    /// Destroyed after the maker, whose thread uses them. They use the maker's resources, but not
    /// in their destructors.
    Paths paths_;
    PathMaker maker_;
    // Used only by the thread that drives.
    Path* chosen_ = nullptr;  ///< null before the first bundle
    Path* staged_ = nullptr;  ///< for bundles that `chosen_` cannot move; null until needed
};

}  // namespace guozhuang::backends
