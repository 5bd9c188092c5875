#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <guozhuang/guozhuang.hpp>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "support/cases/error_cases.hpp"
#include "support/cases/operation_cases.hpp"

/// Tensors in memory that all ranks have mapped, beside others.
namespace guozhuang::test {

/// Larger than what goes by the small path; not a multiple of anything.
inline constexpr std::int64_t many = 50'021;

bool may_share();

bool can_share();

/// A rank's tensor, and memory of its size: in an arena, or its own if there is no arena.
struct Placed {
    Tensor tensor;
    TensorView view;

    Placed(Tensor contents, GradientArena* arena)
        : tensor(std::move(contents)), view(tensor.view()) {
        if (arena == nullptr || tensor.bytes.empty()) return;
        view.data = arena->allocate(tensor.bytes.size());
        std::memcpy(view.data, tensor.bytes.data(), tensor.bytes.size());
    }
    const Tensor& now() {
        if (!tensor.bytes.empty() && view.data != tensor.bytes.data())
            std::memcpy(tensor.bytes.data(), view.data, tensor.bytes.size());
        return tensor;
    }
};

/// Reduces tensors of several sizes that lie in this rank's arena, as a group; looks at every
/// element.
void reduce_group(Session& session, Report& report, const std::string& name, GradientArena* arena,
                  const Reduce& reduce = {.dtype = DType::f32, .shape = {}, .how = {}});

/// Arenas of other sizes, tensors at other offsets in them, some on some ranks only: every result
/// is right.
void unequal_arenas(Session& session, Report& report);

/// Memory that each rank gets from malloc, at its own distance from the beginning of a page.
class Buffer {
public:
    Buffer(Session& session, std::size_t bytes)
        : memory_(bytes + 5000), offset_(static_cast<std::size_t>(session.rank() * 4 % 5000)) {}
    std::span<float> numbers(std::size_t first, std::size_t count) {
        return {reinterpret_cast<float*>(memory_.data() + offset_) + first, count};
    }
    /// At an odd distance on odd ranks.
    std::span<std::byte> oddly(Session& session, std::size_t bytes) {
        return std::span(memory_).subspan(offset_ + static_cast<std::size_t>(session.rank() % 2),
                                          bytes);
    }

private:
    std::vector<std::byte> memory_;
    std::size_t offset_;
};

/// Fills with this rank's number, reduces, and looks at every element.
void reduce_numbers(Session& session, Report& report, const std::string& name,
                    const std::vector<std::span<float>>& tensors);

/// Neighbours, with and without a gap; of a few bytes, of more than a page, and none.
std::vector<std::span<float>> several(Buffer& buffer);

/// A child sees the parent's data, and its own writes stay with it.
void children_apart(Session& session, Report& report);

/// Times of both kinds of memory that are the same on all ranks, of reductions that leave the
/// gradients as they are; an error on all ranks once a batch has begun on one.
void measured_sharing(Session& session, Report& report);

/// Parameters of which the first and the last have one gradient. The small first bundle keeps them
/// in different ones.
struct Tied {
    std::vector<float> shared, other;
    std::vector<Parameter> parameters;

    explicit Tied(bool are_tied = true) : shared(20'000), other(30'000), own_(20'000) {
        auto& last = are_tied ? shared : own_;
        parameters = {{"embedding", TensorView(shared), TensorView(shared)},
                      {"layer", TensorView(other), TensorView(other)},
                      {"output", TensorView(last), TensorView(last)}};
    }

private:
    std::vector<float> own_;
};

struct NoOptimizer {
    void step() {}
};

OptimizerOptions options_of(Session& session, const std::string& name, Memory memory);

/// Whether hooks are used, and whether they are for the first name of the tied gradient alone.
struct Marks {
    std::string name;
    bool hooks = false, once = false;
};

/// One step of a backward that adds to the tied gradient twice, and marks it either time or once.
template <class Optimizer>
void step_tied(Session& session, Report& report, Tied& tied, Optimizer& optimizer,
               const Marks& marks) {
    const auto& [name, hooks, once] = marks;
    const auto number = static_cast<float>(session.rank() + 1);
    const auto hook = optimizer.on_gradient();
    std::ranges::fill(tied.shared, number);
    if (hooks && !once) hook("output");
    std::ranges::fill(tied.other, number);
    if (hooks) hook("layer");
    for (auto& element : tied.shared) element += 1;
    if (hooks) hook("embedding");
    optimizer.step();
    const auto size = static_cast<float>(session.size()), sum = size * (size + 1) / 2,
               both = sum + size;
    report.expect(std::ranges::all_of(tied.shared, [&](float element) { return element == both; }),
                  text_of(name, ": the tied gradient is ", tied.shared[100], ", not ", both));
    report.expect(std::ranges::all_of(tied.other, [&](float element) { return element == sum; }),
                  name + ": the other gradient");
}

/// How many bytes this rank moves in the act.
template <class Act>
std::uint64_t bytes_moved(Session& session, Act&& act) {
    const auto before = traffic(&session).bytes;
    act();
    return traffic(&session).bytes - before;
}

extern const std::vector<RankCase> all_arena_cases;

}  // namespace guozhuang::test
