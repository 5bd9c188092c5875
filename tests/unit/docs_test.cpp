// Checks that docs/ agrees with the code.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "base/config.hpp"
#include "collectives/algorithms.hpp"
#include "support/runner/catch.hpp"

using namespace guozhuang;

namespace {

std::string read(const std::string& path) {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../.." / path);
    REQUIRE(file);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string row_of(const base::ConfigVariable& row) {
    const auto unit = row.unit.empty() ? std::string() : fmt::format(" {}", row.unit);
    const auto who = row.scope == base::ConfigScope::rank0_wins ? "rank 0" : "each rank";
    return fmt::format("| `{}` | {} | {}{} | {} | {} |\n", row.name, row.print(base::Config{}),
                       row.range, unit, who, row.effect);
}

}  // namespace

TEST_CASE("docs/configuration.md holds the table of settings, row by row, and nothing else") {
    const auto page = read("docs/configuration.md");
    std::size_t rows = 0;
    for (const auto& variable : base::config_table()) {
        const auto is_there = page.find(row_of(variable)) != std::string::npos;
        // Catch would wrap the line.
        if (!is_there) std::cout << "expected in docs/configuration.md:\n" << row_of(variable);
        CHECK(is_there);
    }
    for (auto at = page.find("| `GUOZHUANG_"); at != std::string::npos;
         at = page.find("| `GUOZHUANG_", at + 1))
        ++rows;
    CHECK(rows == base::config_table().size());
}

TEST_CASE("docs/algorithms.md has a row for every algorithm of the table") {
    const auto page = read("docs/algorithms.md");
    for (const auto& row : selection::algorithms) {
        if (row.algorithm == Algorithm::automatic) continue;
        auto name = std::string(row.name);
        std::ranges::replace(name, '_', ' ');
        INFO("expected in docs/algorithms.md: | allreduce | " << name);
        CHECK(page.find("| allreduce | " + name) != std::string::npos);
    }
}

TEST_CASE("docs/verification.md names every failpoint") {
    const auto page = read("docs/verification.md");
    for (int i = 0; i < static_cast<int>(base::Failpoint::count); ++i) {
        const auto point = name_of(static_cast<base::Failpoint>(i));
        INFO(point);
        CHECK(page.find(fmt::format("`{}`", point)) != std::string::npos);
    }
}

TEST_CASE("pages for users name only variables that exist") {
    for (const std::string page : {"docs/algorithms.md", "docs/process_sets.md", "docs/timeline.md",
                                   "docs/verification.md"}) {
        const auto text = read(page);
        REQUIRE(text.find("GUOZHUANG_") != std::string::npos);
        for (auto at = text.find("GUOZHUANG_"); at != std::string::npos;
             at = text.find("GUOZHUANG_", at + 1)) {
            const auto name = text.substr(
                at, text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789", at) - at);
            INFO(page << ": " << name);
            bool known = false;
            for (const auto& variable : base::config_table()) known |= variable.name == name;
            CHECK(known);
        }
    }
}
