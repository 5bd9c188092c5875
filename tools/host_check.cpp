#include "host_check.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <guozhuang/info.hpp>
#include <guozhuang/operations.hpp>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <sys/utsname.h>
#include <utility>
#include <vector>

#include "odd_hosts.hpp"

namespace host_check {
namespace {

namespace gz = guozhuang;
using Bytes = std::vector<std::uint8_t>;
using Json = nlohmann::ordered_json;

// These limit the check to about half a minute, whatever the number of hosts, if no link is slower
// than 1 Gbit/s.
constexpr int most_pairs = 2016;  // all pairs of 64 hosts
constexpr int most_round_trips = 20, fewest_round_trips = 5, all_round_trips = 4000;
constexpr std::size_t first_bytes = std::size_t{256} << 10, most_bytes = std::size_t{8} << 20;
constexpr double all_transfers_s = 8, longest_transfer_s = 0.1;

/// The bytes that Linux lets a TCP connection have in flight: it sends no more in a round trip.
std::string tcp_send_buffer() {
    std::ifstream limits("/proc/sys/net/ipv4/tcp_wmem");
    std::size_t least = 0, first = 0, most = 0;
    limits >> least >> first >> most;
    return limits ? fmt::format("{} KiB at most", most >> 10) : "unknown";
}

/// Reports every setting in effect but GUOZHUANG_HOST, which differs on purpose, and no transport,
/// which depends on the number of ranks of the host.
RankReport own_report(gz::Session& session) {
    utsname system{};
    uname(&system);
    RankReport report{session.cross_rank(), system.nodename, {}};
    const auto kernel = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
    for (const auto& [section, key, value] : gz::info(&session)) {
        if (section == "build" && key == "id") report.facts.emplace_back("library", value);
        if (section == "mpi" && key == "library") report.facts.emplace_back("MPI", value);
        if (section == "topology" && key == "machine") {
            report.facts.emplace_back("kernel", kernel);
            report.facts.emplace_back("machine", value);
            report.facts.emplace_back("TCP send buffer", tcp_send_buffer());
        }
        if (section == "devices" || (section == "configuration" && key != "GUOZHUANG_HOST"))
            report.facts.emplace_back(key, value);
    }
    return report;
}

/// The reports of all ranks, in rank order.
std::vector<RankReport> gather_reports(gz::Session& session) {
    const auto own = own_report(session);
    const auto cbor = Json::to_cbor(Json{own.host, own.host_name, own.facts});
    const auto all = gz::all_gather(cbor, {.session = &session});
    std::vector<RankReport> reports;
    auto rest = all.values<std::uint8_t>();
    for (const auto bytes : all.rows) {
        const auto one = rest.first(static_cast<std::size_t>(bytes));
        rest = rest.subspan(one.size());
        const auto report = Json::from_cbor(one.begin(), one.end());
        reports.push_back({report[0].get<int>(), report[1].get<std::string>(),
                           report[2].get<decltype(RankReport::facts)>()});
    }
    return reports;
}

/// One of the two ranks that measure a link. Both call the same functions; the first one leads.
class LinkEnd {
public:
    LinkEnd(gz::Session& session, int peer, bool first)
        : options_{.session = &session}, peer_(peer), first_(first) {}

    double latency_us(int round_trips) {
        Bytes message(4);
        for (int warm_up = 0; warm_up < 3; ++warm_up) round_trip_s(message);
        std::vector<double> seconds;
        for (int trip = 0; trip < round_trips; ++trip) seconds.push_back(round_trip_s(message));
        const auto middle = seconds.begin() + round_trips / 2;
        std::ranges::nth_element(seconds, middle);
        return *middle / 2 * 1e6;
    }

