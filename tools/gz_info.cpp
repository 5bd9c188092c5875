// gz-info: what this build of the library is, what it finds on this machine, and how it is
// configured. Alone, or under mpirun: rank 0 prints.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <guozhuang/guozhuang.hpp>
#include <guozhuang/info.hpp>
#include <guozhuang/session.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "api/drivers.hpp"
#include "device/owned_memory.hpp"

namespace gz = guozhuang;

namespace {

void print_json(const std::vector<gz::InfoItem>& items) {
    nlohmann::ordered_json sections;
    for (const auto& [section, key, value] : items) sections[section][key] = value;
    fmt::print("{}\n", sections.dump(2));
}

void print_text(const std::vector<gz::InfoItem>& items) {
    std::string current;
    for (const auto& [section, key, value] : items) {
        if (section != current) fmt::print("{}{}\n", current.empty() ? "" : "\n", section);
        current = section;
        fmt::print("  {:<26} {}\n", key, value);
    }
}

/// Finds out by which path tensors on GPUs go among all ranks, if each can use one.
void try_devices(const gz::Session& session) {
    std::shared_ptr<guozhuang::device::Driver> driver;
    try {
        driver = gz::api::driver_of(gz::DeviceKind::cuda);
    } catch (const gz::Error&) {  // NOLINT(bugprone-empty-catch): info() says why
    }
    int usable = driver ? 1 : 0;
    gz::allreduce(usable, {.op = gz::ReduceOp::min});
    if (usable == 0) return;
    const gz::Device device{gz::DeviceKind::cuda, session.local_rank() % driver->device_count()};
    const auto owned = gz::device::allocate_owned(driver, device.index, sizeof(float));
    gz::allreduce(gz::TensorView(owned.memory.data(), gz::DType::f32, {1}, device));
}

int run(int argc, char** argv) {
    CLI::App app{
        "Prints build features, MPI, topology, devices (why they are unusable, or by which path "
        "their tensors go among the ranks, which is tried) and the effective configuration."};
    bool json = false;
    app.add_flag("--json", json, "Print one JSON object: section, key, value");
    gz::Session session(&argc, &argv);
    int code = 0;
    try {
        app.parse(argc, argv);
        try_devices(session);
        if (session.rank() == 0) (json ? print_json : print_text)(gz::info(&session));
    } catch (const CLI::ParseError& stop) {
        std::ostringstream out, err;
        code = app.exit(stop, out, err) == 0 ? 0 : 2;
        if (session.rank() == 0) fmt::print("{}", out.str()), fmt::print(stderr, "{}", err.str());
    }
    session.close();
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        fmt::print(stderr, "gz-info: {}\n", error.what());
        return 1;
    }
}
