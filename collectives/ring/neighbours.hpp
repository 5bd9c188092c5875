#pragma once

#include "collectives/concepts/wire.hpp"

namespace guozhuang::ring {

/// One rank's part in one step: it passes block `send` to the right, while block `receive` arrives
/// from the left.
struct Hop {
    int send = 0;
    int receive = 0;
};

/// Ranks and blocks count modulo the size.
constexpr int wrap(int index, int size) noexcept {
    return (index % size + size) % size;
}

constexpr int right_of(int rank, int size) noexcept {
    return wrap(rank + 1, size);
}

constexpr int left_of(int rank, int size) noexcept {
    return wrap(rank - 1, size);
}

template <Wire W>
int right(W& wire) {
    return right_of(wire.rank(), wire.size());
}

template <Wire W>
int left(W& wire) {
    return left_of(wire.rank(), wire.size());
}

}  // namespace guozhuang::ring
