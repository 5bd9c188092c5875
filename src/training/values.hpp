#pragma once

#include <cstddef>
#include <guozhuang/arena.hpp>
#include <guozhuang/process_set.hpp>
#include <guozhuang/session.hpp>
#include <guozhuang/tensor.hpp>
#include <span>
#include <string>
#include <vector>

namespace guozhuang {

/// The values of parameters, each memory once even if parameters share it, for a part of training
/// that averages them on the host. `label` names the part in errors. Throws Error(invalid_argument)
/// for no parameters, empty or duplicate names, and values that are not contiguous f32 or f64 in
/// host memory or that overlap.
std::vector<NamedTensor> values_of(std::span<const Parameter> parameters, const std::string& label);

/// Tensors with the names, dtypes and shapes of others, in memory of their own.
class Copies {
public:
    /// With the same elements.
    explicit Copies(std::span<const NamedTensor> originals);
    /// Their memory stays where it is when this is moved.
    const std::vector<NamedTensor>& tensors() const noexcept { return tensors_; }

private:
    std::vector<std::vector<std::byte>> memory_;
    std::vector<NamedTensor> tensors_;
};

/// Copies the elements of all tensors to others of the same dtypes and shapes.
void copy(std::span<const NamedTensor> from, std::span<const NamedTensor> to);

/// Bundles of about 25 MiB, in which tensors travel.
std::vector<std::vector<NamedTensor>> bundles_of(std::span<const NamedTensor> tensors);

/// The ranks that a part's options name.
ProcessSet ranks_of(Session* session, const ProcessSet& process_set);

/// Calls act(x, y ...) for the elements of tensors that have the same f32 or f64 and shape.
template <class Act, class... Tensors>
void for_each_element(const Act& act, const TensorView& first, const Tensors&... others) {
    const auto loop = [&]<class T>(T*, const auto... elements) {
        for (std::size_t i = 0, count = first.count(); i < count; ++i)
            act(static_cast<T*>(elements)[i]...);
    };
    if (first.dtype == DType::f32)
        return loop(static_cast<float*>(nullptr), first.data, others.data...);
    loop(static_cast<double*>(nullptr), first.data, others.data...);
}

}  // namespace guozhuang
