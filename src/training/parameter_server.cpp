#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/parameter_server.hpp>
#include <guozhuang/plan.hpp>
#include <string>
#include <utility>

#include "base/error_text.hpp"
#include "training/value_service.hpp"
#include "training/values.hpp"

namespace guozhuang {
namespace {

[[noreturn]] void refuse_server(const std::string& problem, const std::string& tensor = {}) {
    throw Error(ErrorCode::invalid_argument, "ParameterServer: " + problem,
                {.tensor = tensor, .operation = "step"});
}

void check(const std::vector<Parameter>& parameters, const ParameterServerOptions& options,
           int ranks) {
    values_of(parameters, "ParameterServer");
    for (const auto& [name, value, gradient] : parameters) {
        if (value.dtype != DType::f32 || gradient.dtype != DType::f32)
            refuse_server(fmt::format("{} is not f32", base::quote(name)), name);
        if (gradient.data == nullptr || gradient.shape != value.shape ||
            gradient.device != value.device || !gradient.strides.empty())
            refuse_server(fmt::format("{} needs a gradient like its value", base::quote(name)),
                          name);
    }
    const auto check_range = [](const char* what, int value, int least, int most) {
        if (value < least || value > most)
            refuse_server(fmt::format("{} is {}; it must be {} to {}", what, value, least, most));
    };
    check_range("servers", options.servers, 1, ranks);
    check_range("contributions", options.contributions, 0, ranks);
    check_range("tag", options.tag, 0, 65534);
    if (!options.max_staleness) return;
    if (options.contributions != 1)
        refuse_server("max_staleness is for contributions == 1: with others nobody is ahead");
    check_range("max_staleness", *options.max_staleness, 0, 1 << 30);
}

}  // namespace

struct ParameterServer::State {
    /// The elements of a server, and the messages that this rank exchanges with it.
    struct ServerLink {
        int server = 0;  ///< its rank of the job
        std::vector<ServedRange> ranges;
        ServiceMessage gradient, values;
        std::int64_t version = 0;
    };

    State(detail::ShardRule rule, std::vector<Parameter> given,
          const ParameterServerOptions& chosen);
    void divide();
    void agree() const;
    void send_all(ServiceHeader::Kind kind);
    void take(ServerLink& part);
    /// Calls act(elements of the parameter, elements of the part) for each piece.
    template <class Act>
    void for_each_range(const ServerLink& part, std::span<float> elements, bool gradients,
                        const Act& act) const {
        for (const auto& [parameter, first, count] : part.ranges) {
            const auto& tensor =
                gradients ? parameters[parameter].gradient : parameters[parameter].value;
            act(std::span(static_cast<float*>(tensor.data) + first, count), elements.first(count));
            elements = elements.subspan(count);
        }
    }

