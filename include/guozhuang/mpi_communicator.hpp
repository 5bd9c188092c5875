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
    /// For that header and the library: converts an MPI_Comm, be it a pointer or a number.
    template <class Handle>
    static MpiCommunicator of(Handle handle) noexcept {
        const auto bytes = std::as_bytes(std::span<const Handle, 1>(&handle, 1));
        static_assert(decltype(bytes)::extent <= most_bytes &&
                      std::is_trivially_copyable_v<Handle>);
        MpiCommunicator communicator;
        communicator.given_ = true;
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
    explicit operator bool() const noexcept { return given_; }

private:
    static constexpr std::size_t most_bytes = 8;
    std::array<std::byte, most_bytes> bytes_{};
    bool given_ = false;
};

}  // namespace guozhuang
