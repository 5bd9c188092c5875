#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/codec.hpp"
#include "protocol/description.hpp"

namespace guozhuang::protocol {

/// The records of a negotiator's message; each begins with its type. Every read_*() reads the part
/// after the type, and throws Error(wire) if it is malformed.
enum class RecordType : std::uint8_t {
    ready = 0,      ///< up: every rank of the sender's subtree has submitted this id
    report = 1,     ///< up: the same in full; several of them, if the ranks differ
    shut_down = 2,  ///< up: a rank submits nothing more
    entry = 3,      ///< down: the next entry of the log, see log_codec.hpp
    quit = 4,       ///< up: a rank is about to end
    join = 5        ///< up: a rank submits nothing until all have joined
};
constexpr RecordType last_of(RecordType) noexcept {
    return RecordType::join;
}

struct ReadyRecord {
    std::uint32_t id = 0;
    std::uint64_t fingerprint = 0;  ///< of the description that the sender holds under the id
    Bytes contributions = {};       ///< of all ranks of the subtree, ascending; empty: none
};
void write_ready(const ReadyRecord& record, Writer& out);
ReadyRecord read_ready(Reader& in);

/// One submission group of a name. Each has its own record, since one message cannot hold the
/// longest descriptions of all groups.
struct ReportRecord {
    std::string name;
    bool named = true;
    bool more = false;  ///< further groups of the name follow
    SharedDescription description;
    std::vector<int> ranks = {};  ///< empty: the whole subtree of the sender
    Bytes contributions = {};     ///< as in ReadyRecord
};
void write_report(const ReportRecord& record, Writer& out);
/// Reads a report in a set of `size` ranks; it lists at most `most_ranks`.
ReportRecord read_report(Reader& in, std::size_t most_ranks, int size);

/// Announces that a rank of the sender's subtree shuts down, quits or joins.
struct RankRecord {
    int rank = 0;
    std::string text;  ///< the reason, or the name of the join
    int culprit = -1;  ///< the world rank that makes it shut down or quit; -1: itself
};
void write_rank_record(RecordType type, const RankRecord& record, Writer& out);
RankRecord read_rank_record(Reader& in, int size);

}  // namespace guozhuang::protocol
