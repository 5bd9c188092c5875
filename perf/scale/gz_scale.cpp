// gz-scale: the control messages of a step on many hosts. The negotiators and control channels of
// all ranks run in this process, one event after the other; the time that a rank takes for a
// message is measured, the time on the way is given. Under mpirun, --measure takes the same steps
// in real jobs, without data, to compare.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <deque>
#include <exception>
#include <fstream>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "protocol/negotiator.hpp"
#include "statistics.hpp"
#include "wire/group/control_channel.hpp"
#include <nlohmann/json.hpp>

namespace guozhuang::perf {
namespace {

struct Options {
    int ranks = 10'000, per_host = 8, tensors = 161, steps = 5, degree = 16;
    double between_us = 20, within_us = 5, message_us = 0;
    bool measure = false;
    std::string json;
};

double us_since(Clock::time_point start) {
    return 1e6 * seconds_since(start);
}

/// Counts this thread alone, whatever else the machine does.
double cpu_us() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

/// Times are in microseconds since the ranks have submitted.
struct Arrival {
    double time = 0;
    std::uint64_t number = 0;  ///< messages that arrive at the same time keep their order
    int from = 0, to = 0;
    int hops = 0;  ///< of the longest way to it
    std::vector<std::byte> bytes = {};
    bool operator>(const Arrival& other) const {
        return std::tie(time, number) > std::tie(other.time, other.number);
    }
};

/// The cost of a step.
struct Step {
    std::uint64_t messages = 0, between_hosts = 0, bytes = 0;
    std::vector<int> messages_of;         ///< by rank: sent and received
    std::vector<std::uint64_t> bytes_of;  ///< the same
    std::vector<double> busy_us;          ///< by rank: for all that it handled
    int hops = 0;
    double time_us = 0;  ///< until the last rank knows
};

class Job;

/// The messages of one rank. Each is complete when it is sent, and there once its time has come.
class Endpoint final : public wire::Messages {
public:
    Endpoint(Job& job, int rank) : job_(job), rank_(rank) {}
    int rank() const noexcept override { return rank_; }
    int size() const noexcept override;
    Ticket send(int to, wire::Tag tag, std::span<const std::byte> bytes) override;
    Ticket receive(int, wire::Tag, std::span<std::byte>) override {
        throw std::logic_error("there are control messages only");
    }
    bool test(Ticket&) override { return true; }
    std::optional<Message> poll(wire::Tag) override {
        if (arrived_.empty()) return std::nullopt;
        auto message = std::move(arrived_.front());
        arrived_.pop_front();
        return message;
    }
    bool flushed() override { return true; }
    Traffic traffic() const noexcept override { return {}; }

    void deliver(Message message) { arrived_.push_back(std::move(message)); }

private:
    Job& job_;
    const int rank_;
    std::deque<Message> arrived_;
};

/// All ranks of a job, the first of each host before the others of it.
class Job {
public:
    explicit Job(const Options& options) : options_(options) {
        protocol::Negotiator::Options negotiator{.degree = options.degree};
        for (int rank = 0; rank < options.ranks; ++rank)
            negotiator.host_of.push_back(host_of(rank));
        std::vector<int> all(static_cast<std::size_t>(options.ranks));
        std::iota(all.begin(), all.end(), 0);
        for (int rank = 0; rank < options.ranks; ++rank) {
            auto& each = ranks_.emplace_back(*this, rank, options.ranks, negotiator);
            each.channel.emplace(each.endpoint, engine::SetId{}, all);
        }
    }

    /// All ranks submit the request at the same time.
    Step run(const protocol::Name& name, const protocol::SharedDescription& description) {
        const auto size = ranks_.size();
        step_ = {.messages_of = std::vector<int>(size),
                 .bytes_of = std::vector<std::uint64_t>(size),
                 .busy_us = std::vector<double>(size)};
        for (auto& rank : ranks_) rank.clock = rank.hops = 0;
        for (auto& rank : ranks_)
            handle(rank, [&] { rank.negotiator.submit(name, true, description); });
        while (!arrivals_.empty()) {
            auto next = arrivals_.top();
            arrivals_.pop();
            auto& rank = ranks_[static_cast<std::size_t>(next.to)];
            rank.clock = std::max(rank.clock, next.time) + work_for(next);
            rank.hops = std::max(rank.hops, next.hops);
            rank.endpoint.deliver({next.from, std::move(next.bytes)});
            handle(rank, [&] {
                while (const auto message = rank.channel->poll())
                    rank.negotiator.receive(message->from, std::span(message->bytes).subspan(1));
            });
        }
        for (const auto& rank : ranks_) {
            if (rank.known != ranks_.front().known) throw std::logic_error("a rank knows less");
            step_.time_us = std::max(step_.time_us, rank.clock);
        }
        return std::move(step_);
    }

