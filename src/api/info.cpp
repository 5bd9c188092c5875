#include <fmt/format.h>
#include <guozhuang/info.hpp>
#include <guozhuang/version.hpp>
#include <utility>

#include "api/runtime.hpp"
#include "base/config.hpp"
#include "device/plugin.hpp"
#include "topology/machine.hpp"
#include "wire/mpi/mpi_info.hpp"
#include "wire/transport.hpp"

namespace guozhuang {
namespace {

std::shared_ptr<Runtime> runtime_of(Session* session) {
    return (session ? *session : Session::current()).runtime();
}

using Items = std::vector<InfoItem>;

void add_build(Items& items) {
    items.push_back({"build", "version", version()});
    items.push_back({"build", "id", device::build_id()});
    items.push_back({"build", "compiler", __VERSION__});
    items.push_back({"build", "CUDA plugin", device::built_with_cuda() ? "built" : "not built"});
}

void add_job(Items& items, const wire::Transport& transport) {
    items.push_back({"mpi", "library", wire::describe_mpi()});
    items.push_back({"mpi", "transport", transport.description()});
    items.push_back({"topology", "machine", topology::describe(topology::this_machine())});
    items.push_back({"topology", "job",
                     fmt::format("{} rank{} on {} host{}", transport.size(), transport.size() == 1 ? "" : "s", transport.host_count(),
                                 transport.host_count() == 1 ? "" : "s")});
}

void add_devices(Items& items, bool cuda_wanted) {
    if (!cuda_wanted) {
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
}

void add_configuration(Items& items, const base::Settings& settings) {
    for (const auto& row : base::settings_table()) items.push_back({"configuration", std::string(row.name), row.print(settings)});
}

}  // namespace

Traffic traffic(Session* session) {
    const auto sent = runtime_of(session)->transport().traffic();
    return {.bytes = sent.bytes, .messages = sent.messages};
}

std::vector<InfoItem> info(Session* session) {
    const auto runtime = runtime_of(session);
    Items items;
    add_build(items);
    add_job(items, runtime->transport());
    add_devices(items, runtime->settings().cuda);
    add_configuration(items, runtime->settings());
    return items;
}

}  // namespace guozhuang
