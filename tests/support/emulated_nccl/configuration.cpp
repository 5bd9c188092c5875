#include "support/emulated_nccl/configuration.hpp"

#include <charconv>
#include <cstdlib>
#include <functional>
#include <nccl.h>
#include <string_view>

#include "support/emulated_nccl/calls.hpp"

namespace guozhuang::emulated_nccl {
namespace {

std::string_view text_of(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

std::uint64_t number(const char* name, std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size())
        break_rule(std::string(name) + " has an invalid value: " + std::string(text));
    return value;
}

std::uint64_t number_or(const char* name, std::uint64_t otherwise) {
    const auto text = text_of(name);
    return text.empty() ? otherwise : number(name, text);
}

}  // namespace

const Configuration& configuration() {
    static const auto& read = *new auto([] {
        Configuration all{};
        all.version = static_cast<int>(number_or("EMULATED_NCCL_VERSION", NCCL_VERSION_CODE));
        const auto ctas = text_of("EMULATED_NCCL_CTAS");
        all.ctas = ctas.empty() ? NCCL_CONFIG_UNDEF_INT
                                : static_cast<int>(number("EMULATED_NCCL_CTAS", ctas));
        all.abort_ms = static_cast<int>(number_or("EMULATED_NCCL_ABORT_MS", 100));
        all.hangs = number_or("EMULATED_NCCL_HANG", 0) != 0;
        all.failing_group = number_or("EMULATED_NCCL_ASYNC", 0);
        all.host = std::hash<std::string_view>()(text_of("NCCL_HOSTID"));
        const auto failure = text_of("EMULATED_NCCL_FAIL");
        const auto colon = failure.find(':');
        if (colon != std::string_view::npos)
            all.failing_call = number("EMULATED_NCCL_FAIL", failure.substr(colon + 1));
        all.failing_function = failure.substr(0, colon);
        return all;
    }());
    return read;
}

}  // namespace guozhuang::emulated_nccl
