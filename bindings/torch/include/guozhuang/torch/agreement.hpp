#pragma once

#include <c10/util/Exception.h>
#include <cstddef>
#include <exception>
#include <guozhuang/error.hpp>
#include <guozhuang/training.hpp>
#include <string>
#include <vector>

namespace guozhuang::torch::detail {

/// Returns an exception's message, without libtorch's backtrace.
inline std::string text_of(const std::exception& error) {
    const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
    return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

/// Returns the results of `describe` on all ranks of the set, by rank. If it throws on one, all
/// ranks throw: that rank its own exception, the others Error(invalid_argument) with its text.
/// Collective.
template <class Describe>
std::vector<std::string> gather_texts(const ProcessSet& set, const Describe& describe) {
    constexpr char fails = '!', succeeds = '=';
    std::exception_ptr failure;
    std::string own;
    try {
        own = succeeds + describe();
    } catch (const std::exception& error) {
        failure = std::current_exception();
        own = fails + text_of(error);
    }
    auto texts = all_gather_bytes(own, set);
    if (failure) std::rethrow_exception(failure);
    const auto ranks = set.ranks();
    for (std::size_t i = 0; i < texts.size(); ++i) {
        if (texts[i].starts_with(fails))
            throw Error(ErrorCode::invalid_argument,
                        "rank " + std::to_string(ranks[i]) + ": " + texts[i].substr(1),
                        {.ranks = {ranks[i]}});
        texts[i].erase(0, 1);
    }
    return texts;
}

/// The same for what has nothing to say.
template <class Act>
void on_all_ranks(const ProcessSet& set, const Act& act) {
    gather_texts(set, [&] { return act(), std::string(); });
}

}  // namespace guozhuang::torch::detail
