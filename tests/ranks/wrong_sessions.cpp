// A training step that goes wrong as the argument says, if it does, on the first rank of the second
// host if there are two. docs/errors.md shows the output on four ranks.
#include <signal.h>

#include <chrono>
#include <guozhuang/guozhuang.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace gz = guozhuang;

int main(int argc, char** argv) {
    const std::string_view scene = argc > 1 ? argv[1] : "";
    return gz::run(&argc, &argv, [&](gz::Session& session) {
        const auto is = [&](std::string_view which, int rank) {
            return scene == which && session.rank() == rank;
        };
        std::vector<float> weight(1000), bias(10), loss(1);
        const std::vector<std::int64_t> shape = is("shape", 1) ? std::vector<std::int64_t>{10, 100}
                                                               : std::vector<std::int64_t>{100, 10};
        gz::allreduce(bias, {.name = "grad/fc2.bias"});
        const int late = session.size() / 2;
        // It is always the others who wait for the longest.
        if (session.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        if (is("kill", late)) raise(SIGKILL);
        if (is("stop", late)) raise(SIGSTOP);
        if (is("busy", late)) std::this_thread::sleep_for(std::chrono::minutes(1));
        const bool missing = is("missing", late);
        if (!missing)
            gz::allreduce(gz::TensorView(weight, shape),
                          {.name = is("typo", late) ? "grad/fc1.weigth" : "grad/fc1.weight"});
        gz::allreduce(loss, {.name = "loss"});
        if (scene == "many") {  // all of them go well
            std::vector<std::vector<float>> gradients(100, std::vector<float>(32'768));
            std::vector<gz::Handle> handles;
            for (auto& gradient : gradients)
                handles.push_back(gz::allreduce_async(
                    gradient, {.name = "layer" + std::to_string(handles.size())}));
            for (const auto& handle : handles) handle.wait();
        }
        return 0;
    });
}
