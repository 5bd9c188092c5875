// A rank's account of what it is doing, for readers that do not trust it.
#include "trace/activity.hpp"

#include <cstring>
#include <thread>

#include "support/runner/catch.hpp"

using guozhuang::trace::Activity;
using guozhuang::trace::Note;

TEST_CASE("a note says what was written, cut to its room") {
    Note note;
    CHECK_FALSE(note.read());
    note.write("allreduce", "grad7");
    REQUIRE(note.read());
    CHECK(note.read()->kind == "allreduce");
    CHECK(note.read()->text == "grad7");
    note.write("init");
    CHECK(note.read()->kind == "init");
    CHECK(note.read()->text.empty());
    note.write("broadcast", std::string(1000, 'x') + "1");
    const auto one = note.read()->text;
    CHECK_THAT(one, Catch::Matchers::StartsWith(std::string(100, 'x')));
    CHECK(one.size() <= Note::capacity - 9);
    note.write("broadcast", std::string(1000, 'x') + "2");
    CHECK(note.read()->text != one);
    note.write("broadcast", std::string(Note::capacity - 9, 'z'));
    CHECK(note.read()->text == std::string(Note::capacity - 9, 'z'));
    note.write(std::string(1000, 'y'), "lost");
    CHECK_THAT(note.read()->kind, Catch::Matchers::StartsWith(std::string(100, 'y')));
    note.clear();
    CHECK_FALSE(note.read());
}

TEST_CASE("a note that somebody else has spoilt is not believed") {
    Note note;
    note.write("allreduce", "a\nb\x1b[2J\x7f");
    CHECK(note.read()->text == "a?b?[2J?");
    std::uint32_t spoilt[2];
    for (const std::uint32_t lengths :
         {0xffffffffu, 225u, 1u | (224u << 16), 0xffffu, 0xffff0000u}) {
        std::memcpy(spoilt, &note, sizeof spoilt);
        spoilt[1] = lengths;
        std::memcpy(static_cast<void*>(&note), spoilt, sizeof spoilt);
        CHECK_FALSE(note.read());
    }
    spoilt[0] = 7;  // the writer has died half-way
    std::memcpy(static_cast<void*>(&note), spoilt, sizeof spoilt);
    CHECK_FALSE(note.read());
    note.write("ignored");  // and nobody waits for it
    CHECK_FALSE(note.read());
}

TEST_CASE("a reader gets a whole note, whoever writes meanwhile") {
    Note note;
    std::atomic<bool> stop{false};
    const auto write = [&](char letter) {
        for (std::size_t length = 1; !stop; length = length % 200 + 1)
            note.write("kind", std::string(length, letter));
    };
    std::thread one(write, 'a'), two(write, 'b');
    int torn = 0, whole = 0;
    while (whole < 2000) {
        const auto content = note.read();
        if (!content) continue;
        ++whole;
        if (content->kind != "kind" ||
            content->text.find_first_not_of(content->text.front()) != std::string::npos)
            ++torn;
    }
    stop = true;
    one.join();
    two.join();
    CHECK(torn == 0);
}

TEST_CASE("a status is read as it was written, as far as there was room") {
    using namespace guozhuang::trace;
    Activity activity;
    activity.running.write("init");
    activity.submitted.write("allreduce", "a");
    auto status = status_of(activity, "pid 7", false);
    CHECK_FALSE(status.last);
    activity.last_pending = &activity;
    activity.submitted.write("barrier");
    take_slot(activity)->note.write("allreduce", "b in process set 0,2");
    take_slot(activity)->note.write("barrier");
    for (const bool is_stopped : {false, true}) {
        for (const int unlisted : {0, 1}) {
            activity.unlisted_count = unlisted;
            status = status_of(activity, "pid 7, stopped", is_stopped);
            const auto read = decode(encode(status, 1000));
            REQUIRE(read);
            CHECK(read->process == "pid 7, stopped");
            CHECK(read->doing == "during init");
            CHECK(read->is_stopped == is_stopped);
            CHECK(read->is_crowded == (unlisted == 1));
            CHECK_FALSE(read->is_awaited);
            REQUIRE(read->last);
            CHECK((read->last->kind == "barrier" && read->last->text.empty()));
            REQUIRE(read->waiting.size() == 2);
            CHECK(read->waiting[0].text == "b in process set 0,2");
            CHECK(read->waiting[1].kind == "barrier");
        }
    }
    status.is_crowded = false;
    for (int each = 0; each < 10; ++each)
        status.waiting.push_back({"allreduce", std::string(215, 'x')});
    const auto text = encode(status, 1000);
    CHECK(text.size() <= 1000);
    CHECK((decode(text)->waiting.size() == 6 && decode(text)->is_crowded));
    for (std::size_t size = 0; size < text.size(); ++size) {
        const auto part = decode(text.substr(0, size));
        CHECK((!part || part->waiting.size() < 6));
    }
    CHECK_FALSE(decode(text + "x"));
    CHECK(decode("a\x1b\nb\nc\nd\ne\n")->process == "a?");
}

TEST_CASE("what a rank was doing, in words") {
    Activity activity;
    CHECK(describe(activity) == "before its first operation");
    activity.submitted.write("allreduce", "grad6");
    CHECK(describe(activity) == "after it had submitted allreduce 'grad6'");
    activity.running.write("broadcast", "weights");
    CHECK(describe(activity) == "during broadcast 'weights'");
    activity.running.write("shutdown");
    CHECK(describe(activity) == "during shutdown");
}
