// gz-info: what this build of the library is, what it finds on this machine, and how it is
// configured; with --check, which host of the job differs from the others. Alone, or under mpirun:
// rank 0 prints.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <guozhuang/info.hpp>
#include <guozhuang/session.hpp>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "host_check.hpp"

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

int run(int argc, char** argv) {
    CLI::App app{
        "Prints build features, MPI, topology, devices (why they are unusable, or by which path "
        "their tensors go among the ranks, which is tried) and the effective configuration."};
    bool json = false, check = false;
    app.add_flag("--json", json, "Print one JSON object: section, key, value");
    app.add_flag(
        "--check", check,
        "Instead, measure the link of each pair of hosts, compare hosts and ranks, and name "
        "what is odd: exit code 1 if anything is");
    gz::Session session(&argc, &argv);
    int code = 0;
    try {
        app.parse(argc, argv);
        if (check) {
            code = host_check::run(session, json);
        } else {
            gz::try_devices(&session);
            if (session.rank() == 0) (json ? print_json : print_text)(gz::info(&session));
        }
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
