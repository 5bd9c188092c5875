#include "runtime/set_runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <guozhuang/error.hpp>
#include <system_error>

#include "backends/device/device_backend.hpp"
#include "base/error_text.hpp"
#include "base/keep_for_ever.hpp"

namespace guozhuang {
namespace {

using namespace std::chrono_literals;

/// NCCL's own limit is much longer; with many hosts connecting takes a minute.
constexpr auto usual_connect_limit = 120s;

protocol::Negotiator::Options negotiator_options(const base::Config& config,
                                                 const protocol::GroupRanks& group_ranks,
                                                 const wire::Group& group) {
    protocol::Negotiator::Options negotiator;
    negotiator.fusion_bytes = config.fusion_bytes;
    negotiator.policy = {.forced = config.algorithm,
                         .reproducible = config.reproducible,
                         .staging = backends::can_stage(group.transport, group.ranks),
                         .hierarchy = backends::Hierarchy::fits(group),
                         .small_bytes = config.small_bytes,
                         .segment_bytes = config.segment_bytes};
    negotiator.group_ranks = group_ranks;
    const auto& host_of = group.transport.topology().host_of;
    for (const int rank : group.ranks)
        negotiator.host_of.push_back(host_of[static_cast<std::size_t>(rank)]);
    return negotiator;
}

}  // namespace

SetRuntime::SetRuntime(std::shared_ptr<RankResources> resources, SetId id, std::vector<int> ranks)
    : resources_(std::move(resources)),
      id_(id),
      ranks_(std::move(ranks)),
      group_ranks_(id_.context == 0 ? protocol::GroupRanks() : protocol::GroupRanks(ranks_)),
      control_(*resources_->transport, id_, ranks_),
      mail_(*resources_->transport, id_.context, ranks_) {
    auto& transport = *resources_->transport;
    auto wait = transport.wait_settings();
    wait.audience = base::audience_of(id_.context);
    engine_ = std::make_shared<engine::Engine>(engine::Engine::Dependencies{
        .context = {.job = resources_->transport,
                    .timeline = resources_->timeline,
                    .group_ranks = group_ranks_,
                    .rank = transport.rank(),
                    .size = control_.size(),
                    .doorbell = transport.doorbell(),
                    .activity = transport.activity(),
                    .wait = wait,
                    .set = id_.context == 0
                               ? nullptr
                               : std::make_shared<const std::string>(group_ranks_.name())},
        .control = control_,
        .mail = mail_,
        .negotiator = negotiator_options(resources_->config, group_ranks_,
                                         group_with({id_.context, wire::Lane::host_data})),
        .stalls = {.warn = resources_->config.limits.stall_warn,
                   .error = resources_->config.limits.stall_error},
        .provider = this});
    auto group = group_with({id_.context, wire::Lane::host_data});
    group.pump = engine_.get();  // bundles of host tensors run on the thread that drives it
    host_backend_ = host_backend(group);
    engine_->add_executor(DeviceKind::host, host_backend_.get());
    try {
        // With a turn scheduler a rank is one thread, and has no coordinator.
        if (transport.wait_settings().turn_scheduler == nullptr) engine_->start();
    } catch (const std::system_error& error) {
        throw Error(
            ErrorCode::out_of_memory,
            fmt::format("{}: no thread for its coordinator: {}", group_ranks_.name(), error.what()),
            {.ranks = {transport.rank()}});
    }
}

SetRuntime::~SetRuntime() {
    engine_->stop();
    // Messages that cannot be stopped may still use the scratch of the backend.
    if (engine_->left_memory_on_loan()) base::keep_for_ever(std::move(host_backend_));
}

wire::Group SetRuntime::group_with(wire::Tag tag) const {
    return {.transport = *resources_->transport,
            .ranks = ranks_,
            .group_rank = control_.rank(),
            .tag = tag};
}

std::unique_ptr<engine::Backend> SetRuntime::host_backend(const wire::Group& group) const {
    return std::make_unique<backends::HostBackend>(group, resources_->scratch,
                                                   resources_->timeline);
}

/// Device tensors have their own lane: the HostMover thread sends at the same time as the driving
/// thread.
std::shared_ptr<engine::StreamBackend> SetRuntime::stream_backend(
    const std::shared_ptr<device::Driver>& driver, int device) {
    const auto& config = resources_->config;
    auto group = group_with({id_.context, wire::Lane::device_data});
    group.pump = engine_.get();
    return std::make_shared<backends::DeviceBackend>(backends::DeviceBackend::Dependencies{
        .set = group_ranks_.name(),
        .conditions = {.wanted = config.device_path, .reproducible = config.reproducible},
        .report =
            [this](const std::string& path) {
                if (id_.context == 0) resources_->devices.note_path(path);
            },
        .maker = {
            .driver = driver,
            .device = device,
            .group = group,
            .order = resources_->launch_order,
            .nccl = config.nccl,
            .connect_limit =
                config.limits.stall_error > 0ms ? config.limits.stall_error : usual_connect_limit,
            .arena_bytes = config.device_bytes,
            .make_host_backend = [this](const wire::Group& among) { return host_backend(among); },
            .driving = *host_backend_,
            .owner = resources_}});
}

std::shared_ptr<device::Driver> SetRuntime::use_device(Device device) {
    if (device.kind == DeviceKind::host) return nullptr;
    if (transport().wait_settings().turn_scheduler != nullptr)
        throw Error(ErrorCode::unavailable,
                    "ranks that take turns (RankOptions::turns) have one thread each, and tensors "
                    "on a device need more");
    const auto completions = resources_->devices.access(resources_->config);
    const auto& driver = completions->driver();
    const base::Lock lock(devices_mutex_);
    if (const auto used = devices_.find(device.kind); used != devices_.end()) {
        if (used->second == device.index) return driver;
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("a tensor is on {0} {1}, but this rank's tensors of {2} are on {0} "
                        "{3}: a rank uses one device in a process set, so make another set "
                        "for those of {0} {1}",
                        name_of(device.kind), device.index, group_ranks_.name(), used->second),
            {.ranks = {resources_->transport->rank()}});
    }
    engine_->add_executor(device.kind,
                          std::make_shared<engine::StreamExecutor>(
                              device.index, stream_backend(driver, device.index), completions));
    devices_.emplace(device.kind, device.index);
    return driver;
}

