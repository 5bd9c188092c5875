// Faults that are put in: how they are written, and when they happen. tests/faults covers their
// effects.
#include "base/failpoint.hpp"

#include <guozhuang/error.hpp>
#include <set>

#include "support/runner/catch.hpp"

using namespace guozhuang;
using base::Failpoint;
using base::Fault;

namespace {

constexpr auto all = static_cast<int>(Failpoint::count);

struct Armed {
    explicit Armed(const Fault& fault) { base::arm(fault); }
    ~Armed() { base::arm(std::nullopt); }
};

bool fails_at(Failpoint point) {
    try {
        base::pass(point);
        return false;
    } catch (const Error& error) {
        return std::string(error.what()) == "failpoint " + std::string(name_of(point));
    }
}

}  // namespace

TEST_CASE("every failpoint has a name, and every fault reads back as it prints") {
    std::set<std::string_view> names;
    for (int i = 0; i < all; ++i) {
        const auto point = static_cast<Failpoint>(i);
        CHECK_FALSE(name_of(point).empty());
        names.insert(name_of(point));
        for (const char* kind : {"kill", "stop:300", "delay:20000", "error"}) {
            const auto text = std::string(name_of(point)) + "@3:17=" + kind;
            const auto fault = base::parse_fault(text);
            REQUIRE(fault);
            CHECK(fault->point == point);
            CHECK(fault->rank == 3);
            CHECK(fault->nth == 17);
            CHECK(print(*fault) == text);
        }
    }
    CHECK(names.size() == static_cast<std::size_t>(all));
}

TEST_CASE("what is no fault is refused") {
    for (const char* text : {"",
                             "execute",
                             "execute@1",
                             "execute@1:1",
                             "execute@1:1=",
                             "execute@1:1=kil",
                             "execute@1:1=kill:5",
                             "execute@1:1=stop",
                             "execute@1:1=stop:",
                             "execute@1:1=stop:x",
                             "execute@1:1=delay:1000000001",
                             "execute@-1:1=kill",
                             "execute@1:0=kill",
                             "execute@01:1=kill",
                             "execute@1:1=kill ",
                             " execute@1:1=kill",
                             "nowhere@1:1=kill",
                             "execute:1@1=kill",
                             "@:=",
                             "execute@1:99999999999999999999=kill"})
        CHECK_FALSE(base::parse_fault(text));
}

TEST_CASE("a fault happens at its point, the nth time, and once") {
    const Armed armed(
        {.point = Failpoint::execute, .rank = 0, .nth = 3, .kind = Fault::Kind::error});
    CHECK_FALSE(fails_at(Failpoint::execute));
    CHECK_FALSE(fails_at(Failpoint::executed));
    CHECK_FALSE(fails_at(Failpoint::execute));
    CHECK(fails_at(Failpoint::execute));
    CHECK_FALSE(fails_at(Failpoint::execute));
}
