#include "protocol/record.hpp"

#include <limits>

namespace guozhuang::protocol {

void write_ready(const ReadyRecord& record, Writer& out) {
    out.enumerator(RecordType::ready);
    out.number(record.id);
    out.fixed(record.fingerprint);
    out.bytes(record.contributions);
}

ReadyRecord read_ready(Reader& in) {
    ReadyRecord record;
    record.id = static_cast<std::uint32_t>(in.number(std::numeric_limits<std::uint32_t>::max()));
    record.fingerprint = in.fixed();
    record.contributions = in.bytes();
    return record;
}

void write_report(const ReportRecord& record, Writer& out) {
    out.enumerator(RecordType::report);
    out.string(record.name);
    out.number(record.named ? 1 : 0);
    out.number(record.more ? 1 : 0);
    out.bytes(encode(*record.description));
    out.ranks(record.ranks);
    out.bytes(record.contributions);
}

ReportRecord read_report(Reader& in, std::size_t most_ranks, int size) {
    ReportRecord record;
    record.name = in.string();
    record.named = in.number(1) == 1;
    record.more = in.number(1) == 1;
    record.description = share(decode_description(in.bytes()));
    record.ranks.resize(in.count(most_ranks));
    for (int& rank : record.ranks) rank = in.rank(size);
    record.contributions = in.bytes();
    return record;
}

void write_rank_record(RecordType type, const RankRecord& record, Writer& out) {
    out.enumerator(type);
    out.number(static_cast<std::uint64_t>(record.rank));
    out.string(record.text);
    out.culprit(record.culprit);
}

RankRecord read_rank_record(Reader& in, int size) {
    RankRecord record;
    record.rank = in.rank(size);
    record.text = in.string();
    record.culprit = in.culprit();
    return record;
}

}  // namespace guozhuang::protocol
