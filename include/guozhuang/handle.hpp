#pragma once

#include <chrono>
#include <cstring>
#include <guozhuang/error.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <span>
#include <vector>

namespace guozhuang {

namespace engine {
class Pending;
}

/// What an operation of unknown result size gives back: a dense tensor that the receiver owns.
struct Result {
    DType dtype = DType::f32;  ///< the input's
    /// Dim 0 is the sum of `rows`, the other extents are the input's.
    Shape shape;
    /// How many rows of dim 0 came from each rank; for reduce_scatter this rank's own count alone.
    std::vector<std::int64_t> rows;
    std::vector<std::byte> bytes;  ///< row-major, in rank order

    /// The elements, copied out. Throws Error(invalid_argument) if T is not the dtype.
    template <Element T>
    std::vector<T> as() const {
        if (dtype_of<T> != dtype)
            throw Error(ErrorCode::invalid_argument,
                        "Result::as: the elements are of another dtype");
        std::vector<T> elements(count_of(shape));
        if (!elements.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
        return elements;
    }
};

/// An operation on its way. Copies refer to the same operation. Dropping the last one is harmless:
/// the operation goes on, its memory must still outlive it, and a failure is logged once: as an
/// error, or for debugging if an exception has dropped the handle, which is the news then. Any
/// thread.
class GUOZHUANG_API Handle {
public:
    Handle() = default;
    Handle(const Handle&) = default;
    Handle(Handle&&) = default;
    Handle& operator=(const Handle&) = default;
    Handle& operator=(Handle&&) = default;
    ~Handle();

    /// Blocks until the operation is complete, driving it meanwhile; throws the operation's Error,
    /// every time it is asked.
    void wait() const;
    /// The same for at most `limit`; false if it is not complete by then. The operation goes on.
    /// The work is left to the library's own thread.
    bool wait_for(std::chrono::microseconds limit) const;
    /// For tensors on a device: blocks until the operation is *enqueued*, then makes `stream` wait
    /// for its completion and returns. Throws if the operation failed before it was enqueued. On
    /// plain host tensors it is wait().
    void wait(StreamRef stream) const;
    /// Whether wait() would return at once. Only looks: the library's own thread brings the
    /// operation forward. Ranks that take turns (RankOptions::turns) have none, so they wait().
    bool done() const;
    /// False for a default-constructed handle, on which nothing else may be called.
    explicit operator bool() const noexcept { return pending_ != nullptr; }

    explicit Handle(std::shared_ptr<engine::Pending> pending) noexcept;  ///< for the library itself

protected:
    std::shared_ptr<engine::Pending> pending_;
};

/// A handle whose operation gives a Result.
class GUOZHUANG_API ResultHandle : public Handle {
public:
    using Handle::Handle;
    /// wait(), then the result, moved out: the second time it throws Error(invalid_argument).
    Result take() const;
};

/// A handle whose operation gives a Result for each tensor of a group.
class GUOZHUANG_API ResultsHandle : public Handle {
public:
    using Handle::Handle;
    /// wait(), then the results in the order of the tensors, moved out: the second time it throws
    /// Error(invalid_argument).
    std::vector<Result> take() const;
};

/// The handle of a join.
class GUOZHUANG_API JoinHandle : public Handle {
public:
    using Handle::Handle;
    /// wait(), then the rank of the job that was the last to join.
    int last_rank() const;
};

}  // namespace guozhuang
