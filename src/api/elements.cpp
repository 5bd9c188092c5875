#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <guozhuang/convert.hpp>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <memory>
#include <new>
#include <utility>
#include <vector>
#include <xxhash.h>

#include "api/process_set_state.hpp"
#include "api/requests.hpp"
#include "device/host/host_reduce.hpp"
#include "device/host/kernels.hpp"
#include "device/host/sum_of_squares.hpp"

namespace guozhuang {
namespace {

[[noreturn]] void fail(ErrorCode code, std::string_view function, std::string_view problem) {
    throw Error(code, fmt::format("{}: {}", function, problem),
                {.operation = std::string(function)});
}

void check_floating(const TensorView& tensor, std::string_view function) {
    if (!is_floating(tensor.dtype))
        fail(ErrorCode::invalid_argument, function,
             fmt::format("its dtype is {}; it must be f16, bf16, f32 or f64",
                         name_of(tensor.dtype)));
}

bool is_on_host(const TensorView& tensor) {
    return tensor.device.kind == DeviceKind::host;
}

/// A device, and the stream on which work on its tensors is enqueued.
class Site {
public:
    Site(std::string_view function, Device device, const ElementOptions& options) try
        : set_(api::set_runtime_of(options.session, options.process_set)),
          device_(device),
          driver_(set_->driver_of(device.kind)),
          stream_(driver_->wrap(options.stream && options.stream->device == device
                                    ? *options.stream
                                    : StreamRef{.device = device, .native = nullptr})) {
    } catch (const Error& error) {
        fail(error.code(), function, error.what());
    }

    device::Driver& driver() const noexcept { return *driver_; }
    device::Stream& stream() const noexcept { return *stream_; }

    /// Throws Error(invalid_argument) for memory that is not on the device.
    void check(const TensorView& tensor, std::string_view function) const {
        if (const auto problem = set_->device_mismatch(tensor); !problem.empty())
            fail(ErrorCode::invalid_argument, function, problem);
    }
    LentWorkspace workspace() const { return {set_->workspaces(), driver_, device_}; }
    void wait_for(const device::Event& event) const { set_->wait_for(event); }

private:
    std::shared_ptr<SetRuntime> set_;
    Device device_;
    std::shared_ptr<device::Driver> driver_;
    std::shared_ptr<device::Stream> stream_;
};

/// The site of one tensor.
Site site_of(const TensorView& tensor, std::string_view function, const ElementOptions& options) {
    Site site(function, tensor.device, options);
    site.check(tensor, function);
    return site;
}

/// Copies are enqueued into one half of the pinned memory while the other half is hashed.
std::uint64_t hash_on_device(const Site& site, std::span<const std::byte> memory) {
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                         XXH3_freeState);
    if (!state || XXH3_64bits_reset(state.get()) != XXH_OK) throw std::bad_alloc();
    auto workspace = site.workspace();
    const auto half = Workspace::pinned_bytes / 2;
    const auto part = [&](std::size_t i) {
        return workspace->pinned().subspan(i % 2 * half, std::min(half, memory.size() - i * half));
    };
    const auto copied = [&](std::size_t i) -> std::shared_ptr<device::Event> {
        if (i * half >= memory.size()) return nullptr;
        site.driver().copy(site.stream(), part(i), memory.subspan(i * half, part(i).size()));
        return site.stream().record();
    };
    auto next = copied(0);
    for (std::size_t i = 0; next != nullptr; ++i) {
        const auto now = std::exchange(next, copied(i + 1));
        site.wait_for(*now);
        XXH3_64bits_update(state.get(), part(i).data(), part(i).size());
    }
    workspace.give_back();
    return XXH3_64bits_digest(state.get());
}

/// The sums of squares of tensors on one device, which are `of` those given.
void add_up_on_device(const Site& site, std::span<const TensorView> tensors,
                      std::span<const std::size_t> of, std::span<double> sums) {
    auto workspace = site.workspace();
    const std::span results(reinterpret_cast<double*>(workspace->pinned().data()),
                            Workspace::pinned_bytes / sizeof(double));
    while (!of.empty()) {
        const auto some = of.first(std::min(of.size(), results.size()));
        for (std::size_t i = 0; i < some.size(); ++i)
            site.driver().sum_of_squares(site.stream(), tensors[some[i]].dtype,
                                         tensors[some[i]].memory(), workspace->scratch(),
                                         results[i]);
        site.wait_for(*site.stream().record());
        for (std::size_t i = 0; i < some.size(); ++i) sums[some[i]] = results[i];
        of = of.subspan(some.size());
    }
    workspace.give_back();
}

}  // namespace

