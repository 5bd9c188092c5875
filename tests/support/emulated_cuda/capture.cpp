#include "support/emulated_cuda/capture.hpp"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "support/emulated_cuda/calls.hpp"
#include "support/emulated_cuda/streams.hpp"

namespace guozhuang::emulated_cuda {
namespace {

struct Branch {
    std::uint64_t nodes = 0;
    std::uint64_t joined = 0;  ///< how many of them another stream waits for
};

struct Capture {
    std::uint64_t id;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    std::shared_ptr<Stream> origin;
    bool invalid = false;
    std::map<const Stream*, Branch> branches;
};

std::mutex mutex;
std::uint64_t last_id = 0;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/// Under the mutex.
std::list<Capture>& captures() {
    static auto& all = *new std::list<Capture>;
    return all;
}

Capture* capture_of(const Stream& stream) {
    for (auto& each : captures())
        if (each.branches.contains(&stream)) return &each;
    return nullptr;
}

bool forbids_unsafe_calls(const Capture& capture) {
    if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
    if (capture.thread == std::this_thread::get_id())
        return capture.mode != cudaStreamCaptureModeRelaxed;
    return capture.mode == cudaStreamCaptureModeGlobal &&
           thread_mode == cudaStreamCaptureModeGlobal;
}

/// The legacy stream would wait for a blocking one that is captured, and so be captured itself.
void refuse_implicit_capture(const Stream& legacy) {
    for (auto& each : captures()) {
        for (const auto& [stream, branch] : each.branches) {
            if (stream->ordering() != Stream::Ordering::blocking ||
                &stream->device() != &legacy.device())
                continue;
            each.invalid = true;
            throw Refusal{cudaErrorStreamCaptureImplicit};
        }
    }
}

}  // namespace

bool would_capture_implicitly(const Stream& legacy) {
    if (legacy.ordering() != Stream::Ordering::legacy) return false;
    const auto is_ordered_with_it = [&](const auto& branch) {
        const auto& stream = *branch.first;
        return stream.ordering() == Stream::Ordering::blocking &&
               &stream.device() == &legacy.device();
    };
    const std::lock_guard lock(mutex);
    return std::ranges::any_of(captures(), [&](const auto& each) {
        return std::ranges::any_of(each.branches, is_ordered_with_it);
    });
}

bool invalidate_captures() {
    const std::lock_guard lock(mutex);
    bool any = false;
    for (auto& each : captures()) {
        if (!forbids_unsafe_calls(each)) continue;
        each.invalid = any = true;
    }
    return any;
}

bool invalidate_capture_of(const Stream& stream) {
    const std::lock_guard lock(mutex);
    auto* capture = capture_of(stream);
    if (capture) capture->invalid = true;
    return capture != nullptr;
}

bool record_node(Stream& stream) {
    const std::lock_guard lock(mutex);
    if (stream.ordering() == Stream::Ordering::legacy) refuse_implicit_capture(stream);
    auto* capture = capture_of(stream);
    if (!capture) return false;
    require(!capture->invalid, cudaErrorStreamCaptureInvalidated);
    ++capture->branches[&stream].nodes;
    return true;
}

std::optional<CapturedPoint> captured_point(Stream& stream) {
    const std::lock_guard lock(mutex);
    if (stream.ordering() == Stream::Ordering::legacy) refuse_implicit_capture(stream);
    auto* capture = capture_of(stream);
    if (!capture) return {};
    require(!capture->invalid, cudaErrorStreamCaptureInvalidated);
    return CapturedPoint{capture->id, &stream, capture->branches[&stream].nodes};
}

void join_capture(Stream& stream, const CapturedPoint& point) {
    const std::lock_guard lock(mutex);
    const auto capture = std::find_if(captures().begin(), captures().end(),
                                      [&](const auto& each) { return each.id == point.capture; });
    require(capture != captures().end(), cudaErrorCapturedEvent);
    require(!capture->invalid, cudaErrorStreamCaptureInvalidated);
    const auto* own = capture_of(stream);
    require(!own || own == &*capture, cudaErrorStreamCaptureMerge);
    require(stream.ordering() != Stream::Ordering::legacy, cudaErrorStreamCaptureImplicit);
    // To wait for another stream is something that must be joined in its turn.
    if (!own) capture->branches[&stream].nodes = 1;
    auto& waited_for = capture->branches[point.stream];
    waited_for.joined = std::max(waited_for.joined, point.nodes);
}

cudaStreamCaptureStatus capture_status(const Stream& stream) {
    const std::lock_guard lock(mutex);
    const auto* capture = capture_of(stream);
    if (!capture) return cudaStreamCaptureStatusNone;
    return capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

void begin_capture(const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode) {
    const std::lock_guard lock(mutex);
    require(stream->ordering() != Stream::Ordering::legacy, cudaErrorStreamCaptureUnsupported);
    require(!capture_of(*stream), cudaErrorIllegalState);
    captures().push_back({++last_id, mode, std::this_thread::get_id(), stream, false, {}});
    captures().back().branches[stream.get()] = {};
}

std::uint64_t end_capture(const Stream& stream) {
    const std::lock_guard lock(mutex);
    auto* capture = capture_of(stream);
    require(capture && capture->origin.get() == &stream, cudaErrorStreamCaptureUnmatched);
    require(capture->mode == cudaStreamCaptureModeRelaxed ||
                capture->thread == std::this_thread::get_id(),
            cudaErrorStreamCaptureWrongThread);
    const auto ended = std::move(*capture);
    captures().remove_if([&](const auto& each) { return &each == capture; });
    require(!ended.invalid, cudaErrorStreamCaptureInvalidated);
    std::uint64_t nodes = 0;
    for (const auto& [branch_stream, branch] : ended.branches) {
        require(branch_stream == &stream || branch.joined == branch.nodes,
                cudaErrorStreamCaptureUnjoined);
        nodes += branch.nodes;
    }
    return nodes;
}

cudaStreamCaptureMode exchange_thread_mode(cudaStreamCaptureMode mode) noexcept {
    return std::exchange(thread_mode, mode);
}

}  // namespace guozhuang::emulated_cuda
