#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <guozhuang/convert.hpp>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/master_weights.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error_text.hpp"

namespace guozhuang {
namespace {

bool is_16_bit(DType dtype) {
    return dtype == DType::f16 || dtype == DType::bf16;
}

DType dtype_of_copy(DType dtype) {
    return is_16_bit(dtype) ? DType::f32 : dtype;
}

[[noreturn]] void refuse_parameter(const Parameter& parameter, const std::string& problem) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("MasterWeights: {} {}", base::quote(parameter.name), problem),
                {.tensor = parameter.name, .operation = "MasterWeights"});
}

void check_trainable(const Parameter& parameter) {
    const auto require = [&](bool is_right, const std::string& problem) {
        if (!is_right) refuse_parameter(parameter, problem);
    };
    for (const auto* const tensor : {&parameter.value, &parameter.gradient}) {
        require(tensor->device.kind == DeviceKind::host,
                "is on a device; only host memory has master weights");
        require(is_floating(tensor->dtype),
                fmt::format("is {}; f16, bf16, f32 and f64 can be trained with master weights",
                            name_of(tensor->dtype)));
        require(tensor->strides.empty(), "has strides; it must be contiguous");
    }
    require(parameter.value.count() == parameter.gradient.count(),
            "has a value and a gradient of different shapes");
    const auto value = dtype_of_copy(parameter.value.dtype),
               gradient = dtype_of_copy(parameter.gradient.dtype);
    require(value == gradient,
            fmt::format("has a value of {}, which cannot be trained with a gradient of {}",
                        name_of(parameter.value.dtype), name_of(parameter.gradient.dtype)));
}

/// The copies of one value would overwrite each other's updates.
void check_distinct(const std::vector<Parameter>& parameters) {
    std::map<const void*, const Parameter*> known;
    for (const auto& parameter : parameters) {
        if (parameter.value.count() == 0) continue;
        const auto& other = *known.try_emplace(parameter.value.data, &parameter).first->second;
        if (other.gradient.data != parameter.gradient.data)
            refuse_parameter(parameter, fmt::format("and {} have the same value, but not the same "
                                                    "gradient",
                                                    base::quote(other.name)));
    }
}

}  // namespace

MasterCopies::MasterCopies(std::vector<Parameter> parameters) : trained_(std::move(parameters)) {
    std::erase_if(trained_, [](const Parameter& each) { return !each.has_gradient(); });
    check_distinct(trained_);
    for (const auto& parameter : trained_) {
        check_trainable(parameter);
        auto copy = parameter;
        if (is_16_bit(parameter.value.dtype)) {
            auto& [name, values] =
                masters_.emplace_back(parameter.name, std::vector<float>(parameter.value.count()));
            copy.value = TensorView(values, parameter.value.shape);
            convert(parameter.value, copy.value);
            rounded_.resize(std::max(rounded_.size(), parameter.value.bytes()));
        }
        copy.gradient.dtype = dtype_of_copy(parameter.gradient.dtype);
        copy.gradient.data = gradients_.emplace_back(copy.gradient.bytes()).data();
        copies_.push_back(std::move(copy));
    }
}

/// Whether the trainer's value is the one to which the copy is rounded.
bool MasterCopies::is_current(std::size_t parameter) {
    const auto& value = trained_[parameter].value;
    convert(copies_[parameter].value, TensorView(rounded_.data(), value.dtype, value.shape));
    return value.count() == 0 || std::memcmp(rounded_.data(), value.data, value.bytes()) == 0;
}

void MasterCopies::read(double factor) {
    for (std::size_t i = 0; i < trained_.size(); ++i) {
        const auto& copy = copies_[i];
        if (is_16_bit(trained_[i].value.dtype) && !is_current(i))
            convert(trained_[i].value, copy.value);
        convert(trained_[i].gradient, copy.gradient);
        if (factor != 1) scale(copy.gradient, factor);
    }
}

void MasterCopies::write_values() const {
    for (std::size_t i = 0; i < trained_.size(); ++i)
        if (is_16_bit(trained_[i].value.dtype)) convert(copies_[i].value, trained_[i].value);
}

}  // namespace guozhuang
