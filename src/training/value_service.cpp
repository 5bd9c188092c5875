#include "training/value_service.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/operations.hpp>
#include <limits>
#include <utility>

#include "base/error_text.hpp"
#include "base/process.hpp"

namespace guozhuang {
namespace {

/// How often a thread that waits for a rank looks whether it is to stop.
constexpr auto look_every = std::chrono::milliseconds(100);
constexpr auto warn_after = std::chrono::seconds(10);

}  // namespace

ServiceMessage make_service_message(std::size_t elements) {
    return std::make_shared<std::vector<std::byte>>(sizeof(ServiceHeader) +
                                                    elements * sizeof(float));
}

TensorView view_of(const ServiceMessage& message) {
    return {message->data(), DType::u8, {static_cast<std::int64_t>(message->size())}};
}

ServiceHeader header_of(const ServiceMessage& message) {
    ServiceHeader header;
    std::memcpy(&header, message->data(), sizeof header);
    return header;
}

void set_header(const ServiceMessage& message, const ServiceHeader& header) {
    std::memcpy(message->data(), &header, sizeof header);
}

std::span<float> elements_of(const ServiceMessage& message) {
    const auto bytes = std::span(*message).subspan(sizeof(ServiceHeader));
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

ValueService::ValueService(detail::ShardRule rule, std::vector<ServedRange> ranges,
                           std::vector<float> values, const ParameterServerOptions& options,
                           ProcessSet ranks)
    : rule_(std::move(rule)),
      ranges_(std::move(ranges)),
      options_(options),
      ranks_(std::move(ranks)),
      rank_of_(ranks_.ranks()),
      values_(std::move(values)),
      gradient_(values_.size()),
      state_(rule_.moments(), std::vector<float>(values_.size())),
      clients_(rank_of_.size()) {
    for (auto& client : clients_) {
        client.request = make_service_message(values_.size());
        client.reply = make_service_message(values_.size());
    }
}

void ValueService::start() {
    for (std::size_t i = 0; i < clients_.size(); ++i)
        clients_[i].thread = base::start_thread("gz-server", [this, i] { serve(i); });
}

ValueService::~ValueService() {
    {
        const base::Lock lock(mutex_);
        stops_ = true;
        if (std::ranges::any_of(clients_, &Client::trains))
            fail(own_rank(), fmt::format("rank {} has ended without finish()", own_rank()));
    }
    base::ring(bell_);
    for (auto& client : clients_) base::join(client.thread);
}

const std::vector<float>& ValueService::wait() {
    for (auto& client : clients_) base::join(client.thread);
    const base::Lock lock(mutex_);
    return values_;
}

/// The body of a client's thread. A client whose messages fail has ended.
void ValueService::serve(std::size_t number) {
    auto& client = clients_[number];
    try {
        while (receive(number)) {
            if (!accept(number)) return;
            wait_for_answer(number);
            if (!wait_for(reply(number))) break;
        }
        client.reply = make_service_message(elements_of(client.reply).size());
        reply(number);  // to its next gradient
    } catch (const std::exception& error) {
        const auto* const known = dynamic_cast<const Error*>(&error);
        const bool names_rank = known != nullptr && !known->ranks().empty();
        {
            const base::Lock lock(mutex_);
            fail(names_rank ? known->ranks().front() : own_rank(), error.what());
            client.trains = client.waits = false;
        }
        base::ring(bell_);
    }
}

void ValueService::fail(int culprit, std::string_view why) noexcept {
    if (failure_) return;
    failure_ = {.kind = ServiceHeader::Kind::failed, .culprit = culprit};
    why.copy(failure_->why.data(), failure_->why.size() - 1);
}

bool ValueService::wait_for(const Handle& message) {
    while (!message.wait_for(look_every)) {
        const base::Lock lock(mutex_);
        if (stops_) return false;
    }
    return true;
}

bool ValueService::receive(std::size_t number) {
    const auto& request = clients_[number].request;
    return wait_for(
        recv_async(view_of(request), rank_of_[number],
                   {.tag = options_.tag, .keep_alive = request, .process_set = ranks_}));
}

Handle ValueService::reply(std::size_t number) {
    const auto& message = clients_[number].reply;
    {
        const base::Lock lock(mutex_);
        auto& client = clients_[number];
        if (failure_) {
            client.answer = *failure_;
            client.waits = false;
        }
        client.answer.version = version_;
        set_header(message, client.answer);
        std::ranges::copy(values_, elements_of(message).begin());
    }
    return send_async(view_of(message), rank_of_[number],
                      {.tag = static_cast<std::uint16_t>(options_.tag + 1),
                       .keep_alive = message,
                       .process_set = ranks_});
}

bool ValueService::accept(std::size_t number) {
    const auto header = header_of(clients_[number].request);
    const bool is_gradient = header.kind == ServiceHeader::Kind::gradient;
    {
        const base::Lock lock(mutex_);
        if (header.kind == ServiceHeader::Kind::left)
            fail(rank_of_[number],
                 fmt::format("rank {} has ended without finish()", rank_of_[number]));
        clients_[number].trains = is_gradient;
        try {
            if (is_gradient)
                accept_gradient(number, header.version);
            else
                update_if_complete();
        } catch (...) {
            fail(own_rank(), fmt::format("rank {} could not update its values: {}", own_rank(),
                                         base::describe(std::current_exception())));
        }
    }
    base::ring(bell_);
    return is_gradient;
}

void ValueService::accept_gradient(std::size_t number, std::int64_t version) {
    auto& client = clients_[number];
    client.answer = {.kind = ServiceHeader::Kind::values};
    ++client.steps;
    if (failure_) return;
    if (options_.contributions == 1) {
        client.answer.staleness = version_ - version;
        return update({number});
    }
    if (version < version_) {
        client.answer.kind = ServiceHeader::Kind::dropped;
        return;
    }
    client.waits = true;
    update_if_complete();
}

bool ValueService::may_answer(std::size_t number) {
    const base::Lock lock(mutex_);
    const auto& client = clients_[number];
    const auto bound = options_.max_staleness;
    const bool is_ahead = bound && client.steps - slowest() > *bound;
    return failure_ || (!client.waits && !is_ahead);
}

/// Says once who is late.
void ValueService::wait_for_answer(std::size_t number) {
    const auto ready = [&] { return may_answer(number); };
    const base::WaitSettings settings{.sleep_limit = look_every};
    if (base::wait_until(bell_, settings, ready, base::deadline_after(warn_after))) return;
    if (const auto late = late_ranks(number); !late.empty())
        log_message(LogLevel::warning,
                    fmt::format("ParameterServer: rank {} has waited for 10 s for {}",
                                rank_of_[number], late));
    base::wait_until(bell_, settings, ready);
}

std::string ValueService::late_ranks(std::size_t number) {
    const base::Lock lock(mutex_);
    const auto bound = options_.max_staleness;
    std::vector<std::string> late;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
        const auto& client = clients_[i];
        const bool is_late = bound ? clients_[number].steps - client.steps > *bound : !client.waits;
        if (client.trains && is_late)
            late.push_back(fmt::format("rank {} ({} steps)", rank_of_[i], client.steps));
    }
    return fmt::format("{}", fmt::join(late, ", "));
}

/// The fewest steps of a rank that still trains.
std::int64_t ValueService::slowest() const {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const auto& client : clients_)
        if (client.trains) least = std::min(least, client.steps);
    return least;
}

