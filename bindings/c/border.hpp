#pragma once

#include <guozhuang.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <guozhuang/arena.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/process_set.hpp>
#include <guozhuang/stream.hpp>
#include <guozhuang/tensor.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct GzProcessSet {
    guozhuang::ProcessSet set;
};

/// Helpers of all functions of the C interface: arguments in, errors out.
namespace guozhuang::c {

/// Makes the exception that is being handled the calling thread's last error.
GzStatus record_error() noexcept;

/// Calls the caller's callback. If it returns other than 0, throws the error that a function in it
/// has recorded with that status, as in `return gz_barrier(NULL);`, else an error that becomes
/// GZ_ERROR_CALLBACK.
void call_back(int (*callback)(void* context), void* context);

/// The body of a function: no exception leaves it.
template <class Body>
GzStatus guarded(Body&& body) noexcept {
    try {
        body();
        return GZ_OK;
    } catch (...) {
        return record_error();
    }
}

[[noreturn]] void refuse(const std::string& problem);  ///< throws Error(invalid_argument)

/// Dereferences a pointer that must not be null. An error calls it `what`.
template <class T>
T& required(T* pointer, const char* what) {
    if (pointer == nullptr) refuse(std::string(what) + " must not be NULL");
    return *pointer;
}

/// The `count` elements at `first`.
template <class T>
std::span<T> list_of(T* first, std::size_t count, const char* what) {
    if (count > 0) required(first, what);
    return {first, count};
}

/// The same where NULL means that nothing is given: a list of no elements is a mistake then.
template <class T>
std::span<T> optional_list_of(T* first, std::size_t count, const char* what) {
    if (first != nullptr && count == 0)
        refuse(std::string(what) + " are given, but their number is 0");
    return list_of(first, count, what);
}

/// The element of that number. `what` they are is in the plural.
template <class List>
auto& item_of(List& list, std::size_t index, const char* what) {
    if (index >= list.size())
        refuse("there are " + std::to_string(list.size()) + " " + what + ", so no number " +
               std::to_string(index));
    return list[index];
}

/// The enumerator of that number, if the first one has the number `first`.
template <class Enum>
Enum enumerator(std::int32_t number, Enum last, const char* what, std::int32_t first = 0) {
    if (number < first || number - first > static_cast<std::int32_t>(last))
        refuse("there is no " + std::string(what) + " " + std::to_string(number));
    return static_cast<Enum>(number - first);
}

/// The options given, as far as their size goes, and the defaults of what a later version of the
/// struct has behind that.
template <class T>
T options_or(const T* given, T options) {
    if (given == nullptr) return options;
    if (given->size <= sizeof given->size || given->size > sizeof(T) ||
        given->size % alignof(T) != 0)
        refuse("options of " + std::to_string(given->size) + " bytes: initialise them with the " +
               "macro of the header; or the program was compiled for a later version of the " +
               "library");
    std::memcpy(&options, given, given->size);
    return options;
}

/// Hands an object out, which the caller frees.
template <class T>
void give(T** where, std::unique_ptr<T> object) {
    required(where, "where the result goes") = object.release();
}

/// `make()` gives an object of the C interface, which is handed out.
template <class T, class Make>
GzStatus create(T** where, Make&& make) noexcept {
    return guarded([&] {
        required(where, "where the new object goes");
        give(where, std::unique_ptr<T>(make()));
    });
}

/// Puts what `value()` gives where the caller wants it.
template <class T, class Value>
GzStatus put(T* where, Value&& value) noexcept {
    return guarded([&] {
        auto& result = required(where, "where the result goes");
        result = value();
    });
}

/// Negative: none at all.
inline std::chrono::microseconds limit_of(std::int64_t limit_us) {
    return std::chrono::microseconds(std::max<std::int64_t>(limit_us, 0));
}

std::string text_of(const char* text);        ///< NULL: empty
std::string required_text(const char* text);  ///< refuses NULL
Device device_of(const GzDevice& device);
TensorView tensor_of(const GzTensor* tensor);
std::vector<TensorView> tensors_of(const GzTensor* tensors, std::size_t count);
std::vector<NamedTensor> named_tensors_of(const GzNamedTensor* tensors, std::size_t count);
std::vector<Parameter> parameters_of(const GzParameter* parameters, std::size_t count);
std::optional<StreamRef> stream_of(const GzStream* stream);
ProcessSet set_of(const GzProcessSet* set);
ReduceOp reduce_op_of(GzReduceOp op);
GzTensor as_c(const TensorView& tensor);  ///< refers to the view's shape

}  // namespace guozhuang::c
