// gz-info --check: which host is named, given what ranks report and what was measured.
#include "tools/odd_hosts.hpp"

#include <set>
#include <utility>

#include "support/runner/catch.hpp"

namespace {

using Findings = std::vector<std::string>;
using Reports = std::vector<host_check::RankReport>;

/// One report for each letter, the name of the host: "aab" are two ranks on a, one on b.
Reports reports_of(const std::string& letters) {
    Reports reports;
    for (const char letter : letters)
        reports.push_back({letter - 'a', std::string(1, letter), {{"kernel", "6.1"}}});
    return reports;
}

/// The links of all pairs of hosts, alike unless they are changed.
std::vector<host_check::Link> links_of(int hosts) {
    auto links = host_check::schedule(hosts, 1000);
    for (auto& link : links) link.latency_us = 30, link.mb_per_s = 118;
    return links;
}

Findings find_slow(const std::string& hosts, const std::vector<host_check::Link>& links) {
    return host_check::find_odd(reports_of(hosts), links).odd;
}

}  // namespace

TEST_CASE("hosts that are alike: nothing is odd") {
    const auto verdict = host_check::find_odd(reports_of("aabb"), links_of(2));
    CHECK(verdict.odd.empty());
    REQUIRE(verdict.hosts.size() == 2);
    CHECK(verdict.hosts[1].name == "b");
    CHECK(verdict.hosts[1].ranks == std::vector{2, 3});
    REQUIRE(verdict.facts.size() == 1);
    REQUIRE(verdict.facts[0].values.size() == 1);
    CHECK(verdict.facts[0].values[0].holders == Findings{"host a", "host b"});
    CHECK_FALSE(verdict.facts[0].values[0].odd);
    CHECK_FALSE(verdict.links[0].odd);
}

TEST_CASE("a host that differs from the majority is odd, and marked") {
    auto reports = reports_of("abbc");
    reports[1].facts[0].second = reports[2].facts[0].second = "6.5";  // more ranks, but one host
    const auto verdict = host_check::find_odd(reports, {});
    CHECK(verdict.odd == Findings{"host b is odd: kernel 6.5 where the others have 6.1"});
    const auto& values = verdict.facts[0].values;
    REQUIRE(values.size() == 2);
    CHECK(values[0].holders == Findings{"host a", "host c"});
    CHECK_FALSE(values[0].odd);
    CHECK(values[1].holders == Findings{"host b"});
    CHECK(values[1].odd);
}

TEST_CASE("without a majority the hosts differ, and all are marked") {
    auto reports = reports_of("ab");
    reports[1].facts.clear();
    const auto verdict = host_check::find_odd(reports, links_of(2));
    CHECK(verdict.odd == Findings{"host b differs: kernel none where host a has 6.1"});
    for (const auto& value : verdict.facts[0].values) CHECK(value.odd);
}

TEST_CASE("a rank is compared with the ranks of its host, and does not make the host odd") {
    auto reports = reports_of("aaabbb");
    reports[4].facts[0].second = "6.5";
    auto verdict = host_check::find_odd(reports, {});
    CHECK(verdict.odd == Findings{"rank 4 on host b is odd: kernel 6.5 where the others have 6.1"});
    REQUIRE(verdict.facts[0].values.size() == 2);
    CHECK(verdict.facts[0].values[1].holders == Findings{"rank 4 on host b"});

    reports = reports_of("aa");
    reports[1].facts[0].second = "6.5";
    verdict = host_check::find_odd(reports, {});
    CHECK(verdict.odd ==
          Findings{"rank 1 on host a differs: kernel 6.5 where rank 0 on host a has 6.1"});
}

TEST_CASE("hosts of the same name are told apart by number") {
    auto reports = reports_of("aab");
    reports[2].host_name = "a";
    const auto verdict = host_check::find_odd(reports, links_of(2));
    CHECK(verdict.hosts[0].name == "a#0");
    CHECK(verdict.hosts[1].name == "a#1");
}

TEST_CASE("a host all of whose links are slow is odd; its peers and their links are not") {
    for (const int hosts : {3, 4, 9}) {
        auto links = links_of(hosts);
        for (auto& link : links)
            if (link.a == 2 || link.b == 2) link.mb_per_s = 12;
        const auto verdict =
            host_check::find_odd(reports_of(std::string("abcdefghi").substr(0, hosts)), links);
        CHECK(verdict.odd == Findings{"host c is odd: its fastest link is 9.8 times as slow as the "
                                      "median (12 MB/s of 118)"});
        for (const auto& link : verdict.links) CHECK(link.odd == (link.a == 2 || link.b == 2));
    }
}

TEST_CASE("of two fast and two slow hosts the slow ones are odd") {
    auto links = links_of(4);
    for (auto& link : links)
        if (link.b >= 2) link.mb_per_s = 11.8;
    const std::string reason =
        " is odd: its fastest link is 10.0 times as slow as the median (12 MB/s of 118)";
    CHECK(find_slow("abcd", links) == Findings{"host c" + reason, "host d" + reason});
}

TEST_CASE("one slow link makes neither of its hosts odd") {
    auto links = links_of(3);
    for (auto& link : links)
        if (link.a == 0 && link.b == 2) link.mb_per_s = 11.8;
    CHECK(find_slow("abc", links) ==
          Findings{"the link of a and c is odd: it is 10.0 times as slow "
                   "as the median (12 MB/s of 118)"});
}

TEST_CASE("latency is odd if it is several times the median and the difference is no wake-up") {
    auto links = links_of(4);
    for (auto& link : links)
        if (link.b == 3) link.latency_us = 75;
    CHECK(find_slow("abcd", links).empty());
    for (auto& link : links)
        if (link.b == 3) link.latency_us = 120;
    CHECK(find_slow("abcd", links) ==
          Findings{"host d is odd: its lowest latency is 4.0 times the median (120 us of 30)"});
}

TEST_CASE("half the speed of the others is not odd yet, and two hosts cannot be compared") {
    auto links = links_of(3);
    for (auto& link : links)
        if (link.b == 2) link.mb_per_s = 59;
    CHECK(find_slow("abc", links).empty());
    CHECK(find_slow("ab", {{.a = 0, .b = 1, .latency_us = 1e6, .mb_per_s = 1e-3}}).empty());
}

TEST_CASE("the schedule has every pair once, and every host at most once in a round") {
    CHECK(host_check::schedule(1, 1000).empty());
    for (int hosts = 2; hosts <= 17; ++hosts) {
        std::set<std::pair<int, int>> pairs;
        std::set<int> in_round;
        for (const auto& link : host_check::schedule(hosts, 1000)) {
            if (static_cast<int>(in_round.size()) >= hosts / 2 * 2) in_round.clear();
            CHECK(in_round.insert(link.a).second);
            CHECK(in_round.insert(link.b).second);
            CHECK(0 <= link.a);
            CHECK(link.a < link.b);
            CHECK(link.b < hosts);
            CHECK(pairs.emplace(link.a, link.b).second);
        }
        CHECK(static_cast<int>(pairs.size()) == hosts * (hosts - 1) / 2);
    }
}

TEST_CASE("with too many hosts the schedule has whole rounds, at least two") {
    CHECK(host_check::schedule(100, 320).size() == 300);
    CHECK(host_check::schedule(100, 10).size() == 100);
}
