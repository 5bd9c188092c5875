#include "backends/device/lone_path.hpp"

#include <vector>

namespace guozhuang::backends {

void LonePath::enqueue(std::shared_ptr<engine::StreamBundle> given, device::Stream& stream) {
    const auto& bundle = given->bundle();
    const auto rows = results_.rows_of(bundle);
    std::vector<device::Copy> in_place;
    for (std::size_t i = 0; i < bundle.entries.size(); ++i) {
        const auto& entry = bundle.entries[i];
        auto memory = entry.tensor.memory();
        if (!rows.empty()) {
            const auto result = results_.memory_for(entry, rows[i]);
            if (!memory.empty() && result.data() != memory.data())
                driver_->copy(stream, result, memory);
            memory = result;
        }
        in_place.push_back({memory, memory, entry.tensor.dtype});
    }
    // An average of one, and Adasum of one, are the tensor itself.
    for (const auto factor : {bundle.description->prescale, bundle.description->postscale})
        if (factor != 1) driver_->copy_all(stream, in_place, {.scale = factor});
}

}  // namespace guozhuang::backends
