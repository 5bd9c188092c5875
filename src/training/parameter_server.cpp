#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/parameter_server.hpp>
#include <guozhuang/plan.hpp>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
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
    if (values_of(parameters, "ParameterServer").size() != parameters.size())
        refuse_server("parameters with the same memory need one name");
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
    std::vector<Handle> send_all(ServiceHeader::Kind kind);
    std::vector<Handle> receive_all();
    /// Calls act(), after which nothing works if it throws: messages may be under way.
    template <class Act>
    void run(std::string_view what, const Act& act) {
        if (stage != Stage::trains)
            refuse_server(fmt::format("{}() was called after {}", what,
                                      stage == Stage::finished ? "finish()" : "an error"));
        try {
            act();
        } catch (const std::bad_alloc&) {
            stage = Stage::failed;
            ranks.end_job_without_memory("ParameterServer");
        } catch (...) {
            stage = Stage::failed;
            throw;
        }
    }
    void step();
    void finish();
    /// Whether the server used this rank's gradient.
    bool apply_reply(ServerLink& link);
    /// Calls act(elements of the parameter, elements of the message) for each range.
    template <class Act>
    void for_each_range(const ServerLink& link, std::span<float> elements, bool gradients,
                        const Act& act) const {
        for (const auto& [parameter, first, count] : link.ranges) {
            const auto& tensor =
                gradients ? parameters[parameter].gradient : parameters[parameter].value;
            act(std::span(static_cast<float*>(tensor.data) + first, count), elements.first(count));
            elements = elements.subspan(count);
        }
    }

    std::vector<Parameter> parameters;
    ParameterServerOptions options;
    Session& session;
    ProcessSet ranks;
    std::vector<ServerLink> links;
    std::uint64_t dropped = 0;
    std::int64_t largest_staleness = 0;
    enum class Stage : std::uint8_t { trains, finished, failed } stage = Stage::trains;
    std::unique_ptr<ValueService> service;  ///< if this rank serves
};

ParameterServer::State::State(detail::ShardRule rule, std::vector<Parameter> given,
                              const ParameterServerOptions& chosen)
    : parameters(std::move(given)),
      options(chosen),
      session(options.session != nullptr ? *options.session : Session::current()),
      ranks(ranks_of(&session, options.process_set)) {
    check(parameters, options, ranks.size());
    divide();
    if (ranks.rank() < options.servers) {
        const auto& link = links[static_cast<std::size_t>(ranks.rank())];
        std::vector<float> values(elements_of(link.values).size());
        for_each_range(link, values, false,
                       [](auto own, auto served) { std::ranges::copy(own, served.begin()); });
        service = std::make_unique<ValueService>(std::move(rule), link.ranges, std::move(values),
                                                 options, ranks);
    }
    agree();
    if (!service) return;
    try {
        service->start();
    } catch (const std::system_error& error) {  // the others would wait for this rank
        session.leave(fmt::format("ParameterServer: {}", error.what()));
        throw;
    }
}

/// All elements of all parameters in equal parts.
void ParameterServer::State::divide() {
    std::size_t total = 0, parameter = 0, first = 0;
    for (const auto& each : parameters) total += each.value.count();
    const auto all = ranks.ranks();
    const auto servers = static_cast<std::size_t>(options.servers);
    for (std::size_t i = 0; i < servers; ++i) {
        const auto size = total * (i + 1) / servers - total * i / servers;
        auto& link = links.emplace_back();
        link.server = all[i];
        for (std::size_t left = size; left > 0;) {
            const auto count = std::min(left, parameters[parameter].value.count() - first);
            if (count > 0) link.ranges.push_back({parameter, first, count});
            left -= count;
            first += count;
            if (first == parameters[parameter].value.count()) {
                ++parameter;
                first = 0;
            }
        }
        link.gradient = make_service_message(size);
        link.values = make_service_message(size);
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

std::vector<Handle> ParameterServer::State::send_all(ServiceHeader::Kind kind) {
    std::vector<Handle> sent;
    for (auto& link : links) {
        set_header(link.gradient, {.version = link.version, .kind = kind});
        for_each_range(link, elements_of(link.gradient), true,
                       [](auto own, auto message) { std::ranges::copy(own, message.begin()); });
        sent.push_back(
            send_async(view_of(link.gradient), link.server,
                       {.tag = options.tag, .keep_alive = link.gradient, .process_set = ranks}));
    }
    return sent;
}

std::vector<Handle> ParameterServer::State::receive_all() {
    std::vector<Handle> received;
    for (const auto& link : links)
        received.push_back(recv_async(view_of(link.values), link.server,
                                      {.tag = static_cast<std::uint16_t>(options.tag + 1),
                                       .keep_alive = link.values,
                                       .process_set = ranks}));
    return received;
}

bool ParameterServer::State::apply_reply(ServerLink& link) {
    const auto header = header_of(link.values);
    link.version = header.version;
    largest_staleness = std::max(largest_staleness, header.staleness);
    for_each_range(link, elements_of(link.values), false,
                   [](auto own, auto served) { std::ranges::copy(served, own.begin()); });
    return header.kind == ServiceHeader::Kind::values;
}

/// A reply says that the server has the gradient, or wants none.
void ParameterServer::State::step() {
    const auto received = receive_all(), sent = send_all(ServiceHeader::Kind::gradient);
    for (std::size_t i = 0; i < links.size(); ++i) {
        received[i].wait();
        const auto header = header_of(links[i].values);
        if (header.kind == ServiceHeader::Kind::failed)
            throw Error(ErrorCode::departed, fmt::format("ParameterServer: {}", header.why.data()),
                        {.operation = "step", .ranks = {header.culprit}});
    }
    for (const auto& handle : sent) handle.wait();
    bool is_used = true;
    for (auto& link : links) is_used = apply_reply(link) && is_used;
    if (!is_used) ++dropped;
}

void ParameterServer::State::finish() {
    for (const auto& handle : send_all(ServiceHeader::Kind::finished)) handle.wait();
    const auto self = ranks.ranks()[static_cast<std::size_t>(ranks.rank())];
    for (auto& link : links) {
        const auto elements = elements_of(link.values);
        if (link.server == self) std::ranges::copy(service->wait(), elements.begin());
        broadcast(TensorView(elements), link.server, {.process_set = ranks});
        for_each_range(link, elements, false,
                       [](auto own, auto served) { std::ranges::copy(served, own.begin()); });
    }
}

ParameterServer::ParameterServer(detail::ShardRule rule, std::vector<Parameter> parameters,
                                 const ParameterServerOptions& options)
    : state_(std::make_unique<State>(std::move(rule), std::move(parameters), options)) {}
ParameterServer::ParameterServer(ParameterServer&&) noexcept = default;

/// Tells the servers that this rank has ended, and waits for nothing.
ParameterServer::~ParameterServer() {
    if (!state_ || state_->stage != State::Stage::trains) return;
    try {
        state_->send_all(ServiceHeader::Kind::left);
    } catch (const std::exception& error) {
        log_message(LogLevel::debug,
                    fmt::format("ParameterServer: nobody was told of its end: {}", error.what()));
    }
}

void ParameterServer::step() {
    state_->run("step", [this] { state_->step(); });
}

void ParameterServer::finish() {
    if (state_->stage == State::Stage::finished) return;
    state_->run("finish", [this] { state_->finish(); });
    state_->stage = State::Stage::finished;
}

std::uint64_t ParameterServer::dropped() const noexcept {
    return state_->dropped;
}

std::int64_t ParameterServer::largest_staleness() const noexcept {
    return state_->largest_staleness;
}

}  // namespace guozhuang