void zero(const TensorView& tensor, const ElementOptions& options) {
    api::check_tensor(tensor, "zero", "");
    if (tensor.count() == 0) return;
    const auto memory = tensor.memory();
    if (is_on_host(tensor)) {
        std::memset(memory.data(), 0, memory.size());
        return;
    }
    const auto site = site_of(tensor, "zero", options);
    constexpr std::array<std::byte, 1> nothing{};
    site.driver().fill(site.stream(), memory, nothing);
}

void scale(const TensorView& tensor, double factor, const ElementOptions& options) {
    api::check_tensor(tensor, "scale", "");
    check_floating(tensor, "scale");
    if (tensor.count() == 0) return;
    if (is_on_host(tensor)) return device::scale(tensor.dtype, tensor.memory(), factor);
    const auto site = site_of(tensor, "scale", options);
    if (factor == 1) return;
    const device::Copy in_place{tensor.memory(), tensor.memory(), tensor.dtype};
    site.driver().copy_all(site.stream(), {&in_place, 1}, {.scale = factor});
}

double norm(std::span<const TensorView> tensors, const ElementOptions& options) {
    std::vector<double> sums(tensors.size());
    std::vector<std::pair<Device, std::vector<std::size_t>>> on_devices;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto& tensor = tensors[i];
        api::check_tensor(tensor, "norm", "");
        check_floating(tensor, "norm");
        if (tensor.count() == 0) continue;
        if (is_on_host(tensor)) {
            sums[i] = device::sum_of_squares(tensor.dtype, tensor.memory());
            continue;
        }
        auto known = std::ranges::find(on_devices, tensor.device,
                                       &std::pair<Device, std::vector<std::size_t>>::first);
        if (known == on_devices.end()) known = on_devices.insert(known, {tensor.device, {}});
        known->second.push_back(i);
    }
    for (const auto& [device, indices] : on_devices) {
        const Site site("norm", device, options);
        for (const auto i : indices) site.check(tensors[i], "norm");
        add_up_on_device(site, tensors, indices, sums);
    }
    double sum = 0;
    for (const double of_tensor : sums) sum += of_tensor;
    return std::sqrt(sum);
}

std::uint64_t hash(const TensorView& tensor, const ElementOptions& options) {
    api::check_tensor(tensor, "hash", "");
    const auto memory = tensor.count() == 0 ? std::span<std::byte>() : tensor.memory();
    if (is_on_host(tensor) || memory.empty()) return XXH3_64bits(memory.data(), memory.size());
    return hash_on_device(site_of(tensor, "hash", options), memory);
}

void convert(const ConstTensorView& source, const TensorView& to) {
    const auto& from = source.view();
    for (const auto* const tensor : {&from, &to}) {
        api::check_tensor(*tensor, "convert", "");
        if (!is_on_host(*tensor))
            fail(ErrorCode::invalid_argument, "convert",
                 fmt::format("a tensor is on {} {}; both must be in host memory",
                             name_of(tensor->device.kind), tensor->device.index));
    }
    if (from.count() != to.count())
        fail(ErrorCode::invalid_argument, "convert",
             fmt::format("{} elements cannot become {}", from.count(), to.count()));
    const auto is_16_bit = [](DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; };
    if (from.count() == 0) return;
    if (from.dtype == to.dtype)
        std::memmove(to.data, from.data, to.bytes());
    else if (is_16_bit(from.dtype) && to.dtype == DType::f32)
        device::kernels_for(from.dtype, ReduceOp::sum).widen(to.memory(), from.memory());
    else if (from.dtype == DType::f32 && is_16_bit(to.dtype))
        device::kernels_for(to.dtype, ReduceOp::sum).narrow(to.memory(), from.memory(), {});
    else
        fail(ErrorCode::invalid_argument, "convert",
             fmt::format("{} to {} is not supported: f16 and bf16 become f32, and f32 either",
                         name_of(from.dtype), name_of(to.dtype)));
}

}  // namespace guozhuang
