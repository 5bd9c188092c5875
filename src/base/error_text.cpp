#include "base/error_text.hpp"

#include <cstdlib>
#include <cxxabi.h>
#include <fmt/format.h>
#include <memory>
#include <new>
#include <typeinfo>

namespace guozhuang::base {
namespace {

// Short enough for a std::string that allocates nothing.
constexpr const char* out_of_memory = "out of memory";

std::string name_of(const std::type_info& type) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> name(
        abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
    return name ? name.get() : type.name();
}

}  // namespace

std::string describe(const std::exception_ptr& exception) try {
    try {
        std::rethrow_exception(exception);
    } catch (const std::bad_alloc&) {
        return out_of_memory;
    } catch (const Error& error) {
        return error.what();
    } catch (const std::exception& error) {
        return fmt::format("{}: {}", name_of(typeid(error)), error.what());
    } catch (...) {
        const auto* type = abi::__cxa_current_exception_type();
        return type != nullptr ? name_of(*type) : "an unknown exception";
    }
} catch (const std::bad_alloc&) {
    return out_of_memory;
}

std::string quote(std::string_view name) {
    constexpr std::size_t most = 200;
    if (name.size() <= most) return fmt::format("'{}'", name);
    const auto continues = [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
    };
    auto end = most;
    while (end > most - 3 && continues(name[end])) --end;
    return fmt::format("'{}...' ({} bytes)", name.substr(0, end), name.size());
}

std::string list_ranks(std::span<const int> ranks) {
    constexpr std::size_t most = 20;
    const auto shortest_run = ranks.size() <= most ? ranks.size() + 1 : 3;
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    std::size_t begin = 0;
    for (std::size_t runs = 0, end = 0; begin < ranks.size() && runs < most; begin = end) {
        for (end = begin + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
        if (end - begin < shortest_run) end = begin + 1;
        text += fmt::format("{}{}", runs++ == 0 ? "" : ",", ranks[begin]);
        if (end - begin > 1) text += fmt::format("-{}", ranks[end - 1]);
    }
    if (begin < ranks.size()) text += fmt::format(" and {} more", ranks.size() - begin);
    return text;
}

std::optional<ErrorCode> code_of(const std::exception_ptr& exception) noexcept {
    try {
        std::rethrow_exception(exception);
    } catch (const Error& error) {
        return error.code();
    } catch (...) {
        return std::nullopt;
    }
}

}  // namespace guozhuang::base
