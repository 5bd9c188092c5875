#include "baselines/baseline.hpp"

#include <fmt/format.h>

namespace guozhuang::perf {

Baselines make_baselines(const MpiJob& job, std::span<const BaselineKind* const> chosen,
                         const TensorDevice* device, JsonLines& lines) {
    Baselines made;
    for (const auto* const kind : chosen) {
        try {
            made.push_back(kind->make(job, device));
        } catch (const Unavailable& reason) {
            if (job.first()) fmt::print("# {} is not measured: {}\n", kind->name, reason.what());
            lines.write({{"kind", "unavailable"},
                         {"series", kind->name},
                         {"ranks", job.size()},
                         {"reason", reason.what()}});
        }
    }
    return made;
}

}  // namespace guozhuang::perf
