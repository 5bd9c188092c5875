// Calls allreduce() with CHOSEN, one of the names below. The compiler must accept `right`, and
// refuse the others with advice (lint.elements.*).
#include <guozhuang/operations.hpp>

#define pointer guozhuang::TensorView(&letters[0], {8})

int main() {
    [[maybe_unused]] std::size_t right = 0;
    [[maybe_unused]] long double wide = 0;
    [[maybe_unused]] char letters[8] = {};
    [[maybe_unused]] std::vector<bool> flags(8);
    [[maybe_unused]] const std::vector<float> constants(8);
    guozhuang::allreduce(CHOSEN);
}
