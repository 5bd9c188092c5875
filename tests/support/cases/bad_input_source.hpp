#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "support/cases/operation_cases.hpp"

/// Requests drawn from a seed that all ranks share, in which some ranks get one thing wrong.
namespace guozhuang::test {

/// The part of a request that is wrong.
enum class Wrong {
    shape,
    dtype,
    operation,
    op,
    root,
    prescale,
    postscale,
    device,
    tensors,  ///< how many
    group,    ///< one instead of a tensor by itself
    order,    ///< no error
    argument,
    name,
    set,
    last = set
};

std::string name_of(Wrong wrong);

/// A name that is not similar to any other.
constexpr const char* unlike_any_other = "something else";

/// A request as one rank makes it, with everything that any operation may need.
struct Input {
    enum class Kind {
        allreduce,
        group,
        broadcast,
        all_gather,
        all_to_all,
        reduce_scatter,
        last = reduce_scatter
    };
    Kind kind = Kind::allreduce;
    std::vector<std::pair<DType, Shape>> tensors = {};  ///< more than one in a group only
    Reduction how = {};
    int root = 0;
    std::vector<std::int64_t> rows = {};  ///< that each rank brings to all_gather
    Splits splits = {};
    DeviceKind device = DeviceKind::host;

    bool reduces() const {
        return kind == Kind::allreduce || kind == Kind::group || kind == Kind::reduce_scatter;
    }
    /// Dim 0 may differ.
    bool has_rows() const { return kind == Kind::all_gather || kind == Kind::all_to_all; }
    bool has_scales() const { return how.prescale != 1 || how.postscale != 1; }

    std::string operation() const {
        constexpr const char* names[] = {"allreduce",  "allreduce",  "broadcast",
                                         "all_gather", "all_to_all", "reduce_scatter"};
        return names[static_cast<std::size_t>(kind)];
    }

    /// One that is fine by itself.
    bool is_valid() const {
        const auto& [dtype, shape] = tensors.front();
        if ((has_rows() || kind == Kind::reduce_scatter) && shape.empty()) return false;
        if (kind != Kind::group && tensors.size() > 1) return false;
        if (!reduces()) return true;
        if (how.op == ReduceOp::adasum && kind == Kind::reduce_scatter) return false;
        return std::ranges::all_of(tensors, [&](const auto& tensor) {
            return is_defined(how.op, tensor.first) && (!has_scales() || is_floating(tensor.first));
        });
    }
};

Finish start(const Input& input, const Among& all, const std::string& name);

std::string shape_text(const Input& input, std::size_t tensor);

/// The name of an aspect in errors about mismatches, and its value.
std::pair<std::string, std::string> aspect_of(const Input& input, Wrong wrong, std::size_t tensor);

/// A request, the wrong one that some ranks make instead, and those ranks.
struct BadInput {
    Wrong wrong = Wrong::shape;
    std::string name = {}, odd_name = {};  ///< the latter is wrong where the name is
    Input usual = {}, odd = {};
    std::size_t tensor = 0;         ///< the one that is spoilt, of a group
    std::vector<bool> is_odd = {};  ///< by rank
    bool odd_is_early = false;
    std::size_t variant = 0;

    std::vector<int> ranks(bool odd_ones) const {
        std::vector<int> found;
        for (int rank = 0; rank < static_cast<int>(is_odd.size()); ++rank)
            if (is_odd[static_cast<std::size_t>(rank)] == odd_ones) found.push_back(rank);
        return found;
    }
    std::string value(const Input& input) const { return aspect_of(input, wrong, tensor).second; }
};

template <class Draw, class IsGood>
auto draw_until(Draw&& draw, IsGood&& is_good) {
    auto drawn = draw();
    while (!is_good(drawn)) drawn = draw();
    return drawn;
}

class BadInputSource {
public:
    BadInputSource(int ranks, std::uint64_t seed)
        : ranks_(static_cast<std::size_t>(ranks)), numbers_(seed) {}