    int size() const noexcept { return options_.ranks; }
    int host_of(int rank) const noexcept { return rank / options_.per_host; }

    void send(int from, int to, std::span<const std::byte> bytes) {
        const bool far = is_far(from, to);
        ++step_.messages;
        step_.between_hosts += far ? 1 : 0;
        step_.bytes += bytes.size();
        for (const int rank : {from, to}) {
            ++step_.messages_of[static_cast<std::size_t>(rank)];
            step_.bytes_of[static_cast<std::size_t>(rank)] += bytes.size();
        }
        outgoing_.push_back({.time = far ? options_.between_us : options_.within_us,
                             .number = step_.messages,
                             .from = from,
                             .to = to,
                             .bytes = {bytes.begin(), bytes.end()}});
    }

private:
    struct Rank {
        Rank(Job& job, int rank, int size, const protocol::Negotiator::Options& options)
            : endpoint(job, rank), negotiator(rank, size, options) {}
        Endpoint endpoint;
        std::optional<wire::ControlChannel> channel;
        protocol::Negotiator negotiator;
        double clock = 0;
        int hops = 0;
        std::size_t known = 0;  ///< entries of the log
    };

    bool is_far(int from, int to) const noexcept { return host_of(from) != host_of(to); }
    /// The time of MPI for it, on either side.
    double work_for(const Arrival& message) const noexcept {
        return is_far(message.from, message.to) ? options_.message_us : 0;
    }

    /// The rank works, and sends what is due.
    template <class Work>
    void handle(Rank& rank, const Work& work) {
        const double start = cpu_us();
        work();
        for (auto& message : rank.negotiator.take_messages()) {
            message.bytes.insert(message.bytes.begin(), std::byte{0});  // as engine::ControlPlane
            rank.channel->send(message.to, std::move(message.bytes));
        }
        rank.negotiator.take_entries(entries_);
        const double took = cpu_us() - start;
        rank.known += entries_.size();
        rank.clock += took;
        step_.busy_us[static_cast<std::size_t>(rank.endpoint.rank())] += took;
        step_.hops = std::max(step_.hops, rank.hops);
        for (auto& message : outgoing_) {
            rank.clock += work_for(message);
            message.time += rank.clock;
            message.hops = rank.hops + 1;
            arrivals_.push(std::move(message));
        }
        outgoing_.clear();
    }

