#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <guozhuang/error.hpp>
#include <guozhuang/tensor.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error_text.hpp"

namespace guozhuang::api {

/// Throws errors of the caller, which name operation and tensor.
class Check {
public:
    /// `rank`: the rank that reports errors; empty: not known yet.
    Check(std::string_view operation, std::string_view name, std::optional<int> rank)
        : operation_(operation), name_(name), rank_(rank) {}

    /// For a part of the request, which the errors name too.
    Check of(std::string_view part) const {
        auto check = *this;
        check.part_ = fmt::format("{}: ", part);
        return check;
    }
    /// For a tensor of a group, by name or, without names, by number.
    Check of_tensor(std::span<const std::string> names, std::size_t number) const {
        auto check = *this;
        check.tensor_names_ = names;
        check.tensor_ = number;
        return check;
    }
    template <class... Args>
    void that(bool fine, fmt::format_string<Args...> problem, Args&&... args) const {
        if (!fine)
            fail(ErrorCode::invalid_argument, fmt::format(problem, std::forward<Args>(args)...));
    }
    [[noreturn]] void fail(ErrorCode code, const std::string& problem) const {
        throw Error(code,
                    fmt::format("{}{}: {}{}", operation_,
                                name_.empty() ? "" : " " + base::quote(name_), part(), problem),
                    {.tensor = tensor_names_.empty() ? std::string(name_) : tensor_names_[*tensor_],
                     .operation = std::string(operation_),
                     .ranks = rank_ ? std::vector{*rank_} : std::vector<int>{}});
    }

private:
    std::string part() const {
        if (!tensor_) return part_;
        return tensor_names_.empty() ? fmt::format("[{}]: ", *tensor_)
                                     : base::quote(tensor_names_[*tensor_]) + ": ";
    }

    std::string_view operation_, name_;
    std::string part_;
    std::span<const std::string> tensor_names_;
    std::optional<std::size_t> tensor_;  ///< of a group
    std::optional<int> rank_;
};

/// The list as a text, which is made only if it is printed.
inline auto list_of(std::span<const std::int64_t> numbers) {
    return fmt::join(numbers, ", ");
}

inline std::string name_of(Device device) {
    return device.kind == DeviceKind::host
               ? "the host"
               : fmt::format("{} {}", guozhuang::name_of(device.kind), device.index);
}

void check_tensor(const TensorView& tensor, const Check& check);

}  // namespace guozhuang::api
