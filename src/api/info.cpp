#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <guozhuang/error.hpp>
#include <guozhuang/info.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/version.hpp>
#include <string_view>
#include <vector>

#include "api/process_set_state.hpp"
#include "base/config.hpp"
#include "device/find_nccl.hpp"
#include "device/owned_memory.hpp"
#include "device/plugin.hpp"
#include "runtime/runtime.hpp"
#include "topology/machine.hpp"
#include "wire/mpi/mpi_transport.hpp"
#include "wire/transport.hpp"

namespace guozhuang {
namespace {

using Items = std::vector<InfoItem>;

void add_devices(Items& items, const base::Config& config, const std::string& path) {
    if (!config.cuda) {
        items.push_back({"devices", "cuda", "unusable: GUOZHUANG_CUDA is off"});
        return;
    }
    const auto& [driver, reason] = device::cuda_driver();
    if (!driver) {
        items.push_back({"devices", "cuda", "unusable: " + reason});
        return;
    }
    for (int device = 0; device < driver->device_count(); ++device) {
        items.push_back({"devices", fmt::format("cuda {}", device), driver->description(device)});
    }
    const auto [nccl, why_not] = device::find_nccl(*driver, config.nccl);
    items.push_back({"devices", "nccl", nccl ? nccl->version() : "unusable: " + why_not});
    if (!path.empty()) items.push_back({"devices", "path", path});
}

/// Returns the reason of the lowest rank that has one, with its number; the same on all ranks.
/// Collective.
std::string first_reason(const std::string& own, Session* session) {
    const std::vector<std::uint8_t> bytes(own.begin(), own.end());
    const auto all = all_gather(bytes, {.session = session});
    const auto rank = std::ranges::find_if(all.rows, [](auto rows) { return rows > 0; });
    if (rank == all.rows.end()) return {};
    return fmt::format("rank {}: {}", rank - all.rows.begin(),
                       std::string_view(reinterpret_cast<const char*>(all.bytes.data()),
                                        static_cast<std::size_t>(*rank)));
}

}  // namespace

Traffic traffic(Session* session) {
    const auto sent = api::runtime_of(session)->transport().traffic();
    return {.bytes = sent.bytes, .messages = sent.messages};
}

void try_devices(Session* session) {
    const auto world = api::runtime_of(session)->world();
    Device device;
    device::OwnedMemory owned;
    std::string why_not;
    try {
        device = world->own_device(DeviceKind::cuda);
        owned = device::allocate_owned(world->driver_of(device.kind), device.index, sizeof(float));
    } catch (const Error& error) {
        why_not = error.what();
    }
    if (const auto reason = first_reason(why_not, session); !reason.empty())
        return world->note_path_of_world("unusable: " + reason);
    allreduce(TensorView(owned.memory.data(), DType::f32, {1}, device), {.session = session});
}

std::vector<InfoItem> info(Session* session) {
    const auto runtime = api::runtime_of(session);
    const auto& transport = runtime->transport();
    const auto& config = runtime->config();
    Items items{
        {"build", "version", version()},
        {"build", "id", device::build_id()},
        {"build", "compiler", __VERSION__},
        {"build", "CUDA plugin", device::built_with_cuda() ? "built" : "not built"},
        {"mpi", "library", wire::describe_mpi()},
        {"mpi", "transport", transport.description()},
        {"topology", "machine", topology::describe(topology::this_machine())},
        {"topology", "job",
         fmt::format("{} rank{} on {} host{}", transport.size(), transport.size() == 1 ? "" : "s",
                     transport.topology().hosts(), transport.topology().hosts() == 1 ? "" : "s")}};
    add_devices(items, config, runtime->world()->path_of_world());
    for (const auto& row : base::config_table())
        items.push_back({"configuration", std::string(row.name), row.print(config)});
    return items;
}

}  // namespace guozhuang
