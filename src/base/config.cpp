#include "base/config.hpp"

#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <guozhuang/error.hpp>
#include <limits>

#include "base/edit_distance.hpp"
#include "base/log.hpp"
#include "base/parse.hpp"
#include "collectives/algorithms.hpp"

namespace guozhuang::base {
namespace {

constexpr std::string_view prefix = "GUOZHUANG_";
constexpr std::array<std::string_view, 2> switch_words = {"0", "1"}, cuda_words = {"off", "auto"},
                                          on_death_words = {"report", "exit"};
constexpr std::array<std::string_view, 5> log_level_names = {"debug", "info", "warning", "error",
                                                             "off"};
constexpr std::string_view automatic = "auto", real_host = "real";

template <std::size_t Config::*member, std::size_t lowest, std::size_t highest>
bool parse_size(Config& config, std::string_view text) {
    const auto bytes = parse_bytes(text);
    if (!bytes || *bytes < lowest || *bytes > highest) return false;
    config.*member = *bytes;
    return true;
}

template <auto member>
std::string print_number(const Config& config) {
    return std::to_string(config.*member);
}

template <int Config::*member>
bool parse_count(Config& config, std::string_view text) {
    const auto number = parse_number<int>(text);
    if (!number || *number < 0 || *number > 1'000'000) return false;
    config.*member = *number;
    return true;
}

/// The member's value is the index of its word.
template <auto member, const auto& words>
bool parse_word(Config& config, std::string_view text) {
    return parse_choice(text, words, config.*member);
}
template <auto member, const auto& words>
std::string print_word(const Config& config) {
    return std::string(words[static_cast<std::size_t>(config.*member)]);
}

/// The member is a number up to a million, or empty, which has a word.
template <auto member, const std::string_view& none>
bool parse_optional(Config& config, std::string_view text) {
    const auto number = parse_number<unsigned>(text);
    if (text != none && (!number || *number > 1'000'000)) return false;
    config.*member = number;
    return true;
}
template <auto member, const std::string_view& none>
std::string print_optional(const Config& config) {
    return config.*member ? std::to_string(*(config.*member)) : std::string(none);
}

template <std::chrono::milliseconds Config::Limits::*member>
bool parse_seconds(Config& config, std::string_view text) {
    constexpr double longest = 1e6;
    const auto seconds = parse_number<double>(text);
    if (text != "off" && !(seconds && *seconds >= 0.001 && *seconds <= longest)) return false;
    config.limits.*member = std::chrono::milliseconds(std::llround(seconds.value_or(0) * 1000));
    return true;
}
template <std::chrono::milliseconds Config::Limits::*member>
std::string print_seconds(const Config& config) {
    const auto value = config.limits.*member;
    return value.count() == 0 ? "off"
                              : fmt::format("{:g}", static_cast<double>(value.count()) / 1000);
}

// A path needs a slash, so that neither a switch nor a misspelt `off` becomes one.
template <std::string Config::*member>
bool parse_path(Config& config, std::string_view text) {
    if (text != "off" && text.find('/') == std::string_view::npos) return false;
    config.*member = text == "off" ? "" : text;
    return true;
}
template <std::string Config::*member>
std::string print_path(const Config& config) {
    return (config.*member).empty() ? "off" : config.*member;
}

/// A process with more rights than its user takes no code that the user names.
bool parse_nccl(Config& config, std::string_view text) {
    const bool is_file = text.find('/') != std::string_view::npos;
    if (is_file ? getauxval(AT_SECURE) != 0 : text != "auto" && text != "off") return false;
    config.nccl = text;
    return true;
}
std::string print_nccl(const Config& config) {
    return config.nccl;
}

/// "auto, ring ... or parameter_server": those of the table that can be asked for.
constexpr auto algorithm_names = [] {
    std::array<char, 1024> text{};
    char* end = text.data();
    const auto count =
        std::ranges::count_if(selection::algorithms, &selection::AlgorithmRow::by_name);
    std::ptrdiff_t position = 0;
    for (const auto& row : selection::algorithms) {
        if (!row.by_name) continue;
        const std::string_view comma = position == 0 ? "" : position + 1 == count ? " or " : ", ";
        end = std::ranges::copy(comma, end).out;
        end = std::ranges::copy(row.name, end).out;
        ++position;
    }
    return text;
}();

bool parse_algorithm(Config& config, std::string_view text) {
    for (const auto& row : selection::algorithms) {
        if (!row.by_name || row.name != text) continue;
        config.algorithm = row.algorithm;
        return true;
    }
    return false;
}
std::string print_algorithm(const Config& config) {
    return std::string(name_of(config.algorithm));
}

bool parse_failpoint(Config& config, std::string_view text) {
    config.fault = parse_fault(text);
    return config.fault || text == "none";
}
std::string print_failpoint(const Config& config) {
    return config.fault ? print(*config.fault) : "none";
}

constexpr std::size_t gib = std::size_t{1} << 30;

constexpr ConfigVariable table[] = {
    {"GUOZHUANG_ALGORITHM", "", algorithm_names.data(), ConfigScope::rank0_wins,
     "Algorithm of every allreduce; `auto` selects by size (algorithms.md).", parse_algorithm,
     print_algorithm},
    {"GUOZHUANG_ALLOW_SINGLE", "", "0 or 1", ConfigScope::may_differ,
     "1: a process that a launcher has started as one of several, but which MPI knows alone, is a "
     "job of one rank. Otherwise that is an error.",
     parse_word<&Config::allow_single, switch_words>,
     print_word<&Config::allow_single, switch_words>},
    {"GUOZHUANG_CUDA", "", "auto or off", ConfigScope::may_differ,
     "Whether CUDA tensors may be used; `off`: they are an error, and gz-info looks for no GPU.",
     parse_word<&Config::cuda, cuda_words>, print_word<&Config::cuda, cuda_words>},
    {"GUOZHUANG_DEVICE_BYTES", "bytes", "64K to 1G", ConfigScope::rank0_wins,
     "Memory of its device that a rank takes for a process set on the direct path or the ring "
     "(gpu.md).",
     parse_size<&Config::device_bytes, 64 * 1024, gib>, print_number<&Config::device_bytes>},
    {"GUOZHUANG_DEVICE_PATH", "", "auto, nccl, direct, ring or staged", ConfigScope::rank0_wins,
     "How tensors on devices move (gpu.md); a path that cannot be is an error.",
     parse_word<&Config::device_path, device_path_names>,
     print_word<&Config::device_path, device_path_names>},
    {"GUOZHUANG_DEVICE_SMS", "", "0 to 1000000", ConfigScope::rank0_wins,
     "How many multiprocessors of its GPU a rank's kernels and NCCL's may fill (gpu.md); 0: no "
     "limit.",
     parse_count<&Config::device_sms>, print_number<&Config::device_sms>},
    {"GUOZHUANG_FAILPOINT", "", "none, or NAME@RANK:NTH=kill, stop:MS, delay:US or error",
     ConfigScope::may_differ,
     "For tests: a fault that befalls one rank the NTH time that it passes a point of the library "
     "(verification.md has the names).",
     parse_failpoint, print_failpoint},
    {"GUOZHUANG_FUSION_BYTES", "bytes", "0 to 1G", ConfigScope::rank0_wins,
     "Single operations that are ready together are fused into bundles of up to this size; 0 fuses "
     "nothing.",
     parse_size<&Config::fusion_bytes, 0, gib>, print_number<&Config::fusion_bytes>},
    {"GUOZHUANG_HOST", "", "real, or 0 to 1000000", ConfigScope::may_differ,
     "To try out on one machine what happens between several: ranks with different numbers here "
     "take each other for ranks of different "
     "hosts.",
     parse_optional<&Config::simulated_host, real_host>,
     print_optional<&Config::simulated_host, real_host>},
    {"GUOZHUANG_HOST_LIMIT_S", "s", "off, or 0.001 to 1000000", ConfigScope::may_differ,
     "A host that has not answered for so long (it has lost power, or the network) counts as dead, "
     "which ends the job. Its system answers, so ranks that are stopped or busy do not matter. "
     "Whole seconds count.",
     parse_seconds<&Config::Limits::silent_host>, print_seconds<&Config::Limits::silent_host>},
    {"GUOZHUANG_LOG_LEVEL", "", "debug, info, warning, error or off", ConfigScope::may_differ,
     "The least severe messages that are logged; `info` adds a line about the job when it begins, "
     "and one about "
     "gradients that could be shared (training.md).",
     parse_word<&Config::log_level, log_level_names>,
     print_word<&Config::log_level, log_level_names>},
    {"GUOZHUANG_NCCL", "", "auto, off, or a file, with a slash in it", ConfigScope::may_differ,
     "The NCCL that moves CUDA tensors between GPUs: `auto` loads libnccl.so.2, `off` none. One "
     "that the program has loaded itself is taken in any case but `off`.",
     parse_nccl, print_nccl},
    {"GUOZHUANG_ON_DEATH", "", "exit or report", ConfigScope::may_differ,
     "The end of the process when a rank has died, or a limit has ended the job, after every "
     "operation has "
     "failed with that cause: `exit` "
     "ends this process within half a second, or when an ExitHold lets it, with that error as its "
     "last words; `report` leaves it to the "
     "program.",
     parse_word<&Config::exit_on_death, on_death_words>,
     print_word<&Config::exit_on_death, on_death_words>},
    {"GUOZHUANG_REPRODUCIBLE", "", "0 or 1", ConfigScope::rank0_wins,
     "1: every sum is taken in the same order whatever the algorithm, size and placement "
     "(algorithms.md).",
     parse_word<&Config::reproducible, switch_words>,
     print_word<&Config::reproducible, switch_words>},
    {"GUOZHUANG_SEGMENT_BYTES", "bytes", "1K to 64M", ConfigScope::rank0_wins,
     "Largest piece in flight of the algorithms that pipeline; a few of them should fit the L2 "
     "cache.",
     parse_size<&Config::segment_bytes, 1024, gib / 16>, print_number<&Config::segment_bytes>},
    {"GUOZHUANG_SHARED_MEMORY", "", "0 or 1", ConfigScope::may_differ,
     "Whether ranks of one host share memory, in which they agree, wake each other and stage their "
     "data; without it they look for messages "
     "at intervals, and all data travels as messages. If only some ranks of a host want it, it has "
     "none, and says so.",
     parse_word<&Config::shared_memory, switch_words>,
     print_word<&Config::shared_memory, switch_words>},
    {"GUOZHUANG_SMALL_BYTES", "bytes", "0 to 1G", ConfigScope::rank0_wins,
     "Where data travels as messages, bundles up to this size are reduced by algorithms of few "
     "steps. Between hosts, tensors up to this size are added up in tree order, larger ones "
     "around rings; and no larger one travels with its request.",
     parse_size<&Config::small_bytes, 0, gib>, print_number<&Config::small_bytes>},
    {"GUOZHUANG_SPIN_US", "us", "auto, or 0 to 1000000", ConfigScope::may_differ,
     "How long a wait spins before it sleeps; `auto`: 50 where every rank of the host has a core "
     "of its own, less otherwise.",
     parse_optional<&Config::spin_us, automatic>, print_optional<&Config::spin_us, automatic>},
    {"GUOZHUANG_STALL_ERROR_S", "s", "off, or 0.001 to 1000000", ConfigScope::rank0_wins,
     "An operation that has waited so long for ranks which have not submitted it ends the job: "
     "everything fails on all ranks with a report "
     "that names them. Options::timeout is the same for one operation. The start of a session is "
     "limited by it, too, to 30 s at least, and so is NCCL when it connects (else to 120 s).",
     parse_seconds<&Config::Limits::stall_error>, print_seconds<&Config::Limits::stall_error>},
    {"GUOZHUANG_STALL_WARN_S", "s", "off, or 0.001 to 1000000", ConfigScope::rank0_wins,
     "After how long, and then whenever it has waited twice as long, a warning names an operation "
     "that does not come forward, who waits "
     "for whom, and what those are doing.",
     parse_seconds<&Config::Limits::stall_warn>, print_seconds<&Config::Limits::stall_warn>},
    {"GUOZHUANG_TIMELINE", "", "off, or a directory, with a slash in it", ConfigScope::may_differ,
     "Where each rank records its timeline (timeline.md): `./traces` gets a `rank2.json` from rank "
     "2. The directory is made if "
     "need be; one that has such a file already is refused, with a warning.",
     parse_path<&Config::timeline>, print_path<&Config::timeline>},
};

void take(Config& config, const ConfigVariable& row, std::string_view value) {
    if (row.parse(config, value)) return;
    throw Error(ErrorCode::configuration,
                fmt::format("{}='{}' is not acceptable: it must be {}{}{}{}", row.name,
                            for_display(value), row.range, row.unit.empty() ? "" : " ", row.unit,
                            row.unit == "bytes" ? ", with a suffix K, M or G if need be" : ""));
}

}  // namespace

std::vector<std::string> unknown_variables() {
    std::vector<std::string> warnings;
    for (const auto& name : environment_names(prefix)) {
        if (std::any_of(std::begin(table), std::end(table),
                        [&](const ConfigVariable& row) { return row.name == name; }))
            continue;
        const auto nearest =
            std::min_element(std::begin(table), std::end(table),
                             [&](const ConfigVariable& a, const ConfigVariable& b) {
                                 return edit_distance(a.name, name) < edit_distance(b.name, name);
                             });
        constexpr std::size_t far = 4;  // more is another name, not a slip
        const auto hint = edit_distance(nearest->name, name) < far
                              ? fmt::format("; did you mean {}?", nearest->name)
                              : "";
        warnings.push_back(
            fmt::format("{} is not a variable of this version and has no effect{}", name, hint));
    }
    return warnings;
}

std::optional<std::string> environment(const std::string& name) {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
}

std::vector<std::string> environment_names(std::string_view start) {
    std::vector<std::string> names;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view assignment(*entry);
        if (assignment.starts_with(start))
            names.emplace_back(assignment.substr(0, assignment.find('=')));
    }
    return names;
}

