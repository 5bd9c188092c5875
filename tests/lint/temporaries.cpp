// An accessor of a temporary gives a value, or does not compile (lint.temporaries.*): CHOSEN is an
// expression that refers into an object which nobody keeps, or one that is right.
#include <guozhuang/guozhuang.hpp>
#include <type_traits>

using namespace guozhuang;

/// A temporary.
template <class T>
T made();

static_assert(!std::is_reference_v<decltype(made<Shape>().front())>);
static_assert(!std::is_reference_v<decltype(made<Shape>().back())>);
static_assert(!std::is_reference_v<decltype(made<Shape>()[0])>);

struct Descent {
    void step();
};
using Optimised = DistributedOptimizer<Descent>;

[[maybe_unused]] static void choose() {
    [[maybe_unused]] Result result;
    [[maybe_unused]] Optimised& optimizer = made<Optimised&>();
    (void)(CHOSEN);
}
