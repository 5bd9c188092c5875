// A training step on one host needs nothing of MPI: the calls with which the library moves messages
// are counted on their way. `mpi_calls single`: nor does anything else between the start and the
// end of a session where the user's MPI is for one thread, and no other thread calls it.
#include <mpi.h>

#include <atomic>
#include <cstdio>
#include <guozhuang/guozhuang.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace gz = guozhuang;

namespace {
std::atomic<int> calls{0}, calls_elsewhere{0};
const auto main_thread = std::this_thread::get_id();

void note_call() {
    ++calls;
    if (std::this_thread::get_id() != main_thread) ++calls_elsewhere;
}
}  // namespace

// NOLINTBEGIN(readability-identifier-naming,readability-function-size): MPI's names and parameters,
// in front of its own
extern "C" {
#define GUOZHUANG_COUNTED [[gnu::visibility("default")]] int
GUOZHUANG_COUNTED MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                            MPI_Comm comm, MPI_Request* request) {
    note_call();
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}
GUOZHUANG_COUNTED MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag,
                            MPI_Comm comm, MPI_Request* request) {
    note_call();
    return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
GUOZHUANG_COUNTED MPI_Improbe(int from, int tag, MPI_Comm comm, int* found, MPI_Message* message,
                              MPI_Status* status) {
    note_call();
    return PMPI_Improbe(from, tag, comm, found, message, status);
}
GUOZHUANG_COUNTED MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
    note_call();
    return PMPI_Test(request, done, status);
}
GUOZHUANG_COUNTED MPI_Testsome(int count, MPI_Request* requests, int* done, int* indices,
                               MPI_Status* statuses) {
    note_call();
    return PMPI_Testsome(count, requests, done, indices, statuses);
}
}
// NOLINTEND(readability-identifier-naming,readability-function-size)

namespace {

/// Gradient descent on nothing.
struct Descent {
    void step() {}
};

/// A few training steps with their loss: of gradients that are fused, and of one that is moved
/// alone.
void train(gz::Session& session, gz::DistributedOptimizer<Descent>& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
        optimizer.step();
        float loss = 1;
        gz::allreduce(loss, {.name = "loss"});
        if (loss != static_cast<float>(session.size())) throw std::runtime_error("a wrong sum");
    }
}

}  // namespace

int main(int argc, char** argv) {
    const bool is_single = argc > 1 && std::string_view(argv[1]) == "single";
    if (is_single) MPI_Init(&argc, &argv);
    const int code = gz::run(&argc, &argv, [&](gz::Session& session) {
        std::vector<std::vector<float>> values, gradients;
        std::vector<gz::Parameter> parameters;
        for (const std::size_t count : {std::size_t{1} << 22, std::size_t{1000}, std::size_t{10}}) {
            auto& value = values.emplace_back(count);
            auto& gradient = gradients.emplace_back(count);
            parameters.push_back({"parameter" + std::to_string(count), value, gradient});
        }
        Descent descent;
        gz::DistributedOptimizer optimizer(descent, parameters);
        train(session, optimizer, 2);
        const int before = calls;
        train(session, optimizer, 20);
        const int during = calls - before;
        std::vector<float> payload(10);
        const int self = session.rank();
        auto sent = gz::send_async(payload, self), received = gz::recv_async(payload, self);
        sent.wait();
        received.wait();
        const auto set = gz::ProcessSet::create(gz::ProcessSet(&session).ranks());
        gz::allreduce(payload, {.process_set = set});
        std::printf("rank %d: %d calls in 20 steps, %s with a message\n", self, during,
                    calls - before > during ? "some" : "none");
        return during == 0 && (calls > before) != is_single ? 0 : 1;
    });
    if (is_single) MPI_Finalize();
    if (is_single && calls_elsewhere > 0)
        std::printf("%d calls on threads of the library\n", calls_elsewhere.load());
    return is_single && calls_elsewhere > 0 ? 1 : code;
}