    BadInput draw() {
        BadInput bad{.wrong = static_cast<Wrong>(below(static_cast<std::size_t>(Wrong::last) + 1)),
                     .name = text_of("input/", below(20), ".weight")};
        bad.odd_name = below(4) == 0 ? std::string(unlike_any_other) : mistyped(bad.name);
        bad.is_odd = draw_until(
            [&] { return draw_ranks(); },
            [](const auto& odd) { return std::ranges::count(odd, odd.front()) < std::ssize(odd); });
        bad.usual = draw_until(
            [&] { return draw_input(); },
            [&](const auto& input) { return input.is_valid() && concerns(bad.wrong, input); });
        bad.tensor = below(bad.usual.tensors.size());
        bad.odd =
            draw_until([&] { return spoilt(bad); },
                       [&](const auto& input) {
                           return bad.wrong >= Wrong::order ||
                                  (input.is_valid() && bad.value(input) != bad.value(bad.usual));
                       });
        bad.odd_is_early = below(2) == 0;
        bad.variant = below(2);
        return bad;
    }

private:
    std::size_t below(std::size_t bound) { return numbers_.below(bound); }

    std::vector<bool> draw_ranks() {
        std::vector<bool> ranks;
        for (std::size_t rank = 0; rank < ranks_; ++rank) ranks.push_back(below(2) == 0);
        return ranks;
    }

    /// Whether this part can be wrong in such a request.
    static bool concerns(Wrong wrong, const Input& input) {
        switch (wrong) {
            case Wrong::op: return input.reduces();
            case Wrong::prescale:
            case Wrong::postscale:
                return input.reduces() &&
                       std::ranges::all_of(input.tensors, [](const auto& tensor) {
                           return is_floating(tensor.first);
                       });
            case Wrong::root: return input.kind == Input::Kind::broadcast;
            case Wrong::tensors: return input.kind == Input::Kind::group;
            case Wrong::group: return input.kind == Input::Kind::allreduce;
            default: return true;
        }
    }

    Input draw_input() {
        Input input{.kind = static_cast<Input::Kind>(
                        below(static_cast<std::size_t>(Input::Kind::last) + 1)),
                    .root = draw_root()};
        for (auto left = input.kind == Input::Kind::group ? 1 + below(4) : 1; left > 0; --left)
            input.tensors.emplace_back(draw_dtype(), draw_shape());
        input.how = {draw_op(), below(4) == 0 ? draw_scale() : 1, below(4) == 0 ? draw_scale() : 1};
        for (std::size_t rank = 0; rank < ranks_; ++rank) {
            input.rows.push_back(static_cast<std::int64_t>(below(4)));
            auto& split = input.splits.emplace_back();
            for (std::size_t to = 0; to < ranks_; ++to)
                split.push_back(static_cast<std::int64_t>(below(3)));
        }
        return input;
    }

    /// The usual request with one thing changed. For Wrong::order it is the second of two.
    Input spoilt(const BadInput& bad) {
        auto input = bad.usual;
        switch (bad.wrong) {
            case Wrong::shape: input.tensors[bad.tensor].second = draw_shape(); break;
            case Wrong::dtype: input.tensors[bad.tensor].first = draw_dtype(); break;
            case Wrong::operation: input = draw_input(); break;
            case Wrong::op: input.how.op = draw_op(); break;
            case Wrong::root: input.root = draw_root(); break;
            case Wrong::prescale: input.how.prescale = draw_scale(); break;
            case Wrong::postscale: input.how.postscale = draw_scale(); break;
            case Wrong::device: input.device = DeviceKind::cuda; break;
            case Wrong::tensors: input.tensors.resize(1 + below(5), input.tensors.front()); break;
            case Wrong::group: input.kind = Input::Kind::group; break;
            case Wrong::order:
                return draw_until([&] { return draw_input(); },
                                  [](const auto& second) { return second.is_valid(); });
            default: break;
        }
        return input;
    }

    DType draw_dtype() { return all_dtypes[below(std::size(all_dtypes))]; }
    ReduceOp draw_op() { return all_reduce_ops[below(std::size(all_reduce_ops))]; }
    int draw_root() { return static_cast<int>(below(ranks_)); }
    double draw_scale() {
        constexpr double scales[] = {1, 0.5, 0.25, 2, -1.5};
        return scales[below(std::size(scales))];
    }
    Shape draw_shape() {
        Shape shape;
        shape.resize(below(4));
        for (auto& extent : shape) extent = static_cast<std::int64_t>(below(6));
        return shape;
    }
    std::string mistyped(std::string name) {
        const auto i = below(name.size() - 1);
        switch (below(3)) {
            case 0: name.erase(i, 1); break;
            case 1: name.insert(i, "x"); break;
            default: name[i] = 'x'; break;
        }
        return name;
    }

    std::size_t ranks_;
    Numbers numbers_;
};

}  // namespace guozhuang::test
