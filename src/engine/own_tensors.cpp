#include "engine/own_tensors.hpp"

#include <cstring>
#include <utility>

namespace guozhuang::engine {
namespace {

constexpr std::align_val_t alignment{64};

}  // namespace

OwnTensors::OwnTensors(std::shared_ptr<device::Driver> device, std::shared_ptr<void> kept)
    : device_(std::move(device)), keep_alive_(std::move(kept)) {}

OwnTensors::OwnTensors(const Request& request) : OwnTensors(request.device, request.keep_alive) {
    tensors_.reserve(request.tensors.size());
    std::shared_ptr<device::Stream> stream;
    if (device_ && !request.tensors.empty()) {
        stream = device_->wrap({.device = request.tensors.front().device, .native = nullptr});
        for (const auto& ready : request.ready) stream->wait(ready);
    }
    for (const auto& tensor : request.tensors) {
        const auto memory = allocate(tensor);
        if (stream)
            device_->copy(*stream, memory, tensor.memory());
        else if (!memory.empty())
            std::memcpy(memory.data(), tensor.data, memory.size());
    }
    if (stream) filled_.push_back(stream->record());
}

OwnTensors::~OwnTensors() {
    for (const auto& tensor : tensors_)
        device_ ? device_->release(tensor.device.index, tensor.memory())
                : ::operator delete(tensor.data, alignment);
}

std::span<std::byte> OwnTensors::allocate(const TensorView& original) {
    const auto bytes = original.bytes();
    const auto memory =
        device_ ? device_->allocate(original.device.index, bytes)
                : std::span(static_cast<std::byte*>(::operator new(bytes, alignment)), bytes);
    tensors_.emplace_back(original).data = memory.data();
    return memory;
}

}  // namespace guozhuang::engine