std::optional<std::size_t> parse_bytes(std::string_view text) {
    constexpr std::string_view suffixes = "kKmMgG";
    const auto suffix = text.empty() ? suffixes.npos : suffixes.find(text.back());
    const auto shift = suffix == suffixes.npos ? 0 : 10 * (suffix / 2 + 1);
    if (shift > 0) text.remove_suffix(1);
    const auto number = parse_number<std::size_t>(text);
    if (!number || *number > std::numeric_limits<std::size_t>::max() >> shift) return std::nullopt;
    return *number << shift;
}

std::string for_display(std::string_view value) {
    constexpr std::size_t most = 100;
    std::string text(value.substr(0, most));
    std::ranges::replace_if(
        text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, '?');
    return value.size() > most ? text + "..." : text;
}

std::span<const ConfigVariable> config_table() {
    return table;
}

Config read_config() {
    Config config;
    for (const auto& row : table)
        if (const auto value = environment(std::string(row.name)); value && !value->empty())
            take(config, row, *value);
    if (selection::contradictory(config.algorithm, config.reproducible))
        throw Error(ErrorCode::configuration,
                    fmt::format("GUOZHUANG_REPRODUCIBLE=1 and GUOZHUANG_ALGORITHM={} contradict "
                                "each other: a ring adds in another order than every other "
                                "algorithm; leave one of them out",
                                name_of(config.algorithm)));
    set_log_level(config.log_level);
    return config;
}

}  // namespace guozhuang::base
