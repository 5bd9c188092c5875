#include "runtime/set_member.hpp"

#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <system_error>

#include "base/keep_for_ever.hpp"

namespace guozhuang {
namespace {

protocol::Negotiator::Settings negotiator_settings(const base::Settings& settings,
                                                   const protocol::Members& members, bool staging) {
    protocol::Negotiator::Settings negotiator;
    negotiator.fusion_bytes = settings.fusion_bytes;
    negotiator.policy = {.forced = settings.algorithm,
                         .reproducible = settings.reproducible,
                         .staging = staging,
                         .small_bytes = settings.small_bytes,
                         .segment_bytes = settings.segment_bytes};
    negotiator.members = members;
    return negotiator;
}

}  // namespace

SetMember::SetMember(std::shared_ptr<Shared> shared, SetId id, std::vector<int> ranks)
    : shared_(std::move(shared)),
      id_(id),
      ranks_(std::move(ranks)),
      members_(id_.context == 0 ? protocol::Members() : protocol::Members(ranks_)),
      control_(*shared_->transport, id_, ranks_),
      mail_(*shared_->transport, id_.context, ranks_) {
    auto& transport = *shared_->transport;
    auto wait = transport.wait_settings();
    wait.audience = base::audience_of(id_.context);
    engine_ = std::make_shared<engine::Engine>(engine::Engine::Parts{
        .control = control_,
        .mail = mail_,
        .doorbell = transport.doorbell(),
        .activity = transport.activity(),
        .wait = wait,
        .negotiator = negotiator_settings(shared_->settings, members_,
                                          backends::can_stage(transport, ranks_)),
        .stalls = {.warn = shared_->settings.stall_warn, .error = shared_->settings.stall_error},
        .job = shared_->transport,
        .timeline = shared_->timeline,
        .provider = this});
    add_executor(DeviceKind::host, nullptr, wire::Lane::host_data);
    try {
        // With a baton a rank is one thread, and has no coordinator.
        if (transport.wait_settings().baton == nullptr) engine_->start();
    } catch (const std::system_error& error) {
        throw Error(
            ErrorCode::out_of_memory,
            fmt::format("{}: no thread for its coordinator: {}", members_.name(), error.what()),
            {.ranks = {transport.rank()}});
    }
}

SetMember::~SetMember() {
    stop();
    // Messages that cannot be stopped may still use the scratch of the backends.
    if (engine_->left_memory_on_loan()) base::keep_for_ever(std::move(backends_));
}

/// Host bundles run on the thread that drives the engine, which goes on pumping; device bundles on
/// a communication stream of their own.
void SetMember::add_executor(DeviceKind kind, std::shared_ptr<device::Stream> stream,
                             wire::Lane lane) {
    std::function<bool()> pump;
    if (!stream) pump = [engine = engine_.get()] { return engine->pump(); };
    backends_.push_back(std::make_unique<backends::HostBackend>(
        wire::Group{.transport = *shared_->transport,
                    .members = ranks_,
                    .position = control_.rank(),
                    .tag = {id_.context, lane},
                    .pump = std::move(pump)},
        shared_->scratch, kind == DeviceKind::host, shared_->timeline));
    engine_->add_executor(kind, {.backend = backends_.back().get(), .stream = std::move(stream)});
}

std::shared_ptr<device::Driver> SetMember::use_device(DeviceKind kind) {
    auto driver = shared_->devices.driver(kind);
    if (!driver) return nullptr;
    const base::Lock lock(devices_mutex_);
    if (devices_.insert(kind).second)
        add_executor(kind, driver->make_stream(0), wire::Lane::device_data);
    return driver;
}

std::shared_ptr<const std::string> SetMember::take_plan_name(const std::string& wanted,
                                                             std::string_view kind) {
    const base::Lock lock(plans_mutex_);
    std::erase_if(plans_, [](const auto& plan) { return plan.second.expired(); });
    auto name = std::make_shared<const std::string>(
        wanted.empty() ? fmt::format("#{} {}", ++unnamed_plans_, kind) : wanted);
    if (!plans_.try_emplace(*name, name).second)
        throw Error(ErrorCode::duplicate_name,
                    fmt::format("Plan '{}': this rank has another plan (or DistributedOptimizer) "
                                "of that name; set another one in the options "
                                "(name), or none, and it is numbered",
                                *name),
                    {.tensor = *name, .operation = "plan", .ranks = {shared_->transport->rank()}});
    return name;
}

void SetMember::close(std::string_view reason) {
    engine_->close(reason);
    stop();
}

void SetMember::stop() noexcept {
    engine_->stop();
}

}  // namespace guozhuang
