#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

/// Finds the host that differs from the others, from figures alone: no communication, no clock.
namespace host_check {

/// The report of one rank. The facts are pairs of a name and a value: {"kernel", "Linux 6.1.0"}.
struct RankReport {
    int host = 0;  ///< its number in the job, from 0
    std::string host_name;
    std::vector<std::pair<std::string, std::string>> facts;
};

/// One pair of hosts, by number, and what was measured between them.
struct Link {
    int a = 0, b = 0;
    double latency_us = 0;
    double mb_per_s = 0;
    bool odd = false;  ///< filled in by find_odd()
};

struct Host {
    std::string name;  ///< with its number behind it ("trainer#1") if another host has the name
    std::vector<int> ranks;
};

/// One value of a fact, and who has it.
struct Value {
    std::string text;
    std::vector<std::string> holders;  ///< "host b"; "rank 3 on host b" if the rest of b differs
    bool odd = false;                  ///< not what most have
};

struct Fact {
    std::string name;
    std::vector<Value> values;  ///< more than one if hosts or ranks differ
};

struct Verdict {
    std::vector<Host> hosts;
    std::vector<Fact> facts;
    std::vector<Link> links;
    std::vector<std::string> odd;  ///< a sentence for each finding; empty: nothing is odd

    const std::string& name_of(int host) const {
        return hosts[static_cast<std::size_t>(host)].name;
    }
};

/// A host or link is odd if it is slower than the median by more than this factor. Its latency must
/// also exceed the median by more than 50 us: a rank that sleeps takes some 20 us to wake up.
inline constexpr double odd_factor = 2, least_latency_excess_us = 50;

/// Compares the reports of all ranks, in rank order, and the links.
///
/// Facts: a rank is compared with the other ranks of its host, then a host with the other hosts. If
/// no value is the most common, the finding says "differs" and does not say who is odd.
///
/// Links: a host is as fast as its best link, so that a slow host does not make its peers look
/// slow, and is compared with the median of the hosts. A link between hosts that are not odd is
/// compared with the median of such links. Two hosts have one link, which is compared with nothing.
Verdict find_odd(const std::vector<RankReport>& reports, std::vector<Link> links);

/// The pairs to measure: a round-robin tournament, in each round of which a host is in one pair.
/// All pairs, unless there are more than `most`: then as many rounds as fit, but at least two.
std::vector<Link> schedule(int hosts, int most);

}  // namespace host_check
