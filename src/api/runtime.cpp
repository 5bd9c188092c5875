#include "api/runtime.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <guozhuang/error.hpp>
#include <numeric>

#include "api/handshake.hpp"
#include "base/keep_for_ever.hpp"
#include "device/host/fake_driver.hpp"
#include "topology/machine.hpp"
#include "wire/transport_job.hpp"

namespace guozhuang {
namespace {

constexpr std::uint16_t world_context = 0;

std::vector<int> everybody(int size) {
    std::vector<int> members(static_cast<std::size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    return members;
}

engine::Negotiator::Settings negotiator_settings(const base::Settings& settings, bool staging) {
    engine::Negotiator::Settings negotiator;
    negotiator.fusion_bytes = settings.fusion_bytes;
    negotiator.policy = {.forced = settings.algorithm,
                         .reproducible = settings.reproducible,
                         .staging = staging,
                         .small_bytes = settings.small_bytes,
                         .segment_bytes = settings.segment_bytes};
    return negotiator;
}

/// What this process sees that its user should know.
std::vector<std::string> warnings() {
    auto warnings = base::unknown_variables();
    const auto threads = std::atoi(base::environment("OMP_NUM_THREADS").value_or("").c_str());
    auto binding = topology::binding_warning(topology::this_machine(), threads);
    if (!binding.empty()) warnings.push_back(std::move(binding));
    return warnings;
}

}  // namespace

Runtime::Runtime(std::unique_ptr<wire::Transport> transport, const base::Settings& settings)
    : settings_(settings),
      transport_(std::move(transport)),
      members_(everybody(transport_->size())),
      control_(*transport_, world_context, members_),
      mail_(*transport_, world_context, members_) {
    shake_hands(*transport_, settings_, warnings());
    engine_ = std::make_shared<engine::Engine>(
        engine::Engine::Parts{.control = control_,
                              .mail = mail_,
                              .doorbell = transport_->doorbell(),
                              .wait = transport_->wait_settings(),
                              .negotiator = negotiator_settings(settings_, backends::can_stage(*transport_)),
                              .own_thread = transport_->may_have_own_thread(),
                              .job = std::make_shared<wire::TransportJob>(transport_)});
    add_executor(DeviceKind::host, nullptr, wire::Lane::host_data);
    engine_->start();
}

Runtime::~Runtime() {
    engine_->stop();
    if (engine_->left_memory_on_loan())
        base::keep_for_ever(std::move(backends_));  // their scratch is what messages that cannot be stopped may use
}

/// Host bundles run on the thread that drives the engine, which goes on pumping; device bundles on a communication stream of their own.
void Runtime::add_executor(DeviceKind kind, std::shared_ptr<device::Stream> stream, wire::Lane lane) {
    std::function<bool()> pump;
    if (!stream) pump = [engine = engine_.get()] { return engine->pump(); };
    backends_.push_back(std::make_unique<backends::HostBackend>(wire::Group{.transport = *transport_,
                                                                            .members = members_,
                                                                            .position = transport_->rank(),
                                                                            .tag = {world_context, lane},
                                                                            .pump = std::move(pump)},
                                                                kind == DeviceKind::host));
    engine_->add_executor(kind, {.backend = backends_.back().get(), .stream = std::move(stream)});
}

std::shared_ptr<device::Driver> Runtime::use_device(DeviceKind kind) {
    if (kind == DeviceKind::host) return nullptr;
    if (kind == DeviceKind::cuda)
        throw Error(ErrorCode::unavailable, "collectives on CUDA tensors are not part of this version; copy them to host memory");
    const base::Lock lock(devices_mutex_);
    if (!fake_) {
        fake_ = device::make_fake_driver();
        add_executor(kind, fake_->make_stream(0), wire::Lane::device_data);
    }
    return fake_;
}

std::shared_ptr<const std::string> Runtime::take_plan_name(const std::string& wanted) {
    const base::Lock lock(plans_mutex_);
    std::erase_if(plans_, [](const auto& plan) { return plan.second.expired(); });
    auto name = std::make_shared<const std::string>(wanted.empty() ? fmt::format("#{} plan", ++unnamed_plans_) : wanted);
    if (!plans_.try_emplace(*name, name).second)
        throw Error(
            ErrorCode::duplicate_name,
            fmt::format("Plan '{}': this rank has another plan (or DistributedOptimizer) of that name; set another one in the options "
                        "(name), or none, and it is numbered",
                        *name),
            {.tensor = *name, .operation = "plan", .ranks = {transport_->rank()}});
    return name;
}

void Runtime::close() {
    engine_->close({});
    engine_->stop();
    if (!engine_->somebody_left()) transport_->close();
}

void Runtime::announce_departure(std::string_view reason) noexcept {
    engine_->announce_departure(reason);
    engine_->stop();
}

}  // namespace guozhuang
