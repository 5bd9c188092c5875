// Memory that a rank of this host, dead or hostile, leaves for the host's other ranks to read: its
// doorbell, then its activity.
#include <cstring>
#include <new>

#include "base/wait.hpp"
#include "fuzz/fuzz.hpp"
#include "trace/activity.hpp"

namespace guozhuang::fuzz {

using namespace base;
using namespace trace;

namespace {

/// Plain memory holds them, as it does between processes.
struct Page {
    Doorbell bell;
    Activity activity;
};

void check(const Note& note) {
    const auto content = note.read();
    if (!content) return;
    const auto all = content->kind + content->text;
    require(!all.empty() && all.size() <= Note::capacity, "a note is as long as notes are");
    require(std::ranges::none_of(all, [](unsigned char c) { return c < ' ' || c == 0x7f; }),
            "a note prints");
}

}  // namespace

void decode(Input input) {
    alignas(Page) std::array<std::byte, sizeof(Page)> memory{};
    std::ranges::copy(take(input, memory.size()), memory.begin());
    const auto& page = *std::launder(reinterpret_cast<const Page*>(memory.data()));
    for (const auto* note :
         {&page.activity.submitted, &page.activity.running, &page.activity.quit_reason})
        check(*note);
    for (const auto& waiting : page.activity.waiting) check(waiting.note);
    require(!describe(page.activity).empty(), "there is always something to say about it");
    // A cause that is being written is waited for, a while.
    if (page.bell.cause_state == Doorbell::CauseState::being_written) return;
    require(
        refused({ErrorCode::rank_died, ErrorCode::departed, ErrorCode::timeout, ErrorCode::aborted},
                [&] { throw_cause(page.bell); }),
        "the cause of an end is one that there is");
}

std::vector<Seed> seeds() {
    std::vector<Seed> all;
    for (const bool at_work : {false, true}) {
        Page page;
        page.activity.submitted.write("allreduce", "grad7");
        if (at_work) page.activity.running.write("broadcast");
        page.activity.quit_reason.write("ValueError: ", "why");
        if (at_work)
            note_cause(page.bell, {.rank = 3, .text = "rank 3 died", .code = ErrorCode::rank_died});
        // As far as the second note: what is behind it is zeros, and adds nothing.
        const auto bytes =
            std::as_bytes(std::span(&page, 1)).first(sizeof(Doorbell) + 2 * sizeof(Note));
        all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
}

}  // namespace guozhuang::fuzz
