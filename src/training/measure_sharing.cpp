#include "training/measure_sharing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory_resource>
#include <new>
#include <optional>
#include <utility>

namespace guozhuang {
namespace {

constexpr int rounds_to_warm_up = 2, rounds_to_time = 7;
constexpr std::size_t cache_line = 64;  // an arena begins each tensor at one

/// Zeros like the gradients of a model, reduced as these are; and how long that takes.
class Trial {
public:
    Trial(const std::vector<Parameter>& model, const OptimizerOptions& options,
          std::pmr::memory_resource& memory)
        : options_(options), reducer_(zeros_like(model, memory), options) {}

    /// What an arena for the same tensors needs.
    std::size_t bytes_in_arena() const {
        std::size_t bytes = 0;
        for (const auto& [gradient, zeros] : tensors_)
            bytes += (zeros.size() + cache_line - 1) / cache_line * cache_line;
        return bytes;
    }
    /// One reduction, which all ranks begin together.
    void run() {
        using Clock = std::chrono::steady_clock;
        barrier({.name = options_.name,
                 .session = options_.session,
                 .process_set = options_.process_set});
        const auto start = Clock::now();
        reducer_.finish_pass();
        seconds_.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    double median() {
        const auto first = seconds_.begin() + rounds_to_warm_up,
                   middle = first + rounds_to_time / 2;
        std::nth_element(first, middle, seconds_.end());
        return *middle;
    }

private:
    std::vector<Parameter> zeros_like(const std::vector<Parameter>& model,
                                      std::pmr::memory_resource& memory) {
        std::vector<Parameter> all;
        for (const auto& parameter : model) {
            auto tensor = parameter.gradient;
            if (!parameter.has_gradient() || tensor.device.kind != DeviceKind::host) continue;
            const auto [zeros, is_new] =
                tensors_.try_emplace({tensor.data, tensor.bytes()}, tensor.bytes(), &memory);
            tensor.data = zeros->second.data();
            all.push_back({parameter.name, tensor, tensor});
        }
        return all;
    }

    OptimizerOptions options_;
    /// By where the gradient lies: tied weights have one.
    std::map<std::pair<const void*, std::size_t>, std::pmr::vector<std::byte>> tensors_;
    GradientReducer reducer_;
    std::vector<double> seconds_;
};

}  // namespace

SharingTimes measure_sharing(const std::vector<Parameter>& model, OptimizerOptions options,
                             const std::string& name, const ProcessSet& ranks) try {
    const auto is_on_host = [](const Parameter& each) {
        return each.has_gradient() && each.gradient.device.kind == DeviceKind::host;
    };
    if (std::ranges::none_of(model, is_on_host)) return {};
    options.backward_passes_per_step = 1;
    options.stream = {};
    options.check_values = false;
    options.memory = Memory::as_is;
    options.process_set = ranks;
    options.name = fmt::format("private memory of {}", name);
    Trial in_private(model, options, *std::pmr::new_delete_resource());

    std::optional<GradientArena> arena;
    std::optional<Trial> in_arena;
    if (ranks.size() > 1 && !ranks.state())
        arena.emplace(in_private.bytes_in_arena(), ranks.session());
    if (arena && arena->is_shared()) {
        options.name = fmt::format("arena of {}", name);
        in_arena.emplace(model, options, *arena);
    }
    for (int round = 0; round < rounds_to_warm_up + rounds_to_time; ++round) {
        in_private.run();
        if (in_arena) in_arena->run();
    }
    std::array<double, 2> seconds{in_private.median()};
    seconds[1] = in_arena ? in_arena->median() : seconds[0];
    allreduce(seconds, {.name = fmt::format("sharing of {}", name),
                        .op = ReduceOp::max,
                        .session = options.session,
                        .process_set = ranks});
    return {.possible = in_arena.has_value(), .private_s = seconds[0], .shared_s = seconds[1]};
} catch (const std::bad_alloc&) {  // the other ranks would wait for this one
    ranks.end_job_without_memory("measure_sharing");
}

}  // namespace guozhuang
