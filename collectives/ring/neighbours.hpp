#pragma once

#include "collectives/concepts/wire.hpp"

namespace guozhuang::ring {

/// What one rank does in one step: passes block `send` to the right, while block `receive` arrives
/// from the left.
struct Hop {
    int send = 0;
    int receive = 0;
};

/// Ranks and blocks count modulo the size.
constexpr int wrap(int index, int size) noexcept {
    return (index % size + size) % size;
}

template <Wire W>
int right(W& wire) {
    return wrap(wire.rank() + 1, wire.size());
}

template <Wire W>
int left(W& wire) {
    return wrap(wire.rank() - 1, wire.size());
}

}  // namespace guozhuang::ring
