// A job that records its timeline: timeline_job SCENE DIRECTORY. timeline.py looks at what it
// leaves.
#include <chrono>
#include <csignal>
#include <fstream>
#include <guozhuang/guozhuang.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace gz = guozhuang;

namespace {

constexpr int steps = 20;

std::string file_of(const gz::Session& session, const std::string& directory) {
    return directory + "/rank" + std::to_string(session.rank()) + ".json";
}

/// Several operations on their way at once, submitted in another order on each rank.
void train(gz::Session& session) {
    std::vector<std::vector<float>> gradients(4, std::vector<float>(50'000, 1));
    for (int step = 0; step < steps; ++step) {
        std::vector<gz::Handle> handles;
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            const auto gradient = (i + static_cast<std::size_t>(session.rank())) % gradients.size();
            handles.push_back(gz::allreduce_async(gradients[gradient],
                                                  {.name = "layer" + std::to_string(gradient)}));
        }
        for (const auto& handle : handles) handle.wait();
        gz::barrier();
    }
}

/// The last rank is killed while the others wait for it, once its file tells of what came before.
void killed(gz::Session& session, const std::string& directory) {
    int number = 1;
    gz::allreduce(number, {.name = "the last one of all"});
    if (session.rank() + 1 < session.size())
        return gz::allreduce(number, {.name = "what never comes"});
    std::ostringstream text;
    while (text.str().find("the last one of all") == std::string::npos) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        text.str({});
        text << std::ifstream(file_of(session, directory)).rdbuf();
    }
    std::raise(SIGKILL);
}

/// An exception leaves the last rank's session, with an operation that no other submits and whose
/// handle lives on.
void left(const gz::Session& session) {
    static int number = 1;
    static gz::Handle handle;
    gz::barrier();  // all record
    if (session.rank() + 1 < session.size()) return gz::barrier();
    handle = gz::allreduce_async(number, {.name = "what is left"});
    if (session.size() == 1) handle.wait();
    throw std::runtime_error("it leaves");
}

}  // namespace

int main(int argc, char** argv) try {
    if (argc != 3) return 2;
    const std::string_view scene = argv[1];
    gz::Session session(&argc, &argv);
    if (!gz::start_timeline(argv[2])) return 1;
    if (scene == "train") train(session);
    if (scene == "left") left(session);
    if (scene == "killed") killed(session, argv[2]);
} catch (const std::exception&) {
    return 1;
}
