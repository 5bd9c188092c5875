#pragma once

#include <vector>

namespace guozhuang::protocol {

/// The tree along which readiness goes up and the log comes down: rank r's children are degree*r +
/// 1 .. degree*r + degree, rank 0 is the root. Its depth is log(size) to the base `degree`, and no
/// rank has more than `degree` children.
class Tree {
public:
    Tree(int rank, int size, int degree) : rank_(rank), size_(size), degree_(degree) {
        for (int child = degree * rank + 1; child <= degree * rank + degree && child < size;
             ++child)
            children_.push_back(child);
    }

    bool is_root() const noexcept { return rank_ == 0; }
    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    int parent() const noexcept { return (rank_ - 1) / degree_; }
    const std::vector<int>& children() const noexcept { return children_; }
    bool has_child(int rank) const noexcept {
        return rank > 0 && rank < size_ && (rank - 1) / degree_ == rank_;
    }

    /// The ranks at and below `top`, ascending: each level of a subtree is a range.
    std::vector<int> subtree(int top) const {
        std::vector<int> ranks;
        for (long first = top, last = top; first < size_;
             first = first * degree_ + 1, last = last * degree_ + degree_)
            for (long r = first; r <= last && r < size_; ++r) ranks.push_back(static_cast<int>(r));
        return ranks;
    }

private:
    int rank_, size_, degree_;
    std::vector<int> children_;
};

}  // namespace guozhuang::protocol
