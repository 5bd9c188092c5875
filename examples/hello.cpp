#include <guozhuang/guozhuang.hpp>

#include <cstdio>

namespace gz = guozhuang;

int main(int argc, char** argv) {
    gz::Session session(&argc, &argv);
    int sum = session.rank() + 1;
    gz::allreduce(sum);
    std::printf("rank %d of %d: 1 + ... + %d = %d\n", session.rank(), session.size(),
                session.size(), sum);
}
