// The environment: read once for each session, strictly.
#include "base/config.hpp"

#include <algorithm>
#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <locale>

#include "base/process.hpp"
#include "support/cases/error_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

/// The text of the configuration error that a session with this variable ends with.
std::string refusal(const std::string& name, const std::string& value) {
    const Environment environment(name, value);
    const auto error = error_of([] { run_ranks(2, [](Session&) {}); });
    if (!error) return "no error";
    return error->code() == ErrorCode::configuration ? error->what() : "another error";
}

}  // namespace

TEST_CASE(
    "a value that is not acceptable is refused with variable, value and range; the next session "
    "starts") {
    const std::string suffixes = ", with a suffix K, M or G if need be";
    CHECK(refusal("GUOZHUANG_FUSION_BYTES", "abc") ==
          "GUOZHUANG_FUSION_BYTES='abc' is not acceptable: it must be 0 to 1G bytes" + suffixes);
    CHECK(refusal("GUOZHUANG_FUSION_BYTES", "2G") ==
          "GUOZHUANG_FUSION_BYTES='2G' is not acceptable: it must be 0 to 1G bytes" + suffixes);
    CHECK(refusal("GUOZHUANG_SEGMENT_BYTES", "512") ==
          "GUOZHUANG_SEGMENT_BYTES='512' is not acceptable: it must be 1K to 64M bytes" + suffixes);
    for (const auto* const count : {"2K", "1000001"})
        CHECK(refusal("GUOZHUANG_DEVICE_SMS", count) ==
              "GUOZHUANG_DEVICE_SMS='" + std::string(count) +
                  "' is not acceptable: it must be 0 to 1000000");
    CHECK(refusal("GUOZHUANG_REPRODUCIBLE", "yes") ==
          "GUOZHUANG_REPRODUCIBLE='yes' is not acceptable: it must be 0 or 1");
    CHECK(refusal("GUOZHUANG_ALGORITHM", "rings").find("'rings'") != std::string::npos);
    CHECK(refusal("GUOZHUANG_LOG_LEVEL", "loud").find("debug, info, warning, error or off") !=
          std::string::npos);
    CHECK(refusal("GUOZHUANG_FAILPOINT", "nowhere@0:1=kill") ==
          "GUOZHUANG_FAILPOINT='nowhere@0:1=kill' is not acceptable: it must be none, or "
          "NAME@RANK:NTH=kill, stop:MS, delay:US or error");
    CHECK(refusal("GUOZHUANG_ON_DEATH", "ignore").find("exit or report") != std::string::npos);
    CHECK(refusal("GUOZHUANG_SPIN_US", "-1").find("'-1'") != std::string::npos);
    CHECK(problems_among(
              2, [](Session& session, Report& report) { expect_usable(session, report); }) == "");
}

