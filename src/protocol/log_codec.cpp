#include "protocol/log_codec.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <guozhuang/error.hpp>
#include <limits>
#include <string>

#include "base/error_text.hpp"
#include "protocol/description.hpp"
#include "protocol/policy_codec.hpp"

namespace guozhuang::protocol {
namespace {

bool has_text(LogEntry::Kind kind) {
    return kind == LogEntry::Kind::fail || kind == LogEntry::Kind::join ||
           kind == LogEntry::Kind::quit;
}

/// Whether an entry of its kind may have this many items and ranks.
bool can_be(const LogEntry& entry) {
    switch (entry.kind) {
        case LogEntry::Kind::execute:
            return entry.contributions.empty() ? !entry.items.empty()
                                               : entry.items.size() == 1 && entry.absent.empty();
        case LogEntry::Kind::fail: return entry.items.size() == 1;
        case LogEntry::Kind::quit: return entry.ranks.size() == 1;
        case LogEntry::Kind::join: return entry.items.size() == 1 && !entry.ranks.empty();
        default: return true;
    }
}

/// An evicted id must be known, and a name with an id gets no other id.
Item read_item(Reader& in, const NameTable& names, LogEntry::Kind kind) {
    Item item;
    item.id = static_cast<std::uint32_t>(in.number(std::numeric_limits<std::uint32_t>::max()));
    if (const auto* known = names.with_id(item.id)) {
        item.name = known->name;
        return item;
    }
    item.name = in.string();
    const auto* known = names.find(item.name);
    if (kind == LogEntry::Kind::evict || (known != nullptr && known->id != 0))
        throw Error(ErrorCode::wire, fmt::format("the log gives {} an id that is not its own",
                                                 base::quote(item.name.text())));
    return item;
}

}  // namespace

void write_entry(const LogEntry& entry, const NameTable& names, Writer& out) {
    out.enumerator(entry.kind);
    out.number(entry.items.size());
    for (const auto& item : entry.items) {
        out.number(item.id);
        if (names.with_id(item.id) == nullptr) out.string(item.name.text());
    }
    if (entry.kind == LogEntry::Kind::execute) {
        write(out, entry.policy);
        out.ranks(entry.absent);
        if (!entry.absent.empty())
            for (const auto& item : entry.items) out.bytes(encode(*item.description));
        out.bytes(entry.contributions);
    } else if (has_text(entry.kind)) {
        out.enumerator(entry.code);
        for (const auto* text : {&entry.text, &entry.tensor, &entry.operation}) out.string(*text);
        out.ranks(entry.ranks);
        out.culprit(entry.culprit);
    }
}

LogEntry read_entry(Reader& in, const NameTable& names, int size) {
    LogEntry entry;
    entry.kind = in.enumerator<LogEntry::Kind>();
    entry.items.resize(in.count(max_tensors));
    for (auto& item : entry.items) item = read_item(in, names, entry.kind);
    if (entry.kind == LogEntry::Kind::execute) {
        read(in, entry.policy);
        entry.absent = in.ranks(size);
        if (!entry.absent.empty())
            for (auto& item : entry.items) item.description = share(decode_description(in.bytes()));
        entry.contributions = in.bytes();
    } else if (has_text(entry.kind)) {
        entry.code = in.enumerator<ErrorCode>();
        for (auto* text : {&entry.text, &entry.tensor, &entry.operation})
            *text = in.string(max_entry_text_bytes);
        entry.ranks = in.ranks(size);
        entry.culprit = in.culprit();
    }
    if (!can_be(entry)) throw Error(ErrorCode::wire, "the log holds an entry that cannot be");
    return entry;
}

}  // namespace guozhuang::protocol
