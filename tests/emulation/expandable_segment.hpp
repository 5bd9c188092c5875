#pragma once

#include <cstddef>
#include <cuda.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace guozhuang::test {

inline void expect(CUresult status, const char* what) {
    if (status != CUDA_SUCCESS)
        throw std::runtime_error(std::string(what) + ": " + std::to_string(status));
}

/// Addresses that a program reserves, and at which it maps memory of the device as it needs more,
/// like PyTorch's expandable segments. A piece may lie in several mappings.
class ExpandableSegment {
public:
    explicit ExpandableSegment(int device) : device_(device) {
        const auto wanted = properties();
        expect(
            cuMemGetAllocationGranularity(&each_bytes_, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            "no granularity");
        expect(cuMemAddressReserve(&start_, most_bytes, 0, 0, 0), "no addresses");
    }
    ~ExpandableSegment() {
        for (std::size_t i = 0; i < mappings_; ++i)
            cuMemUnmap(start_ + i * each_bytes_, each_bytes_);
        cuMemAddressFree(start_, most_bytes);
    }
    ExpandableSegment(const ExpandableSegment&) = delete;
    ExpandableSegment& operator=(const ExpandableSegment&) = delete;

    /// The memory is valid as long as the segment lives. Not thread-safe.
    void* take(std::size_t bytes) {
        const auto at = (used_ + alignment - 1) / alignment * alignment;
        used_ = at + bytes;
        while (mappings_ * each_bytes_ < used_) map_more();
        return reinterpret_cast<void*>(start_ + at);  // NOLINT(performance-no-int-to-ptr)
    }
    std::size_t mappings() const noexcept { return mappings_; }
    std::size_t mapping_bytes() const noexcept { return each_bytes_; }

private:
    static constexpr std::size_t most_bytes = std::size_t{1} << 30, alignment = 512;

    CUmemAllocationProp properties() const {
        CUmemAllocationProp wanted{};
        wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
        return wanted;
    }
    /// Released at once, since its mapping keeps it.
    void map_more() {
        const auto wanted = properties();
        const auto at = start_ + mappings_ * each_bytes_;
        CUmemGenericAllocationHandle handle{};
        expect(cuMemCreate(&handle, each_bytes_, &wanted, 0), "no memory");
        expect(cuMemMap(at, each_bytes_, 0, handle, 0), "cannot map");
        expect(cuMemRelease(handle), "cannot release");
        ++mappings_;
        const CUmemAccessDesc access{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        expect(cuMemSetAccess(at, each_bytes_, &access, 1), "no access");
    }

    const int device_;
    CUdeviceptr start_ = 0;
    std::size_t each_bytes_ = 0, mappings_ = 0, used_ = 0;
};

}  // namespace guozhuang::test
