#include <cstdlib>
#include <cstring>
#include <guozhuang/guozhuang.hpp>
#include <vector>

/// A user's program: sums rank + 1 over the ranks, of which there should be as many as its argument
/// says, or one.
int main(int argc, char** argv) {
    const guozhuang::Session session(&argc, &argv);
    const int ranks = argc > 1 ? std::atoi(argv[1]) : 1;
    std::vector<float> values{static_cast<float>(session.rank() + 1)};
    guozhuang::allreduce(values);
    const bool sum_is_right =
        session.size() == ranks && values[0] == static_cast<float>(ranks * (ranks + 1) / 2);
    const bool version_is_right = std::strcmp(guozhuang::version(), GUOZHUANG_VERSION_STRING) == 0;
    return sum_is_right && version_is_right ? EXIT_SUCCESS : EXIT_FAILURE;
}
