#include "odd_hosts.hpp"

#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <map>
#include <optional>
#include <string_view>

namespace host_check {
namespace {

/// A host, or a rank of one host, and its value of some fact.
struct Held {
    std::string holder, value;
};

struct Majority {
    std::string value;  ///< the most common one; among equals that of the first holder
    int holders = 0;
    bool unique = true;  ///< false: another value is as common
};

Majority majority_of(const std::vector<Held>& all) {
    Majority most;
    for (const auto& [holder, value] : all) {
        const int holders = static_cast<int>(std::ranges::count(all, value, &Held::value));
        if (holders > most.holders)
            most = {value, holders, true};
        else if (holders == most.holders && value != most.value)
            most.unique = false;
    }
    return most;
}

void list_value(Fact& fact, const Held& held, bool odd) {
    const auto same = std::ranges::find(fact.values, held.value, &Value::text);
    if (same == fact.values.end())
        fact.values.push_back({held.value, {held.holder}, odd});
    else
        same->holders.push_back(held.holder);
}

/// Adds a finding for each holder that differs from the majority, and lists the values in the fact:
/// all, or only those that differ. Returns the value of the majority.
std::string compare(const std::vector<Held>& all, Fact& fact, std::vector<std::string>& odd,
                    bool lists_all) {
    const auto most = majority_of(all);
    const auto first = std::ranges::find(all, most.value, &Held::value)->holder + " has";
    for (const auto& held : all) {
        const bool differs = held.value != most.value;
        if (differs || lists_all) list_value(fact, held, differs || !most.unique);
        if (!differs) continue;
        odd.push_back(fmt::format(
            "{} {}: {} {} where {} {}", held.holder, most.unique ? "is odd" : "differs", fact.name,
            held.value, most.unique && most.holders > 1 ? "the others have" : first, most.value));
    }
    return most.value;
}

std::vector<Host> hosts_of(const std::vector<RankReport>& reports) {
    std::map<int, Host> by_number;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        auto& host = by_number[reports[rank].host];
        host.name = reports[rank].host_name;
        host.ranks.push_back(static_cast<int>(rank));
    }
    std::map<std::string, int> uses;
    for (const auto& [number, host] : by_number) ++uses[host.name];
    std::vector<Host> hosts;
    for (auto& [number, host] : by_number) {
        if (uses[host.name] > 1) host.name += fmt::format("#{}", number);
        hosts.push_back(host);
    }
    return hosts;
}

std::string value_of(const RankReport& report, const std::string& fact) {
    const auto found =
        std::ranges::find(report.facts, fact, &std::pair<std::string, std::string>::first);
    return found == report.facts.end() ? "none" : found->second;
}

std::vector<std::string> fact_names(const std::vector<RankReport>& reports) {
    std::vector<std::string> names;
    for (const auto& report : reports)
        for (const auto& [name, value] : report.facts)
            if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    return names;
}

void compare_fact(const std::string& name, const std::vector<RankReport>& reports,
                  Verdict& verdict) {
    Fact fact{name, {}}, of_ranks{name, {}};
    std::vector<Held> hosts;
    for (const auto& host : verdict.hosts) {
        std::vector<Held> ranks;
        for (const int rank : host.ranks)
            ranks.push_back({fmt::format("rank {} on host {}", rank, host.name),
                             value_of(reports[static_cast<std::size_t>(rank)], name)});
        hosts.push_back({"host " + host.name, compare(ranks, of_ranks, verdict.odd, false)});
    }
    compare(hosts, fact, verdict.odd, true);
    fact.values.insert(fact.values.end(), of_ranks.values.begin(), of_ranks.values.end());
    verdict.facts.push_back(std::move(fact));
}

/// One of the two things that are measured of a link.
struct Quantity {
    double (*slowness)(const Link&);  ///< greater is worse
    double (*shown)(double slowness);
    double least_excess;  ///< a smaller difference of slowness is not odd
    std::string_view text_of_host, text_of_link, unit;

