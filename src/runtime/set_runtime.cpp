#include "runtime/set_runtime.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <system_error>

#include "base/keep_for_ever.hpp"

namespace guozhuang {
namespace {

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
        .control = control_,
        .mail = mail_,
        .doorbell = transport.doorbell(),
        .activity = transport.activity(),
        .wait = wait,
        .negotiator = negotiator_options(resources_->config, group_ranks_,
                                         group_with({id_.context, wire::Lane::host_data})),
        .stalls = {.warn = resources_->config.stall_warn, .error = resources_->config.stall_error},
        .job = resources_->transport,
        .timeline = resources_->timeline,
        .provider = this});
    add_executor(DeviceKind::host, nullptr, wire::Lane::host_data);
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
    // Messages that cannot be stopped may still use the scratch of the backends.
    if (engine_->left_memory_on_loan()) base::keep_for_ever(std::move(backends_));
}

wire::Group SetRuntime::group_with(wire::Tag tag) const {
    return {.transport = *resources_->transport,
            .ranks = ranks_,
            .group_rank = control_.rank(),
            .tag = tag};
}

/// Which backend runs the bundles of which kind of memory.
std::unique_ptr<engine::Backend> SetRuntime::make_backend(DeviceKind kind,
                                                          const wire::Group& group) const {
    return std::make_unique<backends::HostBackend>(
        group, resources_->scratch, /*may_stage=*/kind == DeviceKind::host, resources_->timeline);
}

/// Host bundles run on the thread that drives the engine, which goes on pumping; device bundles on
/// a communication stream of their own.
void SetRuntime::add_executor(DeviceKind kind, std::shared_ptr<device::Stream> stream,
                              wire::Lane lane) {
    auto group = group_with({id_.context, lane});
    if (!stream) group.pump = engine_.get();
    backends_.push_back(make_backend(kind, group));
    engine_->add_executor(kind, {.backend = backends_.back().get(), .stream = std::move(stream)});
}

std::shared_ptr<device::Driver> SetRuntime::use_device(DeviceKind kind) {
    auto driver = resources_->devices.driver(kind);
    if (!driver) return nullptr;
    const base::Lock lock(devices_mutex_);
    if (!devices_.contains(kind)) {
        add_executor(kind, driver->make_stream(0), wire::Lane::device_data);
        devices_.insert(kind);
    }
    return driver;
}

std::shared_ptr<const std::string> SetRuntime::take_plan_name(const std::string& wanted,
                                                              std::string_view kind) {
    const base::Lock lock(plans_mutex_);
    std::erase_if(plans_, [](const auto& plan) { return plan.second.expired(); });
    auto name = std::make_shared<const std::string>(
        wanted.empty() ? fmt::format("#{} {}", ++unnamed_plans_, kind) : wanted);
    if (!plans_.try_emplace(*name, name).second)
        throw Error(
            ErrorCode::duplicate_name,
            fmt::format("Plan '{}': this rank has another plan (or DistributedOptimizer) "
                        "of that name; set another one in the options "
                        "(name), or none, and it is numbered",
                        *name),
            {.tensor = *name, .operation = "plan", .ranks = {resources_->transport->rank()}});
    return name;
}

void SetRuntime::close(std::string_view reason) {
    engine_->close(reason);
    engine_->stop();
}

}  // namespace guozhuang
