#include <fmt/format.h>

#include <guozhuang/error.hpp>
#include <guozhuang/grid.hpp>
#include <vector>

namespace guozhuang {
namespace {

constexpr int GridShape::*directions[] = {&GridShape::tensor, &GridShape::data,
                                          &GridShape::pipeline};

std::string text_of(const GridShape& shape) {
    return fmt::format("{{.data = {}, .tensor = {}, .pipeline = {}}}", shape.data, shape.tensor,
                       shape.pipeline);
}

[[noreturn]] void refuse(const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, "Grid: " + problem);
}

void check(const GridShape& shape, int ranks) {
    long long positions = 1;
    for (const auto direction : directions) {
        if (shape.*direction < 1 || shape.*direction > ranks)
            refuse(fmt::format("{} does not fit {} ranks", text_of(shape), ranks));
        positions *= shape.*direction;
    }
    if (positions != ranks)
        refuse(fmt::format("{} has {} positions, but there are {} ranks", text_of(shape), positions,
                           ranks));
}

GridShape position_of(int rank, const GridShape& shape) {
    GridShape position;
    for (const auto direction : directions) {
        position.*direction = rank % shape.*direction;
        rank /= shape.*direction;
    }
    return position;
}

}  // namespace

Grid::Grid(const GridShape& shape, Session* session) : shape_(shape) {
    const ProcessSet all(session);
    const int ranks = all.size();
    check(shape, ranks);
    position_ = position_of(all.rank(), shape);
    // Every rank creates every set, the same ones in the same order.
    const auto create = [&](int GridShape::*along) {
        if (shape.*along == ranks) return all;
        ProcessSet own;
        for (int first = 0; first < ranks; ++first) {
            auto position = position_of(first, shape);
            if (position.*along != 0) continue;
            std::vector<int> set_ranks;
            for (; position.*along < shape.*along; ++(position.*along))
                set_ranks.push_back(rank_at(position));
            const auto set = ProcessSet::create(set_ranks, session);
            if (set.contains(all.rank())) own = set;
        }
        return own;
    };
    data_ = create(&GridShape::data);
    tensor_ = create(&GridShape::tensor);
}

int Grid::rank_at(const GridShape& position) const {
    int rank = 0, step = 1;
    for (const auto direction : directions) {
        if (position.*direction < 0 || position.*direction >= shape_.*direction)
            refuse(fmt::format("{} is no position in {}", text_of(position), text_of(shape_)));
        rank += step * position.*direction;
        step *= shape_.*direction;
    }
    return rank;
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
