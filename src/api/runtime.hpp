#pragma once

#include <cstdint>
#include <guozhuang/session.hpp>
#include <guozhuang/stream.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/host/host_backend.hpp"
#include "base/config.hpp"
#include "base/mutex.hpp"
#include "device/device.hpp"
#include "engine/engine.hpp"
#include "wire/control_channel.hpp"
#include "wire/mail_channel.hpp"
#include "wire/transport.hpp"

namespace guozhuang {

/// Everything one rank needs, and the only thing that owns it. Construction and close() are collective. Otherwise thread-safe.
class Runtime {
public:
    /// Agrees with the other ranks on version and settings, then starts the engine. Throws Error(configuration) on every rank if they differ.
    Runtime(std::unique_ptr<wire::Transport> transport, const base::Settings& settings);
    ~Runtime();
    Runtime(const Runtime&) = delete;
    Runtime& operator=(const Runtime&) = delete;

    engine::Engine& engine() noexcept { return *engine_; }
    wire::Transport& transport() noexcept { return *transport_; }
    const base::Settings& settings() const noexcept { return settings_; }

    /// Makes sure that bundles on this kind of device can be run, and gives its driver; null for the plain host. Throws Error(unavailable) where
    /// they cannot.
    std::shared_ptr<device::Driver> use_device(DeviceKind kind);

    /// A name for a new plan, taken as long as the pointer lives. `wanted` empty: numbered. Throws Error(duplicate_name).
    std::shared_ptr<const std::string> take_plan_name(const std::string& wanted);

    void close();
    void announce_departure(std::string_view reason) noexcept;

private:
    void add_executor(DeviceKind kind, std::shared_ptr<device::Stream> stream, wire::Lane lane);

    base::Settings settings_;
    std::shared_ptr<wire::Transport> transport_;
    std::vector<int> members_;  ///< world ranks by position in the set
    wire::ControlChannel control_;
    wire::MailChannel mail_;
    base::Mutex devices_mutex_;
    std::shared_ptr<device::Driver> fake_ GUOZHUANG_GUARDED_BY(devices_mutex_);
    std::vector<std::unique_ptr<backends::HostBackend>> backends_;
    base::Mutex plans_mutex_;
    std::map<std::string, std::weak_ptr<const std::string>> plans_ GUOZHUANG_GUARDED_BY(plans_mutex_);  ///< by name; expired with the plan
    std::uint64_t unnamed_plans_ GUOZHUANG_GUARDED_BY(plans_mutex_) = 0;                                ///< so far
    std::shared_ptr<engine::Engine> engine_;
};

}  // namespace guozhuang
