#include "training/shard_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <guozhuang/error.hpp>
#include <utility>

#include "base/error_text.hpp"

namespace guozhuang {
namespace {

/// Also tells the byte order.
constexpr std::uint64_t format = 0x677a'7368'6172'6401;

struct Reader {
    std::string_view bytes;

    std::string_view take(std::uint64_t count) {
        if (count > bytes.size()) fail();
        const auto taken = bytes.substr(0, count);
        bytes.remove_prefix(count);
        return taken;
    }
    std::uint64_t number() {
        std::uint64_t value = 0;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    [[noreturn]] static void fail() {
        throw Error(ErrorCode::invalid_argument,
                    "ShardedOptimizer: a share is damaged, or was not saved by a ShardedOptimizer "
                    "on a machine like this one",
                    {.operation = "load"});
    }
};

ShardRecord read_record(Reader& reader) {
    ShardRecord record;
    record.step = reader.number();
    record.parameter = reader.take(reader.number());
    const auto dtype = reader.number();
    if (dtype != static_cast<std::uint64_t>(DType::f32) &&
        dtype != static_cast<std::uint64_t>(DType::f64))
        Reader::fail();
    record.dtype = static_cast<DType>(dtype);
    record.elements = reader.number();
    record.first = reader.number();
    record.count = reader.number();
    if (record.first > record.elements || record.count > record.elements - record.first ||
        record.count == 0)
        Reader::fail();
    for (auto moments = reader.number(); moments > 0; --moments) {
        if (record.count > reader.bytes.size() / size_of(record.dtype)) Reader::fail();
        const auto bytes = reader.take(record.count * size_of(record.dtype));
        record.state.push_back(std::as_bytes(std::span(bytes)));
    }
    return record;
}

void require_fit(const ShardRecord& record, const ShardRecord& wanted,
                 const std::string& optimizer) {
    if (record.dtype == wanted.dtype && record.elements == wanted.elements &&
        record.state.size() == wanted.state.size())
        return;
    const auto text = [](const ShardRecord& one) {
        return fmt::format("{} elements of {} with {} moments", one.elements, name_of(one.dtype),
                           one.state.size());
    };
    refuse_sharded(optimizer,
                   fmt::format("{} has {} in a share, but {} here", base::quote(wanted.parameter),
                               text(record), text(wanted)),
                   std::string(wanted.parameter));
}

/// Copies what the record has of the wanted elements to `state`, in which moment k of element i is
/// number k * stride + i.
void restore(const ShardRecord& record, const ShardRecord& wanted, std::span<std::byte> state,
             std::size_t stride, std::vector<bool>& found) {
    const auto from = std::max(wanted.first, record.first),
               to = std::min(wanted.first + wanted.count, record.first + record.count);
    if (from >= to) return;
    const auto begin = found.begin() + static_cast<std::ptrdiff_t>(from - wanted.first);
    std::fill_n(begin, to - from, true);
    const auto width = size_of(wanted.dtype);
    for (std::size_t k = 0; k < record.state.size(); ++k)
        std::ranges::copy(
            record.state[k].subspan((from - record.first) * width, (to - from) * width),
            state.data() + (k * stride + from - wanted.first) * width);
}

}  // namespace

std::vector<ShardRecord> records_of(const ShardBundle& bundle,
                                    const std::vector<Parameter>& parameters, std::uint64_t step) {
    const auto width = bundle.width();
    std::vector<ShardRecord> records;
    bundle.for_own(parameters, [&](auto parameter, auto first, auto at, auto count) {
        const auto& [name, value, gradient] = parameters[parameter];
        auto& record = records.emplace_back(
            ShardRecord{step, name, value.dtype, value.count(), first, count, {}});
        for (std::size_t k = 0; k < bundle.moments; ++k)
            record.state.push_back(
                std::span(bundle.state).subspan((k * bundle.own + at) * width, count * width));
    });
    return records;
}

std::string write_shard(std::span<const ShardRecord> records) {
    std::string bytes;
    const auto add = [&](const void* from, std::size_t count) {
        bytes.append(static_cast<const char*>(from), count);
    };
    const auto add_number = [&](std::uint64_t value) { add(&value, sizeof value); };
    add_number(format);
    add_number(records.size());
    for (const auto& record : records) {
        add_number(record.step);
        add_number(record.parameter.size());
        add(record.parameter.data(), record.parameter.size());
        add_number(static_cast<std::uint64_t>(record.dtype));
        for (const auto number : {record.elements, record.first, record.count}) add_number(number);
        add_number(record.state.size());
        for (const auto& moment : record.state) add(moment.data(), moment.size());
    }
    return bytes;
}

std::vector<ShardRecord> read_shard(std::string_view bytes) {
    Reader reader{bytes};
    if (reader.number() != format) Reader::fail();
    std::vector<ShardRecord> records;
    for (auto left = reader.number(); left > 0; --left) records.push_back(read_record(reader));
    if (!reader.bytes.empty()) Reader::fail();
    return records;
}

std::vector<std::byte> restored_state(std::span<const ShardRecord> records,
                                      const ShardBundle& bundle,
                                      const std::vector<Parameter>& parameters,
                                      const std::string& optimizer) {
    std::vector<std::byte> state(bundle.state.size());
    for (std::size_t at = 0; const auto& wanted : records_of(bundle, parameters, 0)) {
        std::vector<bool> found(wanted.count);
        for (const auto& record : records) {
            if (record.parameter != wanted.parameter) continue;
            require_fit(record, wanted, optimizer);
            restore(record, wanted, std::span(state).subspan(at * bundle.width()), bundle.own,
                    found);
        }
        if (std::ranges::find(found, false) != found.end())
            refuse_sharded(optimizer,
                           fmt::format("the shares do not have all elements of {}",
                                       base::quote(wanted.parameter)),
                           std::string(wanted.parameter));
        at += wanted.count;
    }
    return state;
}

}  // namespace guozhuang
