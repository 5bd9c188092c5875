// Three ranks or more; rank 1 is killed between two allreduces.

#include <csignal>
#include <guozhuang/guozhuang.hpp>

namespace gz = guozhuang;

int main(int argc, char** argv) {
    gz::Session session(&argc, &argv);
    int sum = 1;
    gz::allreduce(sum);
    if (session.rank() == 1) raise(SIGKILL);
    try {
        gz::allreduce(sum);
    } catch (const gz::RankDied&) {
        return 3;
    }
}
