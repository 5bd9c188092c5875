#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

namespace guozhuang {

/// An MPI_Comm without mpi.h, or none. mpi_communicator() of <guozhuang/interop/mpi.hpp> makes one.
class MpiCommunicator {
public:
    constexpr MpiCommunicator() = default;
    /// For that header and the library: converts an MPI_Comm, whether it is a pointer or a number.
    template <class Handle>
    static MpiCommunicator of(Handle handle) noexcept {
        const auto bytes = std::as_bytes(std::span<const Handle, 1>(&handle, 1));
        static_assert(decltype(bytes)::extent <= most_bytes &&
                      std::is_trivially_copyable_v<Handle>);
        MpiCommunicator communicator;
        communicator.size_ = bytes.size();
        std::ranges::copy(bytes, communicator.bytes_.begin());
        return communicator;
    }
    template <class Handle>
    Handle as() const noexcept {
        Handle handle{};
        const auto bytes = std::as_writable_bytes(std::span<Handle, 1>(&handle, 1));
        std::ranges::copy(std::span(bytes_).first(bytes.size()), bytes.begin());
        return handle;
    }
    /// The size of the handle: the library refuses a handle from another MPI.
    std::size_t size() const noexcept { return size_; }
    explicit operator bool() const noexcept { return size_ != 0; }

private:
    static constexpr std::size_t most_bytes = 8;
    std::array<std::byte, most_bytes> bytes_{};
    std::size_t size_ = 0;  ///< 0: none
};

}  // namespace guozhuang
