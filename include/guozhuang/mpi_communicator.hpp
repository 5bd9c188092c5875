#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace guozhuang {

/// An MPI_Comm, as mpi_communicator() of <guozhuang/interop/mpi.hpp> makes it, so that this header
/// needs no mpi.h; or none.
class MpiCommunicator {
public:
    constexpr MpiCommunicator() = default;
    /// For that header and the library: takes and gives MPI_Comm, be it a pointer or a number.
    template <class Handle>
    static MpiCommunicator of(Handle handle) noexcept {
        static_assert(sizeof handle <= sizeof(bits_) && std::is_trivially_copyable_v<Handle>);
        MpiCommunicator communicator;
        communicator.given_ = true;
        std::memcpy(&communicator.bits_, &handle, sizeof handle);
        return communicator;
    }
    template <class Handle>
    Handle as() const noexcept {
        Handle handle{};
        std::memcpy(&handle, &bits_, sizeof handle);
        return handle;
    }
    explicit operator bool() const noexcept { return given_; }

private:
    std::uint64_t bits_ = 0;
    bool given_ = false;
};

}  // namespace guozhuang
