#include "border.hpp"

#include <guozhuang/types.hpp>
#include <memory>
#include <new>
#include <stdexcept>
#include <unistd.h>
#include <utility>

namespace guozhuang::c {
namespace {

GzStatus status_of(ErrorCode code) {
    return static_cast<GzStatus>(code) + 1;
}

/// The caller's callback has failed.
struct CallbackFailed : std::runtime_error {
    using runtime_error::runtime_error;
};

constexpr GzError error_of(GzStatus status, const char* message) {
    return {sizeof(GzError), status, message, "", "", nullptr, 0};
}

/// A thread's last error, and the memory of its texts.
struct LastError {
    std::string message, tensor, operation;
    std::vector<int> ranks;
    GzError error = error_of(GZ_OK, "");
    std::uint64_t count = 0;  ///< of the thread's errors

    GzStatus set(GzStatus status, const char* text, const Error::Facts& facts = {}) noexcept {
        ++count;
        try {
            message = text;
            tensor = facts.tensor;
            operation = facts.operation;
            ranks = facts.ranks;
            error = {sizeof error,      status,       message.c_str(), tensor.c_str(),
                     operation.c_str(), ranks.data(), ranks.size()};
        } catch (...) {
            error = error_of(GZ_ERROR_OUT_OF_MEMORY, "out of memory");
        }
        return error.status;
    }
};

/// Memory for one: a thread's first error may be that there is none.
alignas(LastError) constinit thread_local std::byte room[sizeof(LastError)] = {};

/// The calling thread's last error; null before its first call.
thread_local LastError* own_error = nullptr;

/// Destroys it at the thread's end. The main thread's is kept: atexit() handlers run later and may
/// call the library.
struct EndOfThread {
    ~EndOfThread() {
        if (gettid() != getpid()) std::destroy_at(std::exchange(own_error, nullptr));
    }
};

LastError& last_error() {
    thread_local const EndOfThread end;
    if (own_error == nullptr) own_error = ::new (room) LastError;
    return *own_error;
}

Error::Facts facts_of(const Error& error) {
    return {.tensor = error.tensor(), .operation = error.operation(), .ranks = error.ranks()};
}

}  // namespace

GzStatus record_error() noexcept {
    auto& last = last_error();
    try {
        throw;
    } catch (const Error& error) {
        try {
            return last.set(status_of(error.code()), error.what(), facts_of(error));
        } catch (const std::bad_alloc&) {
            return last.set(status_of(error.code()), error.what());
        }
    } catch (const CallbackFailed& error) {
        return last.set(GZ_ERROR_CALLBACK, error.what());
    } catch (const std::bad_alloc&) {
        return last.set(GZ_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::length_error&) {
        return last.set(GZ_ERROR_OUT_OF_MEMORY, "out of memory: so long a list cannot be");
    } catch (const std::exception& error) {
        return last.set(GZ_ERROR_INTERNAL, error.what());
    } catch (...) {
        return last.set(GZ_ERROR_INTERNAL, "an exception that is no std::exception");
    }
}

void call_back(int (*callback)(void* context), void* context) {
    const auto& last = last_error();
    const auto before = last.count;
    const int result = callback(context);
    if (result == GZ_OK) return;
    const bool is_an_error = result > GZ_OK && result <= status_of(last_of(ErrorCode{}));
    if (!is_an_error || result != last.error.status || last.count == before)
        throw CallbackFailed("the caller's callback returned " + std::to_string(result));
    throw Error(static_cast<ErrorCode>(result - 1), last.message,
                {.tensor = last.tensor, .operation = last.operation, .ranks = last.ranks});
}

void refuse(const std::string& problem) {
    throw Error(ErrorCode::invalid_argument, problem);
}

std::string text_of(const char* text) {
    return text == nullptr ? std::string() : std::string(text);
}

std::string required_text(const char* text) {
    return &required(text, "a name");
}

Device device_of(const GzDevice& device) {
    return {enumerator(device.kind, last_of(DeviceKind{}), "device kind"), device.index};
}

TensorView tensor_of(const GzTensor* given) {
    const auto& tensor = required(given, "the tensor");
    const auto extents = [&](const std::int64_t* first, const char* what) {
        if (tensor.dimensions < 0)
            refuse("a tensor of " + std::to_string(tensor.dimensions) + " dimensions");
        return optional_list_of(first, static_cast<std::size_t>(tensor.dimensions), what);
    };
    if (tensor.dtype == 0) refuse("a tensor whose dtype has not been set");
    TensorView view(tensor.data, enumerator(tensor.dtype, last_of(DType{}), "dtype", /*first=*/1),
                    extents(tensor.shape, "extents"), device_of(tensor.device));
    if (tensor.strides != nullptr) {
        const auto strides = extents(tensor.strides, "strides");
        view.strides.assign(strides.begin(), strides.end());
    }
    return view;
}

std::vector<TensorView> tensors_of(const GzTensor* tensors, std::size_t count) {
    std::vector<TensorView> views;
    for (const auto& tensor : list_of(tensors, count, "the tensors"))
        views.push_back(tensor_of(&tensor));
    return views;
}

std::vector<NamedTensor> named_tensors_of(const GzNamedTensor* tensors, std::size_t count) {
    std::vector<NamedTensor> views;
    for (const auto& [name, tensor] : list_of(tensors, count, "the tensors"))
        views.push_back({required_text(name), tensor_of(&tensor)});
    return views;
}

std::vector<Parameter> parameters_of(const GzParameter* parameters, std::size_t count) {
    const auto is_none = [](const GzTensor& tensor) {
        return tensor.data == nullptr && tensor.shape == nullptr && tensor.dimensions == 0;
    };
    std::vector<Parameter> views;
    for (const auto& [name, value, gradient] : list_of(parameters, count, "the parameters"))
        views.push_back({required_text(name), tensor_of(&value),
                         is_none(gradient) ? TensorView() : tensor_of(&gradient)});
    return views;
}

std::optional<StreamRef> stream_of(const GzStream* stream) {
    if (stream == nullptr) return std::nullopt;
    return StreamRef{device_of(stream->device), stream->native};
}

ProcessSet set_of(const GzProcessSet* set) {
    return set == nullptr ? ProcessSet() : set->set;
}

ReduceOp reduce_op_of(GzReduceOp op) {
    return enumerator(op, last_of(ReduceOp{}), "reduce op");
}

GzTensor as_c(const TensorView& tensor) {
    return {tensor.data,
            tensor.shape.data(),
            nullptr,
            static_cast<GzDType>(tensor.dtype) + 1,
            static_cast<std::int32_t>(tensor.shape.size()),
            {static_cast<GzDeviceKind>(tensor.device.kind), tensor.device.index}};
}

}  // namespace guozhuang::c

const GzError* gz_last_error() {
    return &guozhuang::c::last_error().error;
}

const char* gz_status_name(GzStatus status) {
    if (status == GZ_OK) return "ok";
    if (status == GZ_ERROR_CALLBACK) return "callback";
    if (status < 0) return "unknown";
    // The names are literals, which end with a 0.
    return guozhuang::name_of(static_cast<guozhuang::ErrorCode>(status - 1)).data();
}
