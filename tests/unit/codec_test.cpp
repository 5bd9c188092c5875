#include "protocol/codec.hpp"

#include <guozhuang/error.hpp>
#include <limits>

#include "support/runner/catch.hpp"

namespace guozhuang::protocol {
namespace {

enum class Colour : std::uint8_t { red = 0, green = 1, blue = 2 };
constexpr Colour last_of(Colour) noexcept {
    return Colour::blue;
}

enum class Forgotten : std::uint8_t { first = 0, second = 1, added = 2 };
constexpr Forgotten last_of(Forgotten) noexcept {
    return Forgotten::second;
}
enum class WithGap : std::uint8_t { first = 0, third = 2 };
constexpr WithGap last_of(WithGap) noexcept {
    return WithGap::third;
}
static_assert(knows_its_last<Colour>());
static_assert(!knows_its_last<Forgotten>());
static_assert(!knows_its_last<WithGap>());

Bytes bytes_of(std::initializer_list<int> values) {
    Bytes bytes;
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
    return bytes;
}

/// Whether reading throws Error(wire), and nothing else.
template <class Read>
bool refused(const Bytes& bytes, Read&& read) {
    Reader in(bytes);
    try {
        read(in);
        return false;
    } catch (const Error& error) {
        return error.code() == ErrorCode::wire;
    }
}

constexpr auto read_number = [](Reader& in) { in.number(); };

}  // namespace

TEST_CASE("numbers come back, small ones in one byte") {
    for (int bit = 0; bit < 64; ++bit) {
        for (const auto value :
             {std::uint64_t{1} << bit, (std::uint64_t{1} << bit) - 1, ~std::uint64_t{0} >> bit}) {
            Writer out;
            out.number(value);
            const auto bytes = out.take();
            CHECK(bytes.size() ==
                  std::max<std::size_t>(1,
                                        (static_cast<std::size_t>(std::bit_width(value)) + 6) / 7));
            Reader in(bytes);
            CHECK(in.number() == value);
            CHECK(in.at_end());
        }
    }
}

TEST_CASE("signed numbers come back, and magnitudes below 64 take one byte") {
    using Limits = std::numeric_limits<std::int64_t>;
    for (const std::int64_t value :
         {std::int64_t{0}, std::int64_t{-1}, std::int64_t{63}, std::int64_t{-64}, std::int64_t{64},
          Limits::min(), Limits::max()}) {
        Writer out;
        out.signed_number(value);
        const auto bytes = out.take();
        CHECK((bytes.size() == 1) == (value >= -64 && value < 64));
        CHECK(Reader(bytes).signed_number() == value);
    }
}

TEST_CASE("a message comes back, and every prefix of it is refused") {
    Writer out;
    out.number(300);
    out.signed_number(-5);
    out.real(-0.1);
    out.fixed(0x0123456789abcdef);
    out.string("name");
    out.bytes(bytes_of({1, 2, 3}));
    out.enumerator(Colour::blue);
    const auto bytes = out.take();
    CHECK(out.empty());

    bool same = false;
    const auto read = [&](Reader& in) {
        same = in.number() == 300 && in.signed_number() == -5 && in.real() == -0.1 &&
               in.fixed() == 0x0123456789abcdef && in.string() == "name" &&
               in.bytes() == bytes_of({1, 2, 3}) && in.enumerator<Colour>() == Colour::blue;
        in.expect_end();
    };
    CHECK_FALSE(refused(bytes, read));
    CHECK(same);
    for (std::size_t length = 0; length < bytes.size(); ++length)
        CHECK(refused(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)),
                      read));
    auto longer = bytes;
    longer.push_back({});
    CHECK(refused(longer, read));
}

TEST_CASE("values out of range are refused") {
    CHECK(refused(bytes_of({8}), [](Reader& in) { in.number(7); }));
    CHECK(refused(bytes_of({4}), [](Reader& in) { in.rank(4); }));
    CHECK_FALSE(refused(bytes_of({3}), [](Reader& in) { in.rank(4); }));
    CHECK(refused(bytes_of({3}), [](Reader& in) { in.enumerator<Colour>(); }));
    CHECK(refused(bytes_of({1}), [](Reader& in) { in.signed_number(0, 5); }));
    CHECK(refused(bytes_of({12}), [](Reader& in) { in.signed_number(0, 5); }));
    CHECK_FALSE(refused(bytes_of({10}), [](Reader& in) { in.signed_number(0, 5); }));
    CHECK(refused(bytes_of({4, 'n', 'a', 'm', 'e'}), [](Reader& in) { in.string(3); }));
}

TEST_CASE("a number has one encoding: longer ones are refused") {
    CHECK_FALSE(refused(bytes_of({0x00}), read_number));
    for (const auto& padded :
         {bytes_of({0x80, 0x00}), bytes_of({0x81, 0x00}), bytes_of({0x81, 0x80, 0x00})})
        CHECK(refused(padded, read_number));
}

TEST_CASE("numbers of more than 64 bits are refused") {
    CHECK_FALSE(refused(bytes_of({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}),
                        read_number));
    CHECK(refused(bytes_of({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}),
                  read_number));
    CHECK(refused(bytes_of({0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00}),
                  read_number));
}

TEST_CASE("a count or length that the message cannot hold is refused before room is made for it") {
    Writer out;
    out.number(max_tensors);
    CHECK(refused(out.take(), [](Reader& in) { in.count(max_tensors); }));
    CHECK_FALSE(refused(bytes_of({2, 0, 0}), [](Reader& in) { in.count(max_tensors); }));
    out.number(~std::uint64_t{0});
    const auto endless = out.take();
    CHECK(refused(endless, [](Reader& in) { in.bytes(); }));
    CHECK(refused(endless, [](Reader& in) { in.string(~std::size_t{0}); }));
}

}  // namespace guozhuang::protocol