    std::vector<Parameter> parameters;
    ParameterServerOptions options;
    ProcessSet ranks;
    std::vector<ServerLink> parts;
    std::uint64_t dropped = 0;
    std::int64_t largest_staleness = 0;
    bool finished = false;
    std::unique_ptr<ValueService> service;  ///< if this rank serves
};

ParameterServer::State::State(detail::ShardRule rule, std::vector<Parameter> given,
                              const ParameterServerOptions& chosen)
    : parameters(std::move(given)),
      options(chosen),
      ranks(ranks_of(options.session != nullptr ? options.session : &Session::current(),
                     options.process_set)) {
    check(parameters, options, ranks.size());
    divide();
    agree();
    if (ranks.rank() >= options.servers) return;
    const auto& part = parts[static_cast<std::size_t>(ranks.rank())];
    std::vector<float> values(elements_of(part.values).size());
    for_each_range(part, values, false,
                   [](auto own, auto served) { std::ranges::copy(own, served.begin()); });
    service = std::make_unique<ValueService>(std::move(rule), part.ranges, std::move(values),
                                             options, ranks);
}

/// All elements of all parameters in equal parts.
void ParameterServer::State::divide() {
    std::size_t total = 0, parameter = 0, first = 0;
    for (const auto& each : parameters) total += each.value.count();
    const auto all = ranks.ranks();
    const auto servers = static_cast<std::size_t>(options.servers);
    for (std::size_t i = 0; i < servers; ++i) {
        const auto size = total * (i + 1) / servers - total * i / servers;
        auto& part = parts.emplace_back();
        part.server = all[i];
        for (std::size_t left = size; left > 0;) {
            const auto count = std::min(left, parameters[parameter].value.count() - first);
            if (count > 0) part.ranges.push_back({parameter, first, count});
            left -= count;
            first += count;
            if (first == parameters[parameter].value.count()) {
                ++parameter;
                first = 0;
            }
        }
        part.gradient = make_service_message(size);
        part.values = make_service_message(size);
    }
}

void ParameterServer::State::agree() const {
    const auto bound = options.max_staleness ? fmt::to_string(*options.max_staleness) : "none";
    std::vector<Agreement> agreements{
        {.what = "values of servers", .value = fmt::to_string(options.servers)},
        {.what = "values of contributions", .value = fmt::to_string(options.contributions)},
        {.what = "values of max_staleness", .value = bound},
        {.what = "values of tag", .value = fmt::to_string(options.tag)},
        {.what = "numbers of parameters", .value = fmt::to_string(parameters.size())}};
    for (const auto& [name, value, gradient] : parameters)
        agreements.push_back({name, "shapes", fmt::format("[{}]", fmt::join(value.shape, ", "))});
    float token = 0;
    Plan plan({{{"options", token}}}, {.kind = "parameter server",
                                       .session = options.session,
                                       .process_set = options.process_set});
    plan.agree(std::move(agreements));
    plan.ready(0, {.waits_next = true});
    plan.wait();
}

void ParameterServer::State::send_all(ServiceHeader::Kind kind) {
    std::vector<Handle> handles;
    for (auto& part : parts) {
        set_header(part.gradient, {.version = part.version, .kind = kind});
        for_each_range(part, elements_of(part.gradient), true,
                       [](auto own, auto sent) { std::ranges::copy(own, sent.begin()); });
        const auto view = [](const ServiceMessage& message) {
            return TensorView(message->data(), DType::u8,
                              {static_cast<std::int64_t>(message->size())});
        };
        if (kind == ServiceHeader::Kind::gradient)
            handles.push_back(recv_async(view(part.values), part.server,
                                         {.tag = static_cast<std::uint16_t>(options.tag + 1),
                                          .keep_alive = part.values,
                                          .process_set = ranks}));
        handles.push_back(
            send_async(view(part.gradient), part.server,
                       {.tag = options.tag, .keep_alive = part.gradient, .process_set = ranks}));
    }
    for (const auto& handle : handles) handle.wait();
}

void ParameterServer::State::take(ServerLink& part) {
    const auto header = header_of(part.values);
    if (header.kind == ServiceHeader::Kind::failed) {
        const int culprit = static_cast<int>(header.staleness);
        throw Error(ErrorCode::departed,
                    fmt::format("ParameterServer: rank {} has ended without finish()", culprit),
                    {.operation = "step", .ranks = {culprit}});
    }
    part.version = header.version;
    largest_staleness = std::max(largest_staleness, header.staleness);
    for_each_range(part, elements_of(part.values), false,
                   [](auto own, auto served) { std::ranges::copy(served, own.begin()); });
}

ParameterServer::ParameterServer(detail::ShardRule rule, std::vector<Parameter> parameters,
                                 const ParameterServerOptions& options)
    : state_(std::make_unique<State>(std::move(rule), std::move(parameters), options)) {}
ParameterServer::~ParameterServer() = default;
ParameterServer::ParameterServer(ParameterServer&&) noexcept = default;

void ParameterServer::step() {
    auto& state = *state_;
    if (state.finished) refuse_server("step() was called after finish()");
    state.send_all(ServiceHeader::Kind::gradient);
    bool is_dropped = false;
    for (auto& part : state.parts) {
        is_dropped |= header_of(part.values).kind == ServiceHeader::Kind::dropped;
        state.take(part);
    }
    if (is_dropped) ++state.dropped;
}

void ParameterServer::finish() {
    auto& state = *state_;
    if (std::exchange(state.finished, true)) return;
    state.send_all(ServiceHeader::Kind::finished);
    for (auto& part : state.parts) {
        const auto elements = elements_of(part.values);
        const auto self = static_cast<std::size_t>(state.ranks.rank());
        if (part.server == state.ranks.ranks()[self])
            std::ranges::copy(state.service->wait(), elements.begin());
        broadcast(TensorView(elements), part.server, {.process_set = state.ranks});
        state.for_each_range(part, elements, false,
                             [](auto own, auto served) { std::ranges::copy(served, own.begin()); });
    }
}

std::uint64_t ParameterServer::dropped() const noexcept {
    return state_->dropped;
}

std::int64_t ParameterServer::largest_staleness() const noexcept {
    return state_->largest_staleness;
}

}  // namespace guozhuang