    const Options options_;
    std::deque<Rank> ranks_;
    std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
    std::vector<Arrival> outgoing_;  ///< of the rank that works; their times count from its end
    std::vector<protocol::LogEntry> entries_;
    Step step_;
};

int Endpoint::size() const noexcept {
    return job_.size();
}
wire::Messages::Ticket Endpoint::send(int to, wire::Tag, std::span<const std::byte> bytes) {
    job_.send(rank_, to, bytes);
    return {};
}

/// Tensors without elements: a real job agrees on them and moves nothing.
protocol::SharedDescription group_of(const std::string& name, int tensors) {
    protocol::Description description{.group = true};
    for (int i = 0; i < tensors; ++i)
        description.tensors.push_back({fmt::format("{}[{}]", name, i), DType::f32, {0}});
    return protocol::share(std::move(description));
}

nlohmann::ordered_json median_of(const char* kind, std::vector<Step> steps,
                                 const Options& options) {
    std::vector<double> times, root, inner;
    // The first rank of the second host has as many hosts below it as any but the root has.
    const int inner_rank = std::min(options.per_host, options.ranks - 1);
    for (const auto& step : steps) {
        times.push_back(step.time_us);
        root.push_back(step.busy_us.front());
        inner.push_back(step.busy_us[static_cast<std::size_t>(inner_rank)]);
    }
    const auto& last = steps.back();
    return {{"step", kind},
            {"ranks", options.ranks},
            {"per_host", options.per_host},
            {"degree", options.degree},
            {"tensors", options.tensors},
            {"messages", last.messages},
            {"between_hosts", last.between_hosts},
            {"most_of_a_rank", *std::ranges::max_element(last.messages_of)},
            {"bytes", last.bytes},
            {"bytes_of_root", last.bytes_of.front()},
            {"hops", last.hops},
            {"root_us", quantile(root, 0.5)},
            {"inner_us", quantile(inner, 0.5)},
            {"step_us", quantile(times, 0.5)}};
}

std::vector<nlohmann::ordered_json> simulate(const Options& options) {
    Job job(options);
    std::vector<Step> fresh, cached;
    const std::string known = "gradients";
    const auto bundle = group_of(known, options.tensors);
    job.run(known, bundle);
    for (int step = 0; step < options.steps; ++step) {
        cached.push_back(job.run(known, bundle));
        const auto name = fmt::format("set {:4}", step);
        fresh.push_back(job.run(name, group_of(name, options.tensors)));
    }
    return {median_of("cached bundle", std::move(cached), options),
            median_of("new tensor set", std::move(fresh), options)};
}

/// The same steps in the job that mpirun has started.
std::vector<nlohmann::ordered_json> measure(const Options& options) {
    Session session;
    std::vector<float> nothing;
    const std::vector<TensorView> tensors(static_cast<std::size_t>(options.tensors),
                                          TensorView(nothing));
    const auto time_of = [&](const std::string& name) {
        const auto start = Clock::now();
        grouped_allreduce_async(tensors, {.name = name}).wait();
        return us_since(start);
    };
    std::vector<double> cached, fresh;
    for (int step = 0; step < options.steps; ++step) {
        time_of("gradients");  // they meet
        cached.push_back(time_of("gradients"));
        fresh.push_back(time_of(fmt::format("set {:4}", step)));
    }
    if (session.rank() != 0) return {};
    std::vector<nlohmann::ordered_json> lines;
    for (const auto& [kind, times] :
         {std::pair("cached bundle", cached), std::pair("new tensor set", fresh)})
        lines.push_back({{"step", kind},
                         {"ranks", session.size()},
                         {"tensors", options.tensors},
                         {"measured_us", quantile(times, 0.5)}});
    return lines;
}

}  // namespace
}  // namespace guozhuang::perf

int main(int argc, char** argv) try {
    using namespace guozhuang::perf;
    Options options;
    CLI::App app("count the control messages of a step, and estimate its time");
    app.add_option("--ranks", options.ranks, "ranks of the simulated job")
        ->capture_default_str()
        ->check(CLI::Range(2, 1'000'000));
    app.add_option("--per-host", options.per_host, "ranks of each host")
        ->capture_default_str()
        ->check(CLI::Range(1, 10'000));
    app.add_option("--degree", options.degree, "children of a rank in a tree")
        ->capture_default_str()
        ->check(CLI::Range(1, 10'000));
    app.add_option("--tensors", options.tensors, "tensors of a step")
        ->capture_default_str()
        ->check(CLI::Range(1, 100'000));
    app.add_option("--steps", options.steps, "steps, of which the median counts")
        ->capture_default_str()
        ->check(CLI::Range(1, 9999));
    app.add_option("--between-us", options.between_us, "a message's time between hosts")
        ->capture_default_str();
    app.add_option("--within-us", options.within_us, "and within a host")->capture_default_str();
    app.add_option("--message-us", options.message_us,
                   "the time of MPI for a message between hosts, on either side")
        ->capture_default_str();
    app.add_flag("--measure", options.measure, "in the job that mpirun has started, without data");
    app.add_option("--json", options.json, "append the results to this file, one object a line");
    CLI11_PARSE(app, argc, argv);
    std::ofstream file(options.json, std::ios::app);
    for (const auto& line : options.measure ? measure(options) : simulate(options)) {
        std::puts(line.dump().c_str());
        if (!options.json.empty()) file << line.dump() << '\n';
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "gz-scale: %s\n", error.what());
    return 1;
}
