// What an engine does for owners of memory who go before the operations on it are complete.
#include <cstring>
#include <functional>
#include <guozhuang/error.hpp>
#include <new>
#include <utility>

#include "engine/engine.hpp"

namespace guozhuang::engine {

/// Copies of a request's tensors in memory of the library's own, beside which they are on a device.
struct Engine::OwnTensors {
    OwnTensors(std::shared_ptr<device::Driver> driver, std::shared_ptr<void> kept)
        : device(std::move(driver)), keep_alive(std::move(kept)) {}
    // complete: destroyed if this throws
    explicit OwnTensors(const Request& request) : OwnTensors(request.device, request.keep_alive) {
        tensors.reserve(request.tensors->size());
        std::shared_ptr<device::Stream> stream;
        if (device && !request.tensors->empty()) {
            stream = device->wrap({.device = request.tensors->front().device, .native = nullptr});
            stream->wait(request.ready);
        }
        for (const auto& tensor : *request.tensors) {
            const auto memory = allocate(tensor);
            if (stream)
                device->copy(*stream, memory, tensor.memory());
            else if (!memory.empty())
                std::memcpy(memory.data(), tensor.data, memory.size());
        }
        if (stream) filled = stream->record();
    }
    ~OwnTensors() {
        for (const auto& tensor : tensors)
            device ? device->release(tensor.device.index, tensor.memory())
                   : ::operator delete(tensor.data, alignment);
    }
    OwnTensors(const OwnTensors&) = delete;
    OwnTensors& operator=(const OwnTensors&) = delete;

    std::span<std::byte> allocate(const TensorView& original) {
        const auto bytes = original.bytes();
        const auto memory =
            device ? device->allocate(original.device.index, bytes)
                   : std::span(static_cast<std::byte*>(::operator new(bytes, alignment)), bytes);
        tensors.emplace_back(original).data = memory.data();
        return memory;
    }
    bool are_filled() const { return !filled || filled->done(); }

    static constexpr std::align_val_t alignment{64};
    std::shared_ptr<device::Driver> device;  ///< null on the plain host
    std::shared_ptr<device::Event> filled;   ///< on a device: the copies are made
    /// what the request kept alive before: its end runs code of the user's
    std::shared_ptr<void> keep_alive;
    std::vector<TensorView> tensors;
};

void Engine::release_tensors(const std::function<bool(const Request&)>& concerns) {
    while (const auto pending = find_pending(concerns)) {
        std::shared_ptr<const OwnTensors> own;
        const auto released = [&] {
            if (!own && !pending->complete()) own = replace_tensors(*pending);
            return own ? own->are_filled() : pending->complete();
        };
        drive_until(std::ref(released), base::no_deadline);  // allocates nothing
    }
}

std::shared_ptr<Pending> Engine::find_pending(const std::function<bool(const Request&)>& concerns) {
    const base::Lock lock(queue_mutex_);
    for (const auto& [name, pending] : pending_)
        if (concerns(pending->request())) return pending;
    for (const auto& pending : pending_nameless_)
        if (concerns(pending->request())) return pending;
    return nullptr;
}

/// Null if somebody else is driving, if the operation's data moves, or if there is no memory: then
/// its end has to be awaited.
std::shared_ptr<const Engine::OwnTensors> Engine::replace_tensors(Pending& pending) try {
    std::shared_ptr<OwnTensors> own;
    try_between_bundles([&] {
        mutex_.is_held();
        if (pending.has_ended() || pending.enqueued() || point_to_point_.is_moving(pending))
            return false;
        auto copies = std::make_shared<OwnTensors>(pending.request());
        auto tensors = share(copies->tensors);
        const base::Lock queue(queue_mutex_);
        pending.set_tensors(std::move(tensors), copies->filled, copies);
        own = std::move(copies);
        return true;
    });
    return own;
} catch (const std::exception&) {
    return nullptr;
}

bool Engine::try_between_bundles(const std::function<bool()>& action) {
    if (!mutex_.try_lock()) return false;
    bool done = false;
    {
        const base::Lock lock(mutex_, std::adopt_lock);
        done = action();
    }
    // one of them may have taken this thread for a driver
    base::ring_callers(doorbell_, wait_.audience);
    return done;
}

}  // namespace guozhuang::engine