std::shared_ptr<device::Driver> SetRuntime::driver_of(DeviceKind kind) {
    if (kind == DeviceKind::host) return nullptr;
    return resources_->devices.access(resources_->config)->driver();
}

/// Nobody rings then, so the pauses are short.
void SetRuntime::wait_for(const device::Event& event) {
    auto settings = transport().wait_settings();
    settings.sleep_limit = std::min<std::chrono::microseconds>(settings.sleep_limit, 100us);
    settings.long_sleep_limit = {};
    base::wait_until(transport().doorbell(), settings, [&] { return event.done(); });
}

std::string SetRuntime::device_mismatch(const TensorView& tensor) {
    using device::MemoryKind;
    auto* const driver = resources_->devices.in_use();
    if (driver == nullptr || tensor.count() == 0) return {};
    const bool is_host = tensor.device.kind == DeviceKind::host;
    const auto claimed = is_host ? std::string("host memory")
                                 : fmt::format("memory of cuda {}", tensor.device.index);
    const auto [kind, device] = driver->location_of(tensor.data);
    switch (kind) {
        case MemoryKind::managed: return {};
        case MemoryKind::host:
            return is_host ? "" : fmt::format("it is said to be {}, but is host memory", claimed);
        case MemoryKind::device:
            if (!is_host && device == tensor.device.index) return {};
            return fmt::format("it is said to be {}, but is memory of cuda {}", claimed, device);
        case MemoryKind::unknown:
            if (is_host) return {};
            return fmt::format("it is said to be {}, but is host memory, or has been freed",
                               claimed);
    }
    return {};
}

Device SetRuntime::own_device(DeviceKind kind) {
    if (kind == DeviceKind::host) return {};
    const auto completions = resources_->devices.access(resources_->config);
    const base::Lock lock(devices_mutex_);
    if (const auto used = devices_.find(kind); used != devices_.end()) return {kind, used->second};
    const auto& topology = transport().topology();
    const topology::HostGrid grid(topology.host_of, topology::all_ranks(topology.size()),
                                  topology.rank);
    return {kind, grid.local_rank() % completions->driver()->device_count()};
}

/// For a joined rank.
void SetRuntime::provide(DeviceKind kind) {
    use_device(own_device(kind));
}

std::pair<protocol::Name, protocol::SharedDescription> SetRuntime::identify(
    std::string_view name, const protocol::Description& description,
    const protocol::TensorDescription& tensor) {
    const base::Lock lock(requests_mutex_);
    return requests_.get(name, description, tensor);
}

std::shared_ptr<const std::string> SetRuntime::take_plan_name(const std::string& wanted,
                                                              std::string_view kind,
                                                              const UseName& use) {
    const base::Lock lock(plans_mutex_);
    std::erase_if(plans_, [](const auto& plan) { return plan.second.expired(); });
    auto name = std::make_shared<const std::string>(
        wanted.empty() ? fmt::format("#{} {}", unnamed_plans_ + 1, kind) : wanted);
    use(*name);
    if (!plans_.try_emplace(*name, name).second)
        throw Error(
            ErrorCode::duplicate_name,
            fmt::format("Plan {}: this rank has another plan (or DistributedOptimizer) "
                        "of that name; set another one in the options "
                        "(name), or none, and it is numbered",
                        base::quote(*name)),
            {.tensor = *name, .operation = "plan", .ranks = {resources_->transport->rank()}});
    if (wanted.empty()) ++unnamed_plans_;
    return name;
}

void SetRuntime::close(std::string_view reason, int culprit) {
    engine_->close(reason, culprit);
    engine_->stop();
}

}  // namespace guozhuang
