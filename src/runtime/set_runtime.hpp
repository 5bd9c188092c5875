#pragma once

#include <cstdint>
#include <functional>
#include <guozhuang/types.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/device/launch_order.hpp"
#include "backends/host/host_backend.hpp"
#include "base/config.hpp"
#include "base/mutex.hpp"
#include "engine/engine.hpp"
#include "protocol/group_ranks.hpp"
#include "protocol/request_cache.hpp"
#include "runtime/devices.hpp"
#include "runtime/workspaces.hpp"
#include "trace/timeline.hpp"
#include "wire/group/control_channel.hpp"
#include "wire/group/mail_channel.hpp"
#include "wire/transport.hpp"

namespace guozhuang {

/// The resources that all process sets of a rank share.
struct RankResources {
    std::shared_ptr<wire::Transport> transport;
    base::Config config;
    Devices devices;
    Workspaces workspaces;
    backends::LaunchOrder launch_order;
    std::shared_ptr<backends::ScratchStore> scratch = std::make_shared<backends::ScratchStore>();
    std::shared_ptr<trace::Timeline> timeline = std::make_shared<trace::Timeline>();
};

using engine::SetId;

/// One rank's part of a process set (the world is the first): an engine and everything it needs.
/// Thread-safe.
class SetRuntime final : private engine::DeviceProvider {
public:
    /// `ranks`: ranks of the world, ascending, this one among them. Throws Error(out_of_memory) if
    /// there is no thread for the coordinator. For the world it is collective, and throws what ends
    /// the job.
    SetRuntime(std::shared_ptr<RankResources> resources, SetId id, std::vector<int> ranks);
    ~SetRuntime() override;
    SetRuntime(const SetRuntime&) = delete;
    SetRuntime& operator=(const SetRuntime&) = delete;

    engine::Engine& engine() noexcept { return *engine_; }
    wire::Transport& transport() noexcept { return *resources_->transport; }
    int group_rank() const noexcept { return control_.rank(); }  ///< this rank's
    int size() const noexcept { return control_.size(); }
    const protocol::GroupRanks& group_ranks() const noexcept { return group_ranks_; }

    /// Makes sure that bundles on this device can run, and returns its driver; null for the plain
    /// host. Throws Error: unavailable if they cannot; invalid_argument if this rank has used
    /// another device of the kind in this set, since the other ranks cannot know which of its
    /// bundles may be moved together.
    std::shared_ptr<device::Driver> use_device(Device device);

    /// The device of the kind that this rank uses in this set; if it uses none, the one that its
    /// local rank gives it. Throws Error(unavailable).
    Device own_device(DeviceKind kind);

    /// The driver of a kind of device, for work outside operations on any device of the kind; null
    /// for the plain host. Throws Error(unavailable).
    std::shared_ptr<device::Driver> driver_of(DeviceKind kind);
    /// Waits until a device has reached the event. Throws what ends the job, and Error(unavailable)
    /// if the device has failed.
    void wait_for(const device::Event& event);
    /// See Devices.
    std::string path_of_world() { return resources_->devices.path(); }
    void note_path_of_world(const std::string& path) { resources_->devices.note_path(path); }
    Workspaces& workspaces() noexcept { return resources_->workspaces; }

    /// Says where a tensor's memory really is if its device is wrong, as far as this rank's drivers
    /// know. Empty if nothing is wrong.
    std::string device_mismatch(const TensorView& tensor);

    /// See RequestCache.
    std::pair<protocol::Name, protocol::SharedDescription> identify(
        std::string_view name, const protocol::Description& description,
        const protocol::TensorDescription& tensor);

    using UseName = std::function<void(const std::string&)>;
    /// A name for a new plan, taken as long as the pointer lives. If `wanted` is empty: "#1 plan"
    /// for the kind "plan". Calls `use(name)` first: if that throws, no name is taken. Throws
    /// Error(duplicate_name).
    std::shared_ptr<const std::string> take_plan_name(const std::string& wanted,
                                                      std::string_view kind, const UseName& use);

    /// Shuts down, waits until every rank has, and ends; handles and plans may outlive it. Throws
    /// what ended the job.
    void close(std::string_view reason, int culprit = -1);

private:
    void provide(DeviceKind kind) override;
    wire::Group group_with(wire::Tag tag) const;
    std::unique_ptr<engine::Backend> host_backend(const wire::Group& group) const;
    std::shared_ptr<engine::StreamBackend> stream_backend(
        const std::shared_ptr<device::Driver>& driver, int device);

    std::shared_ptr<RankResources> resources_;
    const SetId id_;
    const std::vector<int> ranks_;  ///< of the world, by group rank
    const protocol::GroupRanks group_ranks_;
    wire::ControlChannel control_;
    wire::MailChannel mail_;
    base::Mutex devices_mutex_;
    /// The kinds of device that have an executor, and this rank's device of each.
    std::map<DeviceKind, int> devices_ GUOZHUANG_GUARDED_BY(devices_mutex_);
    std::unique_ptr<engine::Backend> host_backend_;
    base::Mutex requests_mutex_;
    protocol::RequestCache requests_ GUOZHUANG_GUARDED_BY(requests_mutex_);
    base::Mutex plans_mutex_;
    /// The names that plans have taken; each expires with its plan.
    std::map<std::string, std::weak_ptr<const std::string>> plans_
        GUOZHUANG_GUARDED_BY(plans_mutex_);
    /// The number of unnamed plans so far.
    std::uint64_t unnamed_plans_ GUOZHUANG_GUARDED_BY(plans_mutex_) = 0;
    std::shared_ptr<engine::Engine> engine_;
};

}  // namespace guozhuang
