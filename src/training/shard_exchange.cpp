#include "training/shard_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <guozhuang/operations.hpp>
#include <memory>
#include <type_traits>

namespace guozhuang {
namespace {

/// All elements in one dimension.
TensorView flat(const TensorView& tensor) {
    return {tensor.data, tensor.dtype, {static_cast<std::int64_t>(tensor.count())}};
}

}  // namespace

void ShardExchange::send_gradients(ShardBundle& bundle, std::size_t number) const {
    AllreduceOptions reduction{.name = fmt::format("{}/gradients {}", name, number),
                               .op = ReduceOp::average,
                               .postscale = options.gradient_scale,
                               .splits = bundle.splits,
                               .session = options.session,
                               .process_set = options.process_set};
    auto view = flat(parameters[bundle.parameters.front()].gradient);
    if (bundle.is_packed()) {
        const auto packed =
            std::make_shared_for_overwrite<std::byte[]>(bundle.count * bundle.width());
        auto* end = packed.get();
        for (const auto parameter : bundle.parameters)
            end = std::ranges::copy(parameters[parameter].gradient.memory(), end).out;
        view = {packed.get(), bundle.dtype, {static_cast<std::int64_t>(bundle.count)}};
        reduction.keep_alive = packed;  // freed as soon as it is reduced
    }
    bundle.reducing = reduce_scatter_async(view, reduction);
}

void ShardExchange::take_gradients(ShardBundle& bundle) {
    auto result = bundle.reducing.take();
    if (bundle.sum.bytes.empty()) {
        bundle.sum = std::move(result);
        return;
    }
    const auto add = [&]<class T>(std::type_identity<T>) {
        const auto sum = bundle.sum.values<T>();
        std::ranges::transform(sum, result.values<T>(), sum.begin(), std::plus());
    };
    bundle.dtype == DType::f32 ? add(std::type_identity<float>())
                               : add(std::type_identity<double>());
}

void ShardExchange::send_values(ShardBundle& bundle, std::size_t number) const {
    bundle.gathering = {};  // stays empty if this throws
    Options gathering{.name = fmt::format("{}/values {}", name, number),
                      .session = options.session,
                      .process_set = options.process_set};
    const auto width = bundle.width();
    const auto own = static_cast<std::int64_t>(bundle.own);
    if (!bundle.is_packed()) {
        const auto whole = flat(parameters[bundle.parameters.front()].value);
        gathering.outputs = {whole};
        auto* const block = static_cast<std::byte*>(whole.data) + bundle.first * width;
        bundle.gathering = all_gather_async(TensorView(block, bundle.dtype, {own}), gathering);
        return;
    }
    const auto packed = std::make_shared_for_overwrite<std::byte[]>(bundle.own * width);
    bundle.for_own(parameters, [&](auto parameter, auto first, auto at, auto count) {
        const auto memory = parameters[parameter].value.memory();
        std::ranges::copy(memory.subspan(first * width, count * width), packed.get() + at * width);
    });
    gathering.keep_alive = packed;
    bundle.gathering = all_gather_async(TensorView(packed.get(), bundle.dtype, {own}), gathering);
}

void ShardExchange::take_values(ShardBundle& bundle) const {
    if (!bundle.gathering) return;
    const auto result = bundle.gathering.take();
    if (!bundle.is_packed()) return;
    const auto* begin = result.bytes.data();
    for (const auto parameter : bundle.parameters) {
        const auto memory = parameters[parameter].value.memory();
        std::copy_n(begin, memory.size(), memory.data());
        begin += memory.size();
    }
}

}  // namespace guozhuang