void ValueService::update_if_complete() {
    if (failure_) return;
    std::vector<std::size_t> there;
    std::size_t training = 0;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
        if (clients_[i].waits) there.push_back(i);
        if (clients_[i].trains) ++training;
    }
    const auto wanted = static_cast<std::size_t>(options_.contributions);
    const auto needed = wanted == 0 ? training : std::min(wanted, training);
    if (there.empty() || there.size() < needed) return;
    update(there);
    for (const auto i : there) clients_[i].waits = false;
}

/// By the average of the clients' gradients, in the order of ranks.
void ValueService::update(const std::vector<std::size_t>& clients) {
    std::ranges::fill(gradient_, 0.0F);
    for (const auto i : clients) {
        const auto elements = elements_of(clients_[i].request);
        for (std::size_t j = 0; j < gradient_.size(); ++j) gradient_[j] += elements[j];
    }
    const auto count = static_cast<float>(clients.size());
    for (float& element : gradient_) element /= count;
    ++version_;
    std::vector<std::span<float>> state(state_.size());
    std::size_t at = 0;
    for (const auto& [parameter, first, length] : ranges_) {
        for (std::size_t k = 0; k < state.size(); ++k)
            state[k] = std::span(state_[k]).subspan(at, length);
        rule_.f32({.parameter = parameter,
                   .first = first,
                   .values = std::span(values_).subspan(at, length),
                   .gradients = std::span(gradient_).subspan(at, length),
                   .state = state,
                   .step = static_cast<std::uint64_t>(version_)});
        at += length;
    }
}

}  // namespace guozhuang
