#include <fmt/format.h>

#include <array>
#include <guozhuang/error.hpp>
#include <guozhuang/grid.hpp>
#include <guozhuang/operations.hpp>
#include <string>
#include <vector>

namespace guozhuang {
namespace {

/// From the direction in which neighbours lie side by side to that in which they are farthest
/// apart.
using Directions = std::array<int, 3>;
Directions directions(const GridShape& shape) {
    return {shape.tensor, shape.data, shape.pipeline};
}
Directions directions(const GridPosition& position) {
    return {position.tensor, position.data, position.pipeline};
}

std::string text_of(const Directions& of) {
    return fmt::format("{{.data = {}, .tensor = {}, .pipeline = {}}}", of[1], of[0], of[2]);
}

[[noreturn]] void refuse(const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, "Grid: " + problem);
}

/// Collective.
void check(const Directions& shape, const ProcessSet& all) {
    const auto shapes = all_gather(shape, {.process_set = all});
    const auto numbers = shapes.values<int>();
    for (std::size_t i = 0; i < numbers.size(); ++i)
        if (numbers[i] != shape[i % 3]) {
            const auto* theirs = &numbers[i - i % 3];
            throw Error(ErrorCode::mismatch,
                        fmt::format("Grid: shapes differ: {} on rank {}, {} on rank {}",
                                    text_of(shape), all.rank(),
                                    text_of(Directions{theirs[0], theirs[1], theirs[2]}), i / 3));
        }
    long long positions = 1;
    for (const int extent : shape) {
        if (extent < 1 || extent > all.size())
            refuse(fmt::format("{} does not fit a job of {} rank{}", text_of(shape), all.size(),
                               all.size() == 1 ? "" : "s"));
        positions *= extent;
    }
    if (positions != all.size())
        refuse(fmt::format("{} has {} positions, and the job {} ranks", text_of(shape), positions,
                           all.size()));
}

GridPosition position_of(int rank, const GridShape& shape) {
    return {.data = rank / shape.tensor % shape.data,
            .tensor = rank % shape.tensor,
            .pipeline = rank / shape.tensor / shape.data};
}

}  // namespace

Grid::Grid(const GridShape& shape, Session* session) : shape_(shape) {
    const ProcessSet all(session);
    check(directions(shape), all);
    position_ = position_of(all.rank(), shape);
    // Every rank creates every set, the same ones in the same order.
    const auto create = [&](int GridPosition::*along, int extent) {
        if (extent == all.size()) return ProcessSet(session);
        ProcessSet own;
        for (int first = 0; first < all.size(); ++first) {
            auto position = position_of(first, shape);
            if (position.*along != 0) continue;
            std::vector<int> ranks;
            for (; position.*along < extent; ++(position.*along))
                ranks.push_back(rank_at(position));
            const auto set = ProcessSet::create(ranks, session);
            if (set.contains(all.rank())) own = set;
        }
        return own;
    };
    data_ = create(&GridPosition::data, shape.data);
    tensor_ = create(&GridPosition::tensor, shape.tensor);
}

int Grid::rank_at(const GridPosition& position) const {
    const auto at = directions(position), shape = directions(shape_);
    for (std::size_t i = 0; i < at.size(); ++i)
        if (at[i] < 0 || at[i] >= shape[i])
            refuse(fmt::format("{} is no position in {}", text_of(at), text_of(shape)));
    return (position.pipeline * shape_.data + position.data) * shape_.tensor + position.tensor;
}

int Grid::previous_stage() const {
    auto position = position_;
    return --position.pipeline < 0 ? -1 : rank_at(position);
}

int Grid::next_stage() const {
    auto position = position_;
    return ++position.pipeline == shape_.pipeline ? -1 : rank_at(position);
}

}  // namespace guozhuang