    /// Sends more and more bytes there and back, until that takes `limit_s`.
    double mb_per_s(double limit_s) {
        Bytes message(most_bytes), goes_on(1, 1);
        double best = 0;
        for (std::size_t bytes = first_bytes; goes_on[0] != 0; bytes *= 2) {
            const double seconds = round_trip_s(std::span(message).first(bytes));
            best = std::max(best, 2 * static_cast<double>(bytes) / seconds / 1e6);
            goes_on[0] = seconds < limit_s && bytes < most_bytes ? 1 : 0;
            first_ ? gz::send(goes_on, peer_, options_) : gz::recv(goes_on, peer_, options_);
        }
        return best;
    }

private:
    double round_trip_s(std::span<std::uint8_t> message) {
        const auto start = std::chrono::steady_clock::now();
        if (first_) gz::send(message, peer_, options_);
        gz::recv(message, peer_, options_);
        if (!first_) gz::send(message, peer_, options_);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    gz::PointToPointOptions options_;
    int peer_;
    bool first_;
};

/// Measures one pair after the other, by the first rank of each host, while all others wait.
std::vector<Link> measure_links(gz::Session& session, const std::vector<int>& first_ranks) {
    auto links = schedule(static_cast<int>(first_ranks.size()), most_pairs);
    if (links.empty()) return links;
    const int pairs = static_cast<int>(links.size());
    const int round_trips =
        std::clamp(all_round_trips / pairs, fewest_round_trips, most_round_trips);
    const double limit_s = std::min(longest_transfer_s, all_transfers_s / pairs);
    std::vector<double> measured;
    for (const auto& link : links) {
        const int a = first_ranks[static_cast<std::size_t>(link.a)];
        const int b = first_ranks[static_cast<std::size_t>(link.b)];
        std::array<double, 2> values{};
        gz::barrier({.session = &session});
        if (session.rank() == a || session.rank() == b) {
            const bool first = session.rank() == a;
            LinkEnd end(session, first ? b : a, first);
            const double latency = end.latency_us(round_trips), bandwidth = end.mb_per_s(limit_s);
            if (first) values = {latency, bandwidth};
        }
        measured.insert(measured.end(), values.begin(), values.end());
    }
    gz::allreduce(measured, {.session = &session});
    auto value = measured.begin();
    for (auto& link : links) link.latency_us = *value++, link.mb_per_s = *value++;
    std::ranges::sort(links, {}, [](const Link& link) { return std::pair(link.a, link.b); });
    return links;
}

std::vector<int> first_ranks_of(const std::vector<RankReport>& reports) {
    std::vector<int> first;
    for (std::size_t rank = 0; rank < reports.size(); ++rank)
        if (reports[rank].host == static_cast<int>(first.size()))
            first.push_back(static_cast<int>(rank));
    return first;
}

void print_json(const Verdict& verdict) {
    Json hosts = Json::array(), facts = Json::object(), links = Json::array();
    for (const auto& host : verdict.hosts)
        hosts.push_back({{"name", host.name}, {"ranks", host.ranks}});
    for (const auto& fact : verdict.facts)
        for (const auto& value : fact.values)
            facts[fact.name].push_back(
                {{"value", value.text}, {"holders", value.holders}, {"odd", value.odd}});
    for (const auto& link : verdict.links)
        links.push_back({{"hosts", {verdict.name_of(link.a), verdict.name_of(link.b)}},
                         {"latency_us", link.latency_us},
                         {"mb_per_s", link.mb_per_s},
                         {"odd", link.odd}});
    const Json all{{"hosts", hosts}, {"facts", facts}, {"links", links}, {"odd", verdict.odd}};
    fmt::print("{}\n", all.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_facts(const Verdict& verdict) {
    fmt::print("\nfacts\n");
    for (const auto& [name, values] : verdict.facts) {
        if (values.size() == 1 && name.starts_with("GUOZHUANG_")) continue;
        for (const auto& value : values)
            fmt::print(
                "{} {:<26} {}{}\n", value.odd ? '*' : ' ', name, value.text,
                values.size() == 1 ? "" : fmt::format(" ({})", fmt::join(value.holders, ", ")));
    }
}

void print_text(const Verdict& verdict) {
    fmt::print("hosts\n");
    for (const auto& [name, ranks] : verdict.hosts)
        fmt::print("  {:<26} {} rank{}: {}\n", name, ranks.size(), ranks.size() == 1 ? "" : "s",
                   fmt::join(ranks, " "));
    print_facts(verdict);
    if (!verdict.links.empty()) fmt::print("\nlinks\n");
    for (const auto& link : verdict.links) {
        fmt::print("{} {:<26} {:>9.1f} us {:>9.1f} MB/s\n", link.odd ? '*' : ' ',
                   verdict.name_of(link.a) + " - " + verdict.name_of(link.b), link.latency_us,
                   link.mb_per_s);
    }
    fmt::print("\n");
    if (verdict.hosts.size() == 1) fmt::print("there is one host, so no link to measure\n");
    if (verdict.odd.empty()) fmt::print("nothing is odd\n");
    for (const auto& finding : verdict.odd) fmt::print("{}\n", finding);
}

}  // namespace

int run(gz::Session& session, bool json) {
    const auto reports = gather_reports(session);
    const auto verdict = find_odd(reports, measure_links(session, first_ranks_of(reports)));
    if (session.rank() == 0) {
        (json ? print_json : print_text)(verdict);
        std::fflush(stdout);  // mpirun kills this rank when another one has exited with 1
    }
    return verdict.odd.empty() ? 0 : 1;
}

}  // namespace host_check
