#pragma once

#include <functional>
#include <guozhuang/session.hpp>
#include <vector>

#include "support/runner/report.hpp"

/// Every call of the public headers, on two ranks, as a program makes it and looks at the result.
namespace guozhuang::test {

constexpr int ranks_of_calls = 2;

/// The calls of one rank. As far as possible only the library allocates in a step, and a step that
/// has run out of memory can be done again.
struct Call {
    std::vector<std::function<void()>> steps;
    std::function<void(Report&)> check = [](Report&) {};
    bool closes = false;  ///< nothing can follow; a rank may close although another could not
};

struct PublicCall {
    const char* name;
    Call (*prepare)(Session&);
};
const std::vector<PublicCall>& public_calls();

/// Asynchronous ones that the library's own threads bring forward: this rank does not wait in it.
Call idling(Session& session);

}  // namespace guozhuang::test