    bool is_odd(double slowness_of_one, double usual) const {
        return slowness_of_one > odd_factor * usual && slowness_of_one - usual > least_excess;
    }
};

const Quantity quantities[] = {
    {[](const Link& link) { return 1 / link.mb_per_s; },
     [](double slowness) { return 1 / slowness; }, 0,
     "its fastest link is {:.1f} times as slow as the median",
     "it is {:.1f} times as slow as the median", "MB/s"},
    {[](const Link& link) { return link.latency_us; }, [](double slowness) { return slowness; },
     least_latency_excess_us, "its lowest latency is {:.1f} times the median",
     "its latency is {:.1f} times the median", "us"}};

/// The middle one; the better of two in the middle.
double median(std::vector<double> values) {
    const auto middle = values.begin() + (static_cast<std::ptrdiff_t>(values.size()) - 1) / 2;
    std::ranges::nth_element(values, middle);
    return *middle;
}

std::string finding(const Quantity& quantity, const std::string& who, std::string_view text,
                    double slowness, double usual) {
    return fmt::format("{} is odd: {} ({:.0f} {} of {:.0f})", who,
                       fmt::format(fmt::runtime(text), slowness / usual), quantity.shown(slowness),
                       quantity.unit, quantity.shown(usual));
}

/// Adds the slow hosts to the findings, and returns for each whether it is one.
std::vector<bool> slow_hosts(const Quantity& quantity, Verdict& verdict) {
    std::vector<std::optional<double>> best(verdict.hosts.size());
    for (const auto& link : verdict.links)
        for (const int end : {link.a, link.b}) {
            auto& known = best[static_cast<std::size_t>(end)];
            const double slowness = quantity.slowness(link);
            known = known ? std::min(*known, slowness) : slowness;
        }
    std::vector<double> measured;
    for (const auto& slowness : best)
        if (slowness) measured.push_back(*slowness);
    const double usual = median(measured);
    std::vector<bool> slow(best.size());
    for (std::size_t host = 0; host < best.size(); ++host) {
        slow[host] = best[host] && quantity.is_odd(*best[host], usual);
        if (slow[host])
            verdict.odd.push_back(finding(quantity, "host " + verdict.hosts[host].name,
                                          quantity.text_of_host, *best[host], usual));
    }
    return slow;
}

void compare_links(const Quantity& quantity, Verdict& verdict) {
    const auto slow = slow_hosts(quantity, verdict);
    std::vector<double> others;
    std::vector<Link*> to_compare;
    for (auto& link : verdict.links) {
        if (slow[static_cast<std::size_t>(link.a)] || slow[static_cast<std::size_t>(link.b)]) {
            link.odd = true;
            continue;
        }
        others.push_back(quantity.slowness(link));
        to_compare.push_back(&link);
    }
    if (others.empty()) return;
    const double usual = median(others);
    for (auto* link : to_compare) {
        const double slowness = quantity.slowness(*link);
        if (!quantity.is_odd(slowness, usual)) continue;
        link->odd = true;
        verdict.odd.push_back(finding(quantity,
                                      fmt::format("the link of {} and {}", verdict.name_of(link->a),
                                                  verdict.name_of(link->b)),
                                      quantity.text_of_link, slowness, usual));
    }
}

}  // namespace

Verdict find_odd(const std::vector<RankReport>& reports, std::vector<Link> links) {
    Verdict verdict{hosts_of(reports), {}, std::move(links), {}};
    for (const auto& name : fact_names(reports)) compare_fact(name, reports, verdict);
    if (!verdict.links.empty())
        for (const auto& quantity : quantities) compare_links(quantity, verdict);
    return verdict;
}

std::vector<Link> schedule(int hosts, int most) {
    // The circle method: one place stays where it is, the others turn. If the number of hosts is
    // odd, the fixed place is empty, and its peer of the round rests.
    std::vector<Link> pairs;
    const int others = hosts - 1 + hosts % 2;
    for (int round = 0; round < others; ++round) {
        if (round >= 2 && static_cast<int>(pairs.size()) + hosts / 2 > most) break;
        if (others < hosts) pairs.push_back({.a = round, .b = others});
        for (int step = 1; step <= others / 2; ++step) {
            const int one = (round + step) % others, other = (round + others - step) % others;
            pairs.push_back({.a = std::min(one, other), .b = std::max(one, other)});
        }
    }
    return pairs;
}

}  // namespace host_check
