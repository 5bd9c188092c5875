// Notices of another host that the job has ended, and messages that are no such notice.
#include "wire/mpi/abort_notice.hpp"

#include <cstring>
#include <guozhuang/error.hpp>
#include <string>

#include "support/runner/catch.hpp"

namespace guozhuang::wire::mpi {
namespace {

Messages::Message message_of(const AbortNotice& notice) {
    Messages::Message message{.from = 3, .bytes = std::vector<std::byte>(sizeof notice)};
    std::memcpy(message.bytes.data(), &notice, sizeof notice);
    return message;
}

std::string refusal_of(const Messages::Message& message) {
    try {
        AbortNotice::from(message);
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::wire);
        CHECK(error.ranks() == std::vector{3});
        return error.what();
    }
    return "none";
}

}  // namespace

TEST_CASE("an abort notice says which rank ended the job, with which error, and why") {
    AbortNotice notice{.culprit = 2, .code = static_cast<std::int32_t>(ErrorCode::departed)};
    notice.text = {'w', 'h', 'y'};
    const auto arrived = AbortNotice::from(message_of(notice));
    CHECK(arrived.cause().rank == 2);
    CHECK(arrived.cause().code == ErrorCode::departed);
    CHECK(arrived.cause().text == "why");
}

TEST_CASE("an abort notice of another length or of an unknown error code is refused") {
    auto message = message_of({});
    message.bytes.pop_back();
    CHECK(refusal_of(message).find("rank 3 sent a notice of 2") != std::string::npos);
    const auto last = static_cast<std::int32_t>(last_of(ErrorCode{}));
    CHECK(refusal_of(message_of({.code = last})) == "none");
    for (const auto code : {-1, last + 1}) {
        CAPTURE(code);
        CHECK(refusal_of(message_of({.code = code}))
                  .find("unknown error code " + std::to_string(code)) != std::string::npos);
    }
}

}  // namespace guozhuang::wire::mpi
