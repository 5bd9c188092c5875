#pragma once

#include <chrono>
#include <cstddef>
#include <guozhuang/log.hpp>
#include <guozhuang/types.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_path.hpp"
#include "base/failpoint.hpp"

namespace guozhuang::base {

/// An environment variable. The library reads the environment only in this file.
std::optional<std::string> environment(const std::string& name);
/// Names of all environment variables that start with the prefix.
std::vector<std::string> environment_names(std::string_view prefix);

/// All settings, with their defaults. Filled from GUOZHUANG_ variables, once per Runtime.
struct Config {
    std::size_t fusion_bytes = 1u << 20;
    std::size_t small_bytes = 32u << 10;
    std::size_t segment_bytes = 256u << 10;
    Algorithm algorithm = Algorithm::automatic;
    bool reproducible = false;
    std::optional<std::size_t> spin_us;  ///< empty: chosen from the number of cores
    bool shared_memory = true;
    bool cuda = true;
    bool allow_single = false;
    DevicePath device_path = DevicePath::automatic;
    std::size_t device_bytes = 32u << 20;
    int device_sms = 0;         ///< 0: no limit
    std::string nccl = "auto";  ///< or off, or a file
    LogLevel log_level = LogLevel::warning;
    std::string timeline;               ///< directory; empty: none
    std::optional<int> simulated_host;  ///< empty: the real one
    bool exit_on_death = true;
    /// How long something may last; 0: for ever.
    struct Limits {
        std::chrono::milliseconds stall_warn{10'000}, stall_error{0}, silent_host{10'000};
        std::chrono::milliseconds shrink{0};  ///< SessionOptions::time_to_shrink
    } limits;
    std::optional<Fault> fault;  ///< to inject, for tests
};

/// Who decides when ranks are configured differently.
enum class ConfigScope { rank0_wins, may_differ };

/// One row of the configuration table: documentation, parsing and printing of one variable.
struct ConfigVariable {
    std::string_view name;  ///< with its GUOZHUANG_ prefix
    std::string_view unit;
    std::string_view range;  ///< as documentation and errors spell it
    ConfigScope scope;
    std::string_view effect;
    bool (*parse)(Config&, std::string_view text);  ///< false if the text is not acceptable
    std::string (*print)(const Config&);
};

std::span<const ConfigVariable> config_table();

/// Reads the environment strictly; an empty variable counts as unset. Throws Error(configuration),
/// which names variable, value and accepted range.
Config read_config();

/// A warning for each GUOZHUANG_ environment variable that is not in the table, with the nearest
/// name there if one is near.
std::vector<std::string> unknown_variables();

/// Returns as much of a value, which may hold any bytes, as fits a line of an error.
std::string for_display(std::string_view value);

/// Parses a number of bytes with a binary suffix K, M, G, or k, m, g: "2M", "64K", "1000" ... Empty
/// if the text is not such a number.
std::optional<std::size_t> parse_bytes(std::string_view text);

}  // namespace guozhuang::base
