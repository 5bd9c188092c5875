// The timeline: a file that is an array in the end, the rows of a trace, and what a session
// records.
#include "trace/timeline.hpp"

#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <guozhuang/guozhuang.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "support/cases/error_cases.hpp"
#include "support/fakes/slow_stream.hpp"
#include "support/oracles/stream_slices.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/environment.hpp"
#include "support/runner/file_size_limit.hpp"
#include "support/runner/temporary_directory.hpp"
#include "support/tensors/device_views.hpp"
#include "trace/trace_file.hpp"
#include "trace/trace_text.hpp"

using namespace guozhuang;
using namespace guozhuang::test;
using nlohmann::json;
using trace::TimelineRecord;

namespace {

std::string text_in(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// The elements of the file, which must be one JSON array.
std::vector<json> read(const std::string& path) {
    return json::parse(text_in(path));
}

/// Elements, with commas between them.
std::vector<json> parse(const std::string& elements) {
    return json::parse("[" + elements + "]");
}

/// "B grad", "B negotiate", "E" ...: the events of a row, in order.
std::vector<std::string> row_of(const std::vector<json>& events, int row) {
    std::vector<std::string> found;
    for (const auto& event : events)
        if (event["tid"] == row && event["ph"] != "M")
            found.push_back(event["ph"].get<std::string>() +
                            (event.contains("name") ? " " + event["name"].get<std::string>() : ""));
    return found;
}

/// Rows on which something of that name begins.
std::vector<int> rows_with(const std::vector<json>& events, const std::string& name) {
    std::vector<int> rows;
    for (const auto& event : events)
        if (event.value("name", "") == name && event["ph"] == "B") rows.push_back(event["tid"]);
    return rows;
}

/// The name of the row.
std::string name_of_row(const std::vector<json>& events, int row) {
    for (const auto& event : events)
        if (event["tid"] == row && event["name"] == "thread_name") return event["args"]["name"];
    return "";
}

/// The events behind the beginning of a request, up to its end.
std::vector<std::string> life_of(const std::vector<json>& events, const std::string& name) {
    const auto rows = rows_with(events, name);
    if (rows.size() != 1) return {"it begins " + std::to_string(rows.size()) + " times"};
    const auto row = row_of(events, rows.front());
    const auto begin = std::ranges::find(row, "B " + name);
    std::vector<std::string> life;
    int depth = 0;
    for (auto at = begin; at != row.end(); ++at) {
        life.push_back(*at);
        depth += at->starts_with("B") ? 1 : -1;
        if (depth == 0) break;
    }
    return life;
}

const std::vector<std::string> usual_phases = {"B negotiate", "E", "B queue", "E",
                                               "B bundle",    "E", "E"};

std::vector<std::string> usual_life(const std::string& name) {
    auto life = usual_phases;
    life.insert(life.begin(), "B " + name);
    return life;
}

std::vector<std::string> eager_life(const std::string& name) {
    return {"B " + name, "B eager", "E", "E"};
}

using Set = std::shared_ptr<const std::string>;

/// Records of a request, which is known by its address.
TimelineRecord begin(const void* request, const std::string& name, const Set& set = nullptr) {
    return {.kind = TimelineRecord::Kind::begin,
            .request = request,
            .name = name,
            .phase = "negotiate",
            .facts = {.bytes = 8, .set = set}};
}
TimelineRecord end(const void* request) {
    return {.kind = TimelineRecord::Kind::end, .request = request};
}

TensorView on_fake(std::vector<float>& values) {
    return view_of(values, on_fake_device);
}

}  // namespace

TEST_CASE("a trace file is a JSON array that is closed in the end, and for its owner only") {
    const TemporaryDirectory directory;
    const auto path = directory / "trace.json";
    std::string expected = "[\n";
    {
        trace::TraceFile file(path);
        CHECK(text_in(path) == expected);
        for (int n = 0; n < 200; ++n) {
            std::string elements;
            for (int i = 0; i < n % 7; ++i)
                elements += fmt::format("{}{{\"n\":\"{:{}}\"}}", i > 0 ? ",\n" : "", n, 7 * n);
            file.append(elements);
            if (!elements.empty()) expected += (expected.size() > 2 ? ",\n" : "") + elements;
            // A process that is killed now leaves what is known, and nothing else.
            REQUIRE(text_in(path) == expected);
        }
        CHECK(std::filesystem::status(path).permissions() ==
              (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
    }
    CHECK(text_in(path) == expected + "\n]\n");
    { const trace::TraceFile empty(directory / "empty.json"); }
    CHECK(read(directory / "empty.json").empty());
}

TEST_CASE("a trace file is made anew, and no link is followed") {
    const TemporaryDirectory directory;
    const auto there = directory / "there.json", link = directory / "link.json";
    std::ofstream(there) << "mine";
    std::filesystem::create_symlink(directory / "elsewhere.json", link);
    CHECK_THROWS_AS(trace::TraceFile(there), std::system_error);
    CHECK_THROWS_AS(trace::TraceFile(link), std::system_error);
    CHECK(std::filesystem::file_size(there) == 4);
    CHECK_FALSE(std::filesystem::exists(directory / "elsewhere.json"));
}

TEST_CASE("a disk that is full leaves the array as it was") {
    CHECK_THROWS_AS(trace::TraceFile(open("/dev/full", O_WRONLY | O_CLOEXEC)), std::system_error);

    const TemporaryDirectory directory;
    const auto path = directory / "trace.json";
    {
        trace::TraceFile file(path);
        file.append(R"({"n":1})");
        {
            const FileSizeLimit limit(10'000);
            CHECK_THROWS_AS(file.append(fmt::format(R"({{"n":"{}"}})", std::string(20'000, 'x'))),
                            std::system_error);
        }
        CHECK(text_in(path) == "[\n{\"n\":1}");
        file.append(R"({"n":2})");
    }
    CHECK(read(path) == parse("{\"n\":1},\n{\"n\":2}"));
}

TEST_CASE("names come through as they are, whatever is in them") {
    const std::string all_ascii = [] {
        std::string text;
        for (char c = 0; c < 127; ++c) text += c;
        return text;
    }();
    trace::TraceText text({});
    for (const std::string& name : {all_ascii, std::string("\"}],\n[{\\"),
                                    std::string("锅庄/\u2028\U0001f483"), std::string(500, '\0')}) {
        const auto events = parse(text.of({{begin(&name, name), end(&name)}}, 0));
        CHECK(rows_with(events, name).size() == 1);
    }
    const int request = 0;
    const auto events = parse(text.of({{begin(&request, "no \xff\xc3 UTF-8")}}, 0));
    CHECK(rows_with(events, "no \ufffd\ufffd UTF-8").size() == 1);
    const auto cut = text.of({{begin(&text, std::string(64'000, '\1'))}}, 0);
    CHECK(rows_with(parse(cut), std::string(497, '\1') + "...").size() == 1);
    CHECK(cut.size() < 4096);
}

TEST_CASE("a request takes the first row that is free; what is lost leaves no row open") {
    const int a = 0, b = 0, c = 0, d = 0;
    trace::TraceText text({});
    const auto events = parse(text.of({{begin(&a, "a"), begin(&b, "b"), end(&a), begin(&c, "c"),
                                        end(&d), end(&b), end(&c), begin(&a, "a again")}},
                                      3));
    CHECK(rows_with(events, "a") == rows_with(events, "c"));
    CHECK(rows_with(events, "a") == rows_with(events, "a again"));
    CHECK(rows_with(events, "b") != rows_with(events, "a"));
    CHECK(life_of(events, "a again") ==
          std::vector<std::string>{"B a again", "B negotiate", "E", "E"});
    CHECK(row_of(events, 0) == std::vector<std::string>{"i 3 records lost"});
    const auto later = parse(text.of({{end(&a), begin(&b, "next")}}, 0));
    CHECK(row_of(later, rows_with(events, "a").front()) ==
          std::vector<std::string>{"B next", "B negotiate"});
}

TEST_CASE("requests of each process set have rows of their own, which say so") {
    const int a = 0, b = 0, c = 0, d = 0;
    const auto few = std::make_shared<const std::string>("process set 0,2"),
               many =
                   std::make_shared<const std::string>("process set " + std::string(10'000, '7'));
    trace::TraceText text({});
    const auto elements =
        text.of({{begin(&a, "world", nullptr), end(&a), begin(&b, "set", few), end(&b),
                  begin(&c, "again", few), begin(&d, std::string(64'000, '\1'), many)}},
                1);
    const auto events = parse(elements);
    CHECK(name_of_row(events, rows_with(events, "world").front()) == "requests");
    CHECK(name_of_row(events, rows_with(events, "set").front()) == "requests of process set 0,2");
    CHECK(rows_with(events, "set") == rows_with(events, "again"));
    const auto set_of = [&](const std::string& name) {
        const auto found = std::ranges::find_if(
            events, [&](const json& event) { return event.value("name", "") == name; });
        return (*found)["args"].value("set", "");
    };
    CHECK(set_of("world").empty());
    CHECK(set_of("set") == "process set 0,2");
    std::istringstream lines(elements);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() < 4'000);
    const auto later = parse(text.of({{begin(&a, "world", nullptr), begin(&b, "set", few)}}, 0));
    CHECK(rows_with(later, "world") == rows_with(events, "world"));
    CHECK(rows_with(later, "set") == rows_with(events, "set"));
}

TEST_CASE("a timeline begins and ends while ranks train, and has every request between") {
    const TemporaryDirectory directory;
    CHECK(problems_among(3, [&](Session& session, Report& report) {
              std::vector<float> numbers(1000, 1);
              allreduce(numbers, {.name = "before"});
              report.expect(start_timeline(directory / "traces"), "it starts");
              std::vector<Handle> handles;
              for (int i = 0; i < 5; ++i)
                  handles.push_back(allreduce_async(numbers[static_cast<std::size_t>(i)],
                                                    {.name = text_of("grad", i)}));
              for (const auto& handle : handles) handle.wait();
              grouped_allreduce(std::vector<TensorView>{numbers, numbers}, {.name = "\"group\"\n"});
              barrier();
              std::vector<float> odd(session.rank() == 2 ? 2 : 1);
              error_of([&] { allreduce(odd, {.name = "odd"}); });
              stop_timeline();
              allreduce(numbers, {.name = "after"});
              report.expect(start_timeline(directory / "more"), "it starts again");
              allreduce(numbers, {.name = "again"});
          }) == "");
    for (int rank = 0; rank < 3; ++rank) {
        const auto file = "/rank" + std::to_string(rank) + ".json";
        const auto events = read(directory / "traces" + file);
        for (const char* name :
             {"grad0", "grad1", "grad2", "grad3", "grad4", "\"group\"\n", "#1 barrier"}) {
            INFO(name);
            CHECK(life_of(events, name) == usual_life(name));
        }
        CHECK(life_of(events, "odd") == std::vector<std::string>{"B odd", "B negotiate", "E", "E"});
        const auto failed = std::ranges::count_if(events, [](const json& event) {
            return event.contains("args") && event["args"].contains("failed");
        });
        CHECK(failed == 1);
        CHECK(rows_with(events, "before").empty());
        CHECK(rows_with(events, "after").empty());
        CHECK(events.front()["args"]["rank"] == rank);
        for (const char* slice : {"wait", "bundle", "fused"})
            CHECK(std::ranges::any_of(events, [&](const json& event) {
                return event["ph"] == "X" && event["name"] == slice;
            }));
        // The end of the session has ended this request, which is eager where ranks come in time.
        const auto again = life_of(read(directory / "more" + file), "again");
        CHECK((again == usual_life("again") || again == eager_life("again")));
    }
}

TEST_CASE("what process sets do is on the timeline of their ranks") {
    const TemporaryDirectory directory;
    const Environment environment("GUOZHUANG_TIMELINE", directory / "traces");
    CHECK(problems_among(3, [](Session& session, Report&) {
              const auto set = ProcessSet::create({0, 2});
              std::vector<float> numbers(1000, 1), others(1000, 1);
              const auto world = allreduce_async(numbers, {.name = "grad"});
              if (set.contains(session.rank()))
                  allreduce(others, {.name = "grad", .process_set = set});
              world.wait();
          }) == "");
    for (int rank = 0; rank < 3; ++rank) {
        const auto events = read(directory / ("traces/rank" + std::to_string(rank) + ".json"));
        std::vector<std::string> rows, bundles;
        for (const int row : rows_with(events, "grad")) rows.push_back(name_of_row(events, row));
        for (const auto& event : events)
            if (event["ph"] == "X" && event["name"] == "bundle")
                bundles.push_back(event["args"].value("set", "the world"));
        std::ranges::sort(bundles);
        if (rank == 1) {
            CHECK(rows == std::vector<std::string>{"requests"});
            CHECK(bundles == std::vector<std::string>{"the world"});
        } else {
            CHECK(rows == std::vector<std::string>{"requests", "requests of process set 0,2"});
            CHECK(bundles == std::vector<std::string>{"process set 0,2", "the world"});
        }
        CHECK(life_of(events, "#1 create_process_set") ==
              std::vector<std::string>{"B #1 create_process_set", "B negotiate", "E", "B queue",
                                       "E", "E"});
    }
}

TEST_CASE("the end of a session or of a job ends the timeline, even where handles outlive it") {
    const TemporaryDirectory directory;
    const Environment environment("GUOZHUANG_TIMELINE", directory / "traces");
    std::vector<Handle> handles;
    std::vector<float> numbers(10);
    run_ranks(1, [&](Session&) { handles.push_back(allreduce_async(numbers, {.name = "well"})); });
    CHECK(life_of(read(directory / "traces/rank0.json"), "well") == usual_life("well"));

    std::filesystem::remove_all(directory / "traces");
    const auto body = [&](Session& session) {
        if (session.rank() == 0) handles.push_back(allreduce_async(numbers, {.name = "never"}));
        barrier();
        if (session.rank() == 1) throw std::runtime_error("mine");
        barrier();
    };
    CHECK_THROWS_WITH(run_ranks(2, body), "mine");
    CHECK(life_of(read(directory / "traces/rank0.json"), "never") ==
          std::vector<std::string>{"B never", "B negotiate", "E", "E"});
    CHECK_FALSE(life_of(read(directory / "traces/rank1.json"), "#1 barrier").empty());
    for (const auto& handle : handles) error_of([&] { handle.wait(); });
}

TEST_CASE("a stream has a row, with the time from when it begins a bundle until it is done") {
    const TemporaryDirectory directory;
    CHECK(problems_among(2, [&](Session& session, Report& report) {
              const auto traces = directory / "traces";
              std::vector<std::vector<float>> values;
              for (const std::size_t count : {4, 1'000'000, 8}) values.emplace_back(count, 1.0F);
              allreduce(on_fake(values[0]));  // before: not on it
              SlowStream stream;
              report.expect(start_timeline(traces), "it starts");
              std::vector<Handle> handles;
              for (auto& each : values) {
                  handles.push_back(allreduce_async(on_fake(each), {.stream = stream.ref()}));
                  handles.back().wait(stream.ref());  // enqueued: so each is a bundle of its own
              }
              for (int i = 0; i < 50; ++i) allreduce(values[0]);  // time to be seen too early
              const auto from = nanoseconds_now();
              stream.let_go();
              for (const auto& handle : handles) handle.wait();
              const auto to = nanoseconds_now();
              stop_timeline();
              allreduce(on_fake(values[0]));  // nor after
              const auto problems =
                  problems_of_stream_slices(text_of(traces, "/rank", session.rank(), ".json"),
                                            {"stream of cuda 0", {16, 4'000'000, 32}, from, to});
              report.expect(problems.empty(), problems);
          }) == "");
}

TEST_CASE("messages between ranks are on the timeline") {
    const TemporaryDirectory directory;
    const Environment environment("GUOZHUANG_TIMELINE", directory / "traces");
    CHECK(problems_among(2, [](Session& session, Report&) {
              int number = 0;
              session.rank() == 0 ? send(number, 1) : recv(number, 0);
          }) == "");
    CHECK(life_of(read(directory / "traces/rank0.json"), "send to 1") ==
          std::vector<std::string>{"B send to 1", "B message", "E", "E"});
    CHECK(life_of(read(directory / "traces/rank1.json"), "recv from 0") ==
          std::vector<std::string>{"B recv from 0", "B message", "E", "E"});
}

TEST_CASE("where no timeline can be recorded there is one warning, and training goes on") {
    const TemporaryDirectory directory;
    std::ofstream(directory / "file") << "a file";
    const LogCapture log;
    {
        const Environment environment("GUOZHUANG_TIMELINE", directory / "file/traces");
        CHECK(problems_among(3, [](Session& session, Report& report) {
                  expect_usable(session, report);
              }) == "");
    }
    CHECK(log.with("no timeline is recorded in '" + (directory / "file/traces") + "': ").size() ==
          1);
    CHECK(problems_among(1, [&](Session& session, Report& report) {
              report.expect(start_timeline(directory / "traces"), "the first");
              report.expect(!start_timeline(directory / "others"), "one at a time");
              stop_timeline();
              report.expect(!start_timeline(directory / "traces"), "its file is there");
              stop_timeline();
              expect_usable(session, report);
          }) == "");
    CHECK(log.with("/traces/rank0.json' is being recorded").size() == 1);
    CHECK(log.with("traces': File exists").size() == 1);
    CHECK(life_of(read(directory / "traces/rank0.json"), "nothing") ==
          std::vector<std::string>{"it begins 0 times"});
}

TEST_CASE(
    "a disk that becomes full ends the timeline with one warning, and leaves what is there; "
    "training goes on") {
    const TemporaryDirectory directory;
    const LogCapture log;
    CHECK(problems_among(1, [&](Session& session, Report& report) {
              report.expect(start_timeline(directory / "traces"), "it starts");
              const FileSizeLimit limit(
                  std::filesystem::file_size(directory / "traces/rank0.json") + 1000);
              for (int i = 0; i < 100; ++i) expect_usable(session, report);
              stop_timeline();
              report.expect(start_timeline(directory / "more"), "and starts again");
          }) == "");
    CHECK(log.with("rank0.json' ends early: ").size() == 1);
    auto left = text_in(directory / "traces/rank0.json");
    if (!left.ends_with("]\n")) left += "]";  // there may be no room for that, either
    CHECK_FALSE(json::parse(left).empty());
}
