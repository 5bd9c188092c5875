#pragma once

#include <chrono>
#include <guozhuang/error.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace guozhuang {

namespace engine {
class Pending;
}

/// An output whose size the operation determines: a dense tensor that the caller owns, on the
/// input's device.
struct Result {
    DType dtype = DType::f32;  ///< the input's
    /// Dim 0 is the sum of `rows`; the other extents are the input's.
    Shape shape = {0};
    /// How many rows of dim 0 came from each rank; for reduce_scatter only this rank's own count.
    std::vector<std::int64_t> rows;
    /// The elements, row-major, in rank order; empty if they are elsewhere.
    std::vector<std::byte> bytes;
    Device device = {};  ///< the input's
    /// The elements, if they are on a device in the library's memory. The last owner frees it, and
    /// CUDA then waits until the device has done all its work.
    std::shared_ptr<void> device_memory = {};
    /// The elements, if the caller gave an output (Options::outputs).
    void* output = nullptr;

    /// A view of the elements where they are: in the caller's output, otherwise valid as long as
    /// this result, or its device_memory, lives.
    TensorView view() & noexcept { return {const_cast<void*>(address()), dtype, shape, device}; }
    void view() && = delete;  ///< a temporary takes its elements with it

    /// The elements without a copy, valid as long as view(). Throws Error(invalid_argument) if T is
    /// not the dtype, or if the elements are on a GPU.
    template <Element T>
    std::span<const T> values() const& {
        require_on_host(dtype_of<T>);
        return {static_cast<const T*>(address()), address() == nullptr ? 0 : count_of(shape)};
    }
    template <Element T>
    std::span<T> values() & {
        const auto elements = std::as_const(*this).values<T>();
        return {const_cast<T*>(elements.data()), elements.size()};
    }
    template <Element T>
    void values() && = delete;
    template <Element T>
    void values() const&& = delete;
    /// A copy of the elements. Throws as values().
    template <Element T>
    std::vector<T> as() const {
        const auto elements = values<T>();
        return {elements.begin(), elements.end()};
    }

private:
    void require_on_host(DType wanted) const {
        if (wanted != dtype)
            throw Error(ErrorCode::invalid_argument, "Result: the elements are " +
                                                         std::string(name_of(dtype)) + ", not " +
                                                         std::string(name_of(wanted)));
        if (device.kind == DeviceKind::cuda)
            throw Error(ErrorCode::invalid_argument,
                        "Result: the elements are on a GPU: copy them from Result::view()");
    }
    const void* address() const noexcept {
        if (output != nullptr) return output;
        return device.kind == DeviceKind::host ? bytes.data() : device_memory.get();
    }
};

/// An operation that was submitted. Copies refer to the same operation. Any thread. Dropping the
/// last handle is harmless: the operation goes on, and its memory must still outlive it. If it then
/// fails, the failure is logged once, as an error; or at level debug if an exception dropped the
/// handle, since the program sees the exception.
class GUOZHUANG_API Handle {
public:
    Handle() = default;
    Handle(const Handle&) = default;
    Handle(Handle&&) = default;
    Handle& operator=(const Handle&) = default;
    Handle& operator=(Handle&&) = default;
    ~Handle();

    /// Blocks until the operation is complete, driving it meanwhile. Throws the operation's Error,
    /// in every call.
    void wait() const;
    /// The same, for at most `limit`; returns false if the operation is not complete by then. It
    /// goes on. The library's own thread moves large data, so the limit holds meanwhile. The caller
    /// itself moves up to 1 MiB of this rank's data, and returns late if other ranks send more than
    /// that or stop in the middle of it.
    bool wait_for(std::chrono::microseconds limit) const;
    /// For tensors on a device: blocks until the operation is *enqueued*, then makes `stream` wait
    /// for its completion and returns. Throws if the operation failed before it was enqueued, or
    /// will fail because an output has another number of rows than its result. For a send, and for
    /// plain host tensors, the same as wait().
    void wait(StreamRef stream) const;
    /// The same, for at most `limit`; returns false if the operation is not *enqueued* by then (or
    /// not complete, where this is the same as wait()). It goes on.
    bool wait_for(StreamRef stream, std::chrono::microseconds limit) const;
    /// Whether wait() would return at once. Makes no progress: the library's own thread drives.
    /// Ranks that take turns (RankOptions::turns) have no such thread, so they must wait().
    bool done() const;
    /// False for a default-constructed handle, on which nothing else may be called.
    explicit operator bool() const noexcept { return pending_ != nullptr; }

    explicit Handle(std::shared_ptr<engine::Pending> pending) noexcept;  ///< for the library itself

protected:
    std::shared_ptr<engine::Pending> pending_;
};

/// The handle of an operation with a Result.
class GUOZHUANG_API ResultHandle : public Handle {
public:
    using Handle::Handle;
    /// Waits, then moves the result out. A second call throws Error(invalid_argument).
    Result take() const;
};

/// The handle of an operation with a Result for each tensor of a group.
class GUOZHUANG_API ResultsHandle : public Handle {
public:
    using Handle::Handle;
    /// Waits, then moves the results out, in the order of the tensors. A second call throws
    /// Error(invalid_argument).
    std::vector<Result> take() const;
};

/// The handle of a join.
class GUOZHUANG_API JoinHandle : public Handle {
public:
    using Handle::Handle;
    /// Waits, then returns the world rank that was the last to join.
    int last_rank() const;
};

}  // namespace guozhuang
