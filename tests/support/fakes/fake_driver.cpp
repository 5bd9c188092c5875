#include "support/fakes/fake_driver.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <guozhuang/error.hpp>
#include <new>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "device/checks.hpp"
#include "device/host/host_reduce.hpp"
#include "device/host/sum_of_squares.hpp"

namespace guozhuang::test {
namespace {

using namespace device;

constexpr std::align_val_t alignment{256};
/// Initial contents of memory: NaNs in every floating dtype.
constexpr std::byte undefined{0xff};

class FakeEvent final : public Event {
public:
    bool done() const override { return done_.load(std::memory_order_acquire); }

    void complete() noexcept {
        done_.store(true, std::memory_order_release);
        done_.notify_all();
    }
    /// For the threads of streams, which block here.
    void wait_until_done() const noexcept { done_.wait(false, std::memory_order_acquire); }

private:
    std::atomic<bool> done_{false};
};

class FakeStream final : public Stream {
public:
    explicit FakeStream(int device) : device_(device) {}
    /// The thread ends when it has been asked to and the queue is empty.
    ~FakeStream() override = default;

    void wait(const std::shared_ptr<const Event>& event) override {
        auto ours = std::dynamic_pointer_cast<const FakeEvent>(event);
        if (!ours)
            throw Error(ErrorCode::invalid_argument,
                        "a stream of the host fake waits only for events of the host fake");
        launch([ours = std::move(ours)] { ours->wait_until_done(); });
    }

    void launch(std::function<void()> work) {
        {
            const base::Lock lock(mutex_);
            queue_.push_back(std::move(work));
        }
        queued_.notify_one();
    }

    std::shared_ptr<Event> record() override {
        auto event = std::make_shared<FakeEvent>();
        launch([event] { event->complete(); });
        return event;
    }

    StreamRef ref() const noexcept override {
        return {.device = {DeviceKind::cuda, device_}, .native = const_cast<FakeStream*>(this)};
    }

private:
    /// Destroys each function, with everything it holds, before the next one starts.
    void run(const std::stop_token& stop) noexcept {
        while (auto work = next(stop)) {
            if (auto* const before = before_work.load()) before();
            work();
        }
    }

    std::function<void()> next(const std::stop_token& stop) {
        const base::Lock lock(mutex_);
        queued_.wait(mutex_, stop, [this] {
            mutex_.is_held();
            return !queue_.empty();
        });
        if (queue_.empty()) return {};
        auto work = std::move(queue_.front());
        queue_.pop_front();
        return work;
    }

    const int device_;
    base::Mutex mutex_;
    std::condition_variable_any queued_;
    std::deque<std::function<void()>> queue_ GUOZHUANG_GUARDED_BY(mutex_);
    // Last, so that it starts after all others are constructed, and is joined before any is
    // destroyed.
    std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};
};

FakeStream& ours(Stream& stream) {
    auto* fake = dynamic_cast<FakeStream*>(&stream);
    if (!fake) throw Error(ErrorCode::invalid_argument, "not a stream of the host fake");
    return *fake;
}

void wait_for(const Word& word, std::uint32_t value) noexcept {
    for (auto seen = word.load(std::memory_order_acquire); !has_reached(seen, value);
         seen = word.load(std::memory_order_acquire))
        word.wait(seen, std::memory_order_acquire);
}

/// Threads reach only what their process has.
class FakeSharing final : public MemorySharing {
public:
    DeviceId id_of(int device) const override {
        DeviceId id{};
        std::memcpy(id.data(), &device, sizeof device);
        const auto process = own_process();
        std::memcpy(id.data() + sizeof process, &process, sizeof process);
        return id;
    }
    MemoryOffer offer(int device, std::span<std::byte> memory) override {
        return {.process = own_process(),
                .address = reinterpret_cast<std::uintptr_t>(memory.data()),
                .bytes = memory.size(),
                .device = device};
    }
    std::span<std::byte> open(int, const MemoryOffer& offer) override {
        if (offer.process != own_process())
            throw Error(ErrorCode::unavailable,
                        "the host fake's memory is reached only in its own process");
        return {std::bit_cast<std::byte*>(offer.address), offer.bytes};
    }
    void close(int, const MemoryOffer&, std::span<std::byte>) noexcept override {}
    void register_host(int, std::span<std::byte>) override {}
    void unregister_host(int, std::span<std::byte>) noexcept override {}
};

class FakeDriver final : public Driver {
public:
    explicit FakeDriver(int devices)
        : devices_(devices), default_streams_(static_cast<std::size_t>(devices)) {}

    int device_count() const noexcept override { return devices_; }
    std::string description(int device) const override {
        check_device(device, device_count());
        return "host memory behind FIFO threads";
    }

    void require_healthy(int device) const override { check_device(device, device_count()); }

