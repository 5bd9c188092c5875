// Errors of wrong tensors and streams on a device. The next operation is right.

#include <guozhuang/guozhuang.hpp>

#include "emulation/ranks/trainer.hpp"
#include "support/cases/error_cases.hpp"
#include "support/cases/operation_cases.hpp"
#include "support/runner/catch.hpp"
#include "support/runner/mpi_report.hpp"

using namespace guozhuang;
using namespace guozhuang::test;

namespace {

constexpr std::size_t count = 10;

std::vector<float> ones() {
    return std::vector<float>(count, 1);
}

void next_is_right(Session& session, Report& report, const std::string& after) {
    start_allreduce(session, "after " + after, {DType::f32, {4099}})(report);
}

/// One that the program has made besides that of CUDA's runtime.
void stream_of_another_context(Session& session, Report& report) {
    Trainer trainer;
    next_is_right(session, report, "nothing, in the runtime's context");
    const auto own = trainer.put_elements(ones());
    CUcontext before = nullptr, other = nullptr;
    cuCtxGetCurrent(&before);
    report.expect(cuCtxCreate(&other, nullptr, 0, trainer.device()) == CUDA_SUCCESS, "a context");
    const TestStream stream;
    expect_error(
        report, ErrorCode::invalid_argument,
        {"allreduce 'foreign': its stream cannot be used", "is of another context of CUDA device"},
        [&] {
            allreduce(
                trainer.view(own, count),
                {.name = "foreign", .stream = StreamRef{trainer.stream().device, stream.native}});
        });
    CUcontext after = nullptr;
    cuCtxGetCurrent(&after);
    report.expect(after == other && after != before, "the context stays the program's");
    cuCtxSetCurrent(before);
    next_is_right(session, report, "a stream of another context");
}

/// Each is refused before anything is sent: the other ranks do not wait.
void memory_elsewhere(Session& session, Report& report) {
    Trainer trainer;
    next_is_right(session, report, "nothing");  // CUDA is in use
    auto on_host = ones();
    const auto on_device = trainer.put_elements(ones());
    const auto where = text_of("cuda ", trainer.device());
    const auto refused = [&](const TensorView& tensor, const std::string& what) {
        expect_error(report, ErrorCode::invalid_argument, {"allreduce 'elsewhere'", what},
                     [&] { allreduce(tensor, {.name = "elsewhere"}); });
    };
    refused({on_host.data(), DType::f32, {count}, trainer.stream().device},
            text_of("it is said to be memory of ", where, ", but is host memory"));
    refused({on_device.get(), DType::f32, {count}},
            text_of("it is said to be host memory, but is memory of ", where));
    auto* const freed = test::device_memory<float>(count);
    cudaFree(freed);
    refused({freed, DType::f32, {count}, trainer.stream().device}, "or has been freed");
    refused({on_device.get(), DType::f32, {count}, {DeviceKind::cuda, 99}}, "99");
    refused({reinterpret_cast<std::byte*>(on_device.get()) + 2,
             DType::f32,
             {count - 1},
             trainer.stream().device},
            "is no multiple of the 4 bytes of an element of f32");
    expect_error(
        report, ErrorCode::invalid_argument,
        {"all_gather 'elsewhere': output: it is said to be memory of ", ", but is host memory"},
        [&] {
            const TensorView output(on_host.data(), DType::f32, {count}, trainer.stream().device);
            all_gather(trainer.view(on_device, count),
                       {.name = "elsewhere", .stream = trainer.stream(), .outputs = {output}});
        });
    expect_error(report, ErrorCode::invalid_argument,
                 {"all_gather 'elsewhere': output: it is said to be host memory, but is memory of"},
                 [&] {
                     const TensorView output(on_device.get(), DType::f32, {count});
                     auto input = ones();
                     all_gather(input, {.name = "elsewhere", .outputs = {output}});
                 });
    expect_error(
        report, ErrorCode::invalid_argument, {"send", "memory of " + where + ", but is"},
        [&] { send(TensorView(on_host.data(), DType::f32, {count}, trainer.stream().device), 0); });
    expect_error(report, ErrorCode::invalid_argument, {"recv", "said to be host memory"},
                 [&] { recv(TensorView(on_device.get(), DType::f32, {count}), 0); });
    next_is_right(session, report, "memory elsewhere");
}

/// Not for a machine with one device.
void two_devices(Session& session, Report& report) {
    int devices = 0;
    expect(cudaGetDeviceCount(&devices), "no devices");
    if (devices < 2) return;
    Trainer trainer;
    next_is_right(session, report, "nothing, on the first device");
    const int other = (trainer.device() + 1) % devices;
    expect(cudaSetDevice(other), "no device");
    const std::shared_ptr<float> memory = Trainer::device_memory_of<float>(count);
    const TestStream stream;
    const TensorView there(memory.get(), DType::f32, {count}, {DeviceKind::cuda, other});
    const StreamRef its{there.device, stream.native};
    expect_error(report, ErrorCode::invalid_argument,
                 {"allreduce 'second'", "one device in a process set", text_of("cuda ", other)},
                 [&] { allreduce(there, {.name = "second", .stream = its}); });
    const auto own = trainer.put_elements(ones());
    expect_error(
        report, ErrorCode::invalid_argument, {"its stream cannot be used", text_of(other)}, [&] {
            allreduce(trainer.view(own, count),
                      {.name = "stream", .stream = StreamRef{trainer.stream().device, its.native}});
        });
    std::vector<int> everybody(static_cast<std::size_t>(session.size()));
    std::iota(everybody.begin(), everybody.end(), 0);
    auto set = ProcessSet::create(everybody);
    expect(cudaMemcpyAsync(memory.get(), ones().data(), count * sizeof(float),
                           cudaMemcpyHostToDevice, stream.native),
           "cannot copy");
    allreduce(there, {.name = "second", .stream = its, .process_set = set});
    std::vector<float> sums(count);
    expect(cudaMemcpy(sums.data(), memory.get(), count * sizeof(float), cudaMemcpyDeviceToHost),
           "cannot copy");
    report.expect(sums == std::vector<float>(count, static_cast<float>(session.size())),
                  "a second set has the second device");
    set.remove();
    expect(cudaSetDevice(trainer.device()), "no device");
    next_is_right(session, report, "two devices");
}

/// A capture in the mode that forbids most, on this thread; the library's threads work meanwhile.
void captured(Session& session, Report& report) {
    Trainer trainer;
    next_is_right(session, report, "nothing, before a capture");
    const auto values = trainer.put_elements(ones());
    const TestStream capturing;
    expect(cudaStreamBeginCapture(capturing.native, cudaStreamCaptureModeGlobal), "no capture");
    const auto submit = [&](cudaStream_t stream) {
        allreduce(trainer.view(values, count),
                  {.name = "captured", .stream = StreamRef{trainer.stream().device, stream}});
    };
    expect_error(report, ErrorCode::invalid_argument,
                 {"allreduce 'captured'", "being captured into a graph"},
                 [&] { submit(capturing.native); });
    expect_error(report, ErrorCode::invalid_argument, {"send", "being captured into a graph"}, [&] {
        send(trainer.view(values, count), session.rank(),
             {.stream = StreamRef{trainer.stream().device, capturing.native}});
    });
    submit(trainer.native());  // another stream is not concerned
    // Nor is it by calls that would end the capture in another mode: this one allocates.
    const auto gathered = all_gather(trainer.view(values, count), {.stream = trainer.stream()});
    report.expect(gathered.shape == Shape{static_cast<std::int64_t>(count) * session.size()},
                  "a result meanwhile");
    cudaStreamCaptureStatus status{};
    expect(cudaStreamIsCapturing(capturing.native, &status), "no status");
    report.expect(status == cudaStreamCaptureStatusActive, "the capture goes on");
    cudaGraph_t graph = nullptr;
    report.expect(cudaStreamEndCapture(capturing.native, &graph) == cudaSuccess && graph,
                  "the capture is valid in the end");
    if (graph) cudaGraphDestroy(graph);
    next_is_right(session, report, "a capture");
}

void kinds_differ(Session& session, Report& report) {
    if (session.size() == 1) return;
    Trainer trainer;
    auto on_host = ones();
    const auto on_device = trainer.put_elements(ones());
    const auto tensor = session.rank() == 0 ? TensorView(on_host) : trainer.view(on_device, count);
    const auto stream =
        session.rank() == 0 ? std::nullopt : std::optional<StreamRef>(trainer.stream());
    expect_error(report, ErrorCode::mismatch,
                 {"allreduce 'kinds'", "host on rank 0", "cuda on rank"},
                 [&] { allreduce(tensor, {.name = "kinds", .stream = stream}); });
    next_is_right(session, report, "other kinds");
}

void shapes_differ(Session& session, Report& report) {
    if (session.size() == 1) return;
    Trainer trainer;
    const auto values = trainer.put_elements(ones());
    expect_error(report, ErrorCode::mismatch, {"allreduce 'shapes'", "[9] on rank 0", "[10] on"},
                 [&] {
                     allreduce(trainer.view(values, session.rank() == 0 ? count - 1 : count),
                               {.name = "shapes", .stream = trainer.stream()});
                 });
    next_is_right(session, report, "other shapes");
}

}  // namespace

TEST_CASE("memory that is not where it is said to be is refused") {
    CHECK(problems_here(memory_elsewhere) == "");
}

TEST_CASE("a rank uses one device in a process set, and streams of that device") {
    CHECK(problems_here(two_devices) == "");
}

TEST_CASE("a stream of another context of the device is refused") {
    CHECK(problems_here(stream_of_another_context) == "");
}

TEST_CASE("a stream that is captured is refused, and its capture stays valid") {
    CHECK(problems_here(captured) == "");
}

TEST_CASE("tensors on other kinds of devices are a mismatch") {
    CHECK(problems_here(kinds_differ) == "");
}

TEST_CASE("tensors of other shapes on devices are a mismatch") {
    CHECK(problems_here(shapes_differ) == "");
}

TEST_CASE("CUDA tensors are refused where the configuration says so", "[.off]") {
    CHECK(problems_here([](Session&, Report& report) {
              Trainer trainer;
              const auto values = trainer.put_elements(ones());
              expect_error(report, ErrorCode::unavailable, {"'off'", "GUOZHUANG_CUDA is off"},
                           [&] { allreduce(trainer.view(values, count), {.name = "off"}); });
          }) == "");
}
