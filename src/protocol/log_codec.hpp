#pragma once

#include "protocol/codec.hpp"
#include "protocol/log_entry.hpp"
#include "protocol/name_table.hpp"

namespace guozhuang::protocol {

/// Writes a log entry as it goes down the tree. A name that has an id is sent as the id; the reader
/// has applied the same log, so it knows the name.
void write_entry(const LogEntry& entry, const NameTable& names, Writer& out);

/// Reads an entry, in a set of `size` ranks. Throws Error(wire) if it is malformed, or gives a name
/// an id that is not its own.
LogEntry read_entry(Reader& in, const NameTable& names, int size);

/// The longest `text` of an entry; the root cuts longer ones.
inline constexpr std::size_t max_entry_text_bytes = 1u << 20;

}  // namespace guozhuang::protocol