    std::span<std::byte> allocate(int device, std::size_t bytes) override {
        check_device(device, device_count());
        if (bytes == 0) return {};
        auto* memory = ::operator new(bytes, alignment, std::nothrow);
        if (!memory)
            throw Error(ErrorCode::out_of_memory,
                        "the host fake cannot allocate " + std::to_string(bytes) + " bytes");
        const std::span allocated(static_cast<std::byte*>(memory), bytes);
        std::ranges::fill(allocated, undefined);
        return allocated;
    }
    void release(int, std::span<std::byte> memory) noexcept override {
        ::operator delete(memory.data(), alignment);
    }

    std::span<std::byte> allocate_pinned(int device, std::size_t bytes) override {
        return allocate(device, bytes);
    }
    void release_pinned(int device, std::span<std::byte> memory) noexcept override {
        release(device, memory);
    }
    /// All memory is the host's, so it may be called the fake's as well.
    MemoryLocation location_of(const void*) const override { return {MemoryKind::managed}; }

    void copy(Stream& stream, std::span<std::byte> to, std::span<const std::byte> from) override {
        check_same_size(to, from);
        ours(stream).launch([to, from] { std::copy(from.begin(), from.end(), to.begin()); });
    }

    void copy_all(Stream& stream, std::span<const Copy> copies, const Finish& finish) override {
        check_copies(copies, finish);
        ours(stream).launch([copies = std::vector(copies.begin(), copies.end()), finish] {
            for (const auto& [to, from, dtype] : copies)
                if (finish.is_identity())
                    std::ranges::copy(from, to.begin());
                else
                    kernels_for(dtype, ReduceOp::sum).finish(to, from, finish);
        });
    }

    void fill(Stream& stream, std::span<std::byte> memory,
              std::span<const std::byte> element) override {
        check_fill(memory, element);
        ours(stream).launch([memory, element = std::vector(element.begin(), element.end())] {
            for (std::size_t i = 0; i < memory.size(); i += element.size())
                std::ranges::copy(element, memory.subspan(i).begin());
        });
    }

    void write(Stream& stream, Word& word, std::uint32_t value) override {
        ours(stream).launch([&word, value] {
            word.store(value, std::memory_order_release);
            word.notify_all();
        });
    }
    void wait(Stream& stream, Word& word, std::uint32_t value) override {
        ours(stream).launch([&word, value] { wait_for(word, value); });
    }

    void reduce(Stream& stream, const Reduction& reduction,
                std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs) override {
        check_reduction(reduction, outputs, inputs);
        ours(stream).launch([reduction, outputs = std::vector(outputs.begin(), outputs.end()),
                             inputs = std::vector(inputs.begin(), inputs.end())] {
            const HostReduce reduce(reduction);
            std::vector<std::byte> result(outputs.front().size());
            reduce.combine_tree(result, inputs);
            for (const auto& output : outputs) std::ranges::copy(result, output.begin());
        });
    }

    void sum_of_squares(Stream& stream, DType dtype, std::span<const std::byte> memory,
                        std::span<std::byte> scratch, double& into) override {
        check_floating(dtype, memory);
        check_scratch(scratch);
        ours(stream).launch([=, &into] { into = device::sum_of_squares(dtype, memory); });
    }

    std::shared_ptr<Stream> make_stream(int device) override {
        check_device(device, device_count());
        return std::make_shared<FakeStream>(device);
    }

    std::shared_ptr<Stream> wrap(StreamRef stream) override {
        if (stream.device.kind != DeviceKind::cuda)
            throw Error(ErrorCode::invalid_argument, "not a stream of the host fake, but of " +
                                                         std::string(name_of(stream.device.kind)));
        check_device(stream.device.index, device_count());
        if (!stream.native) return default_stream(stream.device.index);
        return {std::shared_ptr<void>(), static_cast<FakeStream*>(stream.native)};  // owns nothing
    }

    MemorySharing& sharing() noexcept override { return sharing_; }

private:
    std::shared_ptr<Stream> default_stream(int device) {
        const base::Lock lock(mutex_);
        auto& stream = default_streams_[static_cast<std::size_t>(device)];
        if (!stream) stream = std::make_shared<FakeStream>(device);
        return stream;
    }

    const int devices_;
    FakeSharing sharing_;
    base::Mutex mutex_;
    /// The default stream of each device, created on first use.
    std::vector<std::shared_ptr<Stream>> default_streams_ GUOZHUANG_GUARDED_BY(mutex_);
};

/// Ranks that are threads need many of the queues that CUDA allows a process; this allows the most.
bool replace_cuda() {
    cuda_substitute = [] { return make_fake_driver(); };
    return ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0;
}

[[maybe_unused]] const bool replaced = replace_cuda();

}  // namespace

std::atomic<void (*)()> before_work{nullptr};

void launch(Stream& stream, std::function<void()> work) {
    ours(stream).launch(std::move(work));
}

std::shared_ptr<Driver> make_fake_driver(int devices) {
    return std::make_shared<FakeDriver>(devices);
}

}  // namespace guozhuang::test
