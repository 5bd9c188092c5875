#include "protocol/codec.hpp"

#include <array>
#include <guozhuang/error.hpp>

namespace guozhuang::protocol {
namespace {

[[noreturn]] void malformed(const char* what) {
    throw Error(ErrorCode::wire, std::string("a control message is malformed: ") + what);
}

}  // namespace

void Writer::number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<std::byte>(value | 0x80));
    out_.push_back(static_cast<std::byte>(value));
}

void Writer::signed_number(std::int64_t value) {  // zigzag: small magnitudes stay short
    number((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
}

void Writer::fixed(std::uint64_t value) {
    std::array<std::byte, sizeof value> bytes;
    for (auto& byte : bytes) {
        byte = static_cast<std::byte>(value);
        value >>= 8;
    }
    out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void Writer::string(std::string_view text) {
    bytes(std::as_bytes(std::span(text)));
}

void Writer::bytes(std::span<const std::byte> data) {
    number(data.size());
    out_.insert(out_.end(), data.begin(), data.end());
}

void Writer::ranks(std::span<const int> ranks) {
    number(ranks.size());
    for (const int rank : ranks) number(static_cast<std::uint64_t>(rank));
}

std::span<const std::byte> Reader::take(std::uint64_t length) {
    if (length > data_.size()) malformed("it ends too early");
    const auto taken = data_.first(static_cast<std::size_t>(length));
    data_ = data_.subspan(taken.size());
    return taken;
}

std::uint64_t Reader::number(std::uint64_t highest) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        const auto byte = std::to_integer<std::uint64_t>(take(1)[0]);
        if (shift == 63 && byte > 1) malformed("a number is too long");
        if (shift > 0 && byte == 0) malformed("a number is longer than it need be");
        value |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            if (value > highest) malformed("a number is out of range");
            return value;
        }
    }
    malformed("a number is too long");
}

std::int64_t Reader::signed_number(std::int64_t lowest, std::int64_t highest) {
    const auto encoded = number();
    const auto value = static_cast<std::int64_t>((encoded >> 1) ^ (~(encoded & 1) + 1));
    if (value < lowest || value > highest) malformed("a number is out of range");
    return value;
}

std::uint64_t Reader::fixed() {
    std::uint64_t value = 0;
    const auto bytes = take(8);
    for (std::size_t i = 0; i < 8; ++i)
        value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return value;
}

std::string Reader::string(std::size_t longest) {
    const auto length = number(longest);
    const auto text = take(length);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
}

Bytes Reader::bytes() {
    const auto data = take(number());
    return {data.begin(), data.end()};
}

std::vector<int> Reader::ranks(int size) {
    std::vector<int> ranks(count(static_cast<std::size_t>(size)));
    for (int& each : ranks) each = rank(size);
    return ranks;
}

void Reader::expect_end() const {
    if (!data_.empty()) malformed("bytes are left over");
}

}  // namespace guozhuang::protocol
