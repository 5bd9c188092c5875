#pragma once

#include <initializer_list>
#include <vector>

namespace guozhuang::test {

#if defined(__has_feature)
#define GUOZHUANG_CLANG_HAS(feature) __has_feature(feature)
#else
#define GUOZHUANG_CLANG_HAS(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || GUOZHUANG_CLANG_HAS(thread_sanitizer)
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || GUOZHUANG_CLANG_HAS(address_sanitizer)
inline constexpr bool under_sanitizer = true;
#else
inline constexpr bool under_sanitizer = under_thread_sanitizer;
#endif
#undef GUOZHUANG_CLANG_HAS

/// The numbers of ranks with which a case runs in turn: all of these, but only three ranks under a
/// sanitizer, which is slow.
inline std::vector<int> rank_counts(std::initializer_list<int> all) {
    return under_sanitizer ? std::vector{3} : std::vector(all);
}

/// How often a case is repeated that would be repeated so often without a sanitizer.
inline int repeats(int times) {
    return under_sanitizer ? times / 5 : times;
}

}  // namespace guozhuang::test
