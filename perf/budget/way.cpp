#include "budget/way.hpp"

#include <algorithm>
#include <guozhuang/handle.hpp>

#include "api/requests.hpp"
#include "base/wait.hpp"
#include "topology/topology.hpp"

namespace guozhuang::perf {
namespace {

/// No process set has it: the highest but that of the job.
constexpr std::uint16_t unused_context = wire::job_context - 1;

class Listener final : public engine::ExecutionListener {
public:
    explicit Listener(engine::SubmissionQueue& queue) : queue_(queue) {}
    void on_enqueued(std::span<const std::shared_ptr<engine::Pending>>) override {}
    void on_end(std::span<std::shared_ptr<engine::Pending>> operations,
                std::exception_ptr error) noexcept override {
        queue_.end(operations, std::move(error));
    }
    void let_go(std::shared_ptr<engine::Owners>) noexcept override {}
    void on_failure(const std::exception_ptr&) override {}

private:
    engine::SubmissionQueue& queue_;
};

/// For operations that are complete before anybody waits: it drives nothing.
class NothingToDrive final : public engine::ProgressSource {
public:
    bool drive_until(const std::function<bool()>& arrived, base::Deadline) override {
        return arrived();
    }
};

engine::Context context_of(const std::shared_ptr<SetRuntime>& set) {
    auto& transport = set->transport();
    auto wait = transport.wait_settings();
    wait.audience = base::audience_of(unused_context);
    return {.job = std::shared_ptr<engine::JobControl>(set, &transport),
            .timeline = std::make_shared<trace::Timeline>(),
            .group_ranks = set->group_ranks(),
            .rank = transport.rank(),
            .size = set->size(),
            .doorbell = transport.doorbell(),
            .activity = transport.activity(),
            .wait = wait};
}

}  // namespace

std::vector<protocol::LogEntry>& NegotiatingRank::pump() {
    plane_.receive_messages();
    plane_.send_messages();
    plane_.take_entries(entries_);
    return entries_;
}

std::vector<std::byte> NegotiatingRank::message_like_last() const {
    std::vector<std::byte> message;
    message.reserve(last_capacity_);
    message.resize(last_size_);
    return message;
}

void TimedBackend::run(const engine::Bundle& bundle) {
    watch_.lap(Station::bundle);
    backend_.run(bundle);
    watch_.start();
    backend_.run(bundle);
    watch_.lap(Station::algorithm);
}

Way::Way(const TensorView& tensor, std::string name, Stopwatch& watch)
    : tensor_(tensor),
      name_(std::move(name)),
      watch_(watch),
      set_(api::set_runtime_of(nullptr, {})),
      ranks_(topology::all_ranks(set_->size())),
      context_(context_of(set_)),
      queue_(context_, life_),
      mail_(transport(), unused_context, ranks_),
      own_(std::min(context_.rank, 1), std::min(context_.size, 2), mail_, negotiator_options()),
      other_(1 - own_.rank(), 2, mail_, negotiator_options()),
      channel_(transport(), {.context = unused_context}, ranks_),
      backend_(group(), watch),
      executor_(context_, nullptr),
      listener_(std::make_shared<Listener>(queue_)),
      progress_source_(std::make_shared<NothingToDrive>()) {
    own_.connect(other_);
    other_.connect(own_);
    executor_.add(DeviceKind::host, &backend_);
}

wire::Group Way::group() const {
    return {.transport = transport(),
            .ranks = ranks_,
            .group_rank = context_.rank,
            .tag = {unused_context, wire::Lane::host_data}};
}

protocol::Negotiator::Options Way::negotiator_options() const {
    const auto& config = api::runtime_of(nullptr)->config();
    return {.policy = {.forced = config.algorithm,
                       .reproducible = config.reproducible,
                       .staging = backends::can_stage(transport(), ranks_),
                       .hierarchy = backends::Hierarchy::fits(group()),
                       .small_bytes = config.small_bytes,
                       .segment_bytes = config.segment_bytes}};
}

void Way::run() {
    watch_.start();
    pass_stations();
    watch_.lap(Station::complete);
}

void Way::pass_stations() {
    auto request = this->request();
    watch_.lap(Station::request);
    const Handle handle(queue_.submit(std::move(request), progress_source_, true));
    queue_.take(taken_);
    const auto pending = std::move(taken_.operations.front());
    watch_.lap(Station::queue);
    auto entry = negotiate(pending);
    exchange_messages();
    auto requests = engine::take_requests(entry);
    watch_.lap(Station::resolve);
    executor_.run(entry, std::move(requests), listener_);
    queue_.complete_ended();
    handle.wait();
}

/// As in api/operations.cpp.
engine::Request Way::request() const {
    api::check_name("allreduce", name_);
    const auto set = api::set_runtime_of(nullptr, {});
    const engine::Call call{.description = {.operation = OperationKind::allreduce},
                            .name = name_,
                            .tensors = {&tensor_, 1}};
    api::check(*set, call);
    return api::prepare(*set, call);
}

protocol::LogEntry Way::negotiate(const std::shared_ptr<engine::Pending>& pending) {
    const bool is_root = own_.rank() == 0, is_alone = own_.size() == 1;
    if (is_root && !is_alone) play_other(pending);
    watch_.start();
    own_.submit(pending);
    auto* entries = &own_.pump();
    if (!is_root) {
        watch_.lap(Station::negotiate);
        play_other(pending);
        watch_.start();
        entries = &own_.pump();
    }
    watch_.lap(Station::negotiate);
    if (is_root && !is_alone) pump_other();
    watch_.start();
    return std::move(entries->front());
}

void Way::play_other(const std::shared_ptr<engine::Pending>& pending) {
    other_.submit(pending);
    pump_other();
}

void Way::pump_other() {
    other_.pump();
}

/// One message like that of the negotiation goes to the next rank, and one comes from the previous.
void Way::exchange_messages() {
    if (channel_.size() == 1) return;
    exchange(own_.message_like_last());
    auto message = own_.message_like_last();
    watch_.start();
    exchange(std::move(message));
    watch_.lap(Station::message);
    wait_until([this] { return channel_.flushed(); });
    watch_.start();
}

void Way::exchange(std::vector<std::byte> message) {
    channel_.send((channel_.rank() + 1) % channel_.size(), std::move(message));
    wait_until([this] { return channel_.poll().has_value(); });
}

void Way::wait_until(const std::function<bool()>& arrived) {
    base::wait_until(context_.doorbell, context_.wait, arrived);
}

}  // namespace guozhuang::perf