TEST_CASE("no variable takes garbage: too large, negative, padded, not a number, not text") {
    const std::string garbage[] = {"garbage",    "-1",
                                   " 1",         "1 ",
                                   "+1",         "1e999",
                                   "nan",        "0x10",
                                   "1,5",        "99999999999999999999999999",
                                   "\x01\xff\n", std::string(100'000, '9')};
    for (const auto& row : base::config_table()) {
        const std::string name(row.name);
        for (const auto& value : garbage) {
            CAPTURE(name, value.substr(0, 20));
            const auto text = refusal(name, value);
            CHECK(text.starts_with(name + "='"));
            CHECK(text.find("is not acceptable: it must be " + std::string(row.range)) !=
                  std::string::npos);
            CHECK(text.size() < 400);
            CHECK(std::ranges::none_of(text, [](char c) { return c == '\n' || c == '\x01'; }));
        }
    }
}

TEST_CASE("numbers are read and printed alike whatever the locale") {
    struct German : std::numpunct<char> {
        char do_decimal_point() const override { return ','; }
        char do_thousands_sep() const override { return '.'; }
        std::string do_grouping() const override { return "\3"; }
    };
    const auto before = std::locale::global(std::locale(std::locale::classic(), new German));
    const Environment seconds("GUOZHUANG_STALL_WARN_S", "1234.5"),
        bytes("GUOZHUANG_FUSION_BYTES", "123456");
    const auto config = base::read_config();
    CHECK(config.limits.stall_warn == std::chrono::milliseconds(1'234'500));
    for (const auto& row : base::config_table()) {
        if (row.name == "GUOZHUANG_STALL_WARN_S") CHECK(row.print(config) == "1234.5");
        if (row.name == "GUOZHUANG_FUSION_BYTES") CHECK(row.print(config) == "123456");
    }
    CHECK(refusal("GUOZHUANG_STALL_WARN_S", "1234,5").find("is not acceptable") !=
          std::string::npos);
    CHECK(base::is_running(base::this_process()));
    std::locale::global(before);
}

TEST_CASE("an empty variable counts as unset") {
    CHECK(refusal("GUOZHUANG_FUSION_BYTES", "") == "no error");
    CHECK(refusal("GUOZHUANG_ALGORITHM", "") == "no error");
    const Environment environment("GUOZHUANG_FUSION_BYTES", "");
    CHECK(base::read_config().fusion_bytes == base::Config{}.fusion_bytes);
}

TEST_CASE("every variable of the table reads back what it prints") {
    for (const auto& row : base::config_table()) {
        INFO(row.name);
        const auto printed = row.print(base::Config{});
        base::Config config;
        REQUIRE(row.parse(config, printed));
        CHECK(row.print(config) == printed);
        CHECK_FALSE(row.parse(config, printed + "?"));
        CHECK_FALSE(row.effect.empty());
    }
}

TEST_CASE("sizes have binary suffixes") {
    CHECK(base::parse_bytes("0") == 0);
    CHECK(base::parse_bytes("64K") == 64u * 1024);
    CHECK(base::parse_bytes("3M") == std::size_t{3} << 20);
    CHECK(base::parse_bytes("2G") == std::size_t{2} << 30);
    CHECK(base::parse_bytes("64k") == 64u * 1024);
    CHECK(base::parse_bytes("3m") == std::size_t{3} << 20);
    CHECK(base::parse_bytes("2g") == std::size_t{2} << 30);
    for (const char* text : {"", "K", "k", "1t", "1.5M", "-1", "+1", " 1", "1 ", "0x10",
                             "18446744073709551616", "17179869184G"})
        CHECK_FALSE(base::parse_bytes(text));
}

TEST_CASE("an unknown variable is warned about once for all ranks, with a name that is near") {
    const LogCapture log;
    const Environment environment("GUOZHUANG_FUSION_BYTE", "1");
    run_ranks(3, [](Session&) {});
    const auto warnings = log.with("GUOZHUANG_FUSION_BYTE ");
    REQUIRE(warnings.size() == 1);
    CHECK(warnings.front().find("did you mean GUOZHUANG_FUSION_BYTES?") != std::string::npos);
    const Environment another("GUOZHUANG_ELASTICITY", "1");
    CHECK(std::ranges::count(
              base::unknown_variables(),
              "GUOZHUANG_ELASTICITY is not a variable of this version and has no effect") == 1);
}

TEST_CASE("info tells of the job when it begins, once") {
    const LogCapture log;
    const Environment environment("GUOZHUANG_LOG_LEVEL", "info");
    run_ranks(3, [](Session&) {});
    CHECK(log.with("version ") ==
          std::vector{std::string("version ") + version() +
                      ": 3 ranks on 1 host, in-process, shared memory: yes"});
}

TEST_CASE("a ring cannot be had together with reproducible sums") {
    const Environment algorithm("GUOZHUANG_ALGORITHM", "ring");
    const auto text = refusal("GUOZHUANG_REPRODUCIBLE", "1");
    CHECK(
        text.find("GUOZHUANG_REPRODUCIBLE=1 and GUOZHUANG_ALGORITHM=ring contradict each other") !=
        std::string::npos);
}

TEST_CASE("the log level says which messages there are") {
    const LogCapture log;
    {
        const Environment environment("GUOZHUANG_LOG_LEVEL", "off");
        run_ranks(1, [](Session&) { log_message(LogLevel::error, "unheard"); });
    }
    run_ranks(1, [](Session&) {
        log_message(LogLevel::warning, "heard");
        log_message(LogLevel::info, "too low");
    });
    CHECK(log.with("heard") == std::vector<std::string>{"heard"});
    CHECK(log.with("too low").empty());
}
