#include "json_lines.hpp"

#include <unistd.h>

#include <array>
#include <guozhuang/version.hpp>
#include <stdexcept>
#include <string_view>

namespace guozhuang::perf {

JsonLines::JsonLines(const MpiJob& job, const std::filesystem::path& path) {
    job.all_or_none([&] {
        if (path.empty() || !job.first()) return;
        file_.open(path, std::ios::app);
        if (!file_) throw std::runtime_error("cannot append to " + path.string());
    });
}

void JsonLines::write(const Json& line) {
    if (file_.is_open()) file_ << line.dump() << std::endl;
}

namespace {

std::string host_name() {
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    return name.data();
}

/// Environment variables for the library, MPI and malloc.
Json relevant_environment() {
    Json variables = Json::object();
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view variable = *entry;
        const auto equals = variable.find('=');
        for (const std::string_view prefix :
             {"GUOZHUANG_", "OMPI_MCA_coll", "OMPI_MCA_btl", "MALLOC_"})
            if (variable.starts_with(prefix) && equals != variable.npos)
                variables[std::string(variable.substr(0, equals))] = variable.substr(equals + 1);
    }
    return variables;
}

}  // namespace

Json run_line(const MpiJob& job, const std::string& arguments) {
    return {{"kind", "run"},
            {"version", version()},
            {"mpi", MpiJob::library()},
            {"host", host_name()},
            {"ranks", job.size()},
            {"flag_round_trip_us", job.flag_round_trip_us()},
            {"settings", {{"arguments", arguments}, {"environment", relevant_environment()}}}};
}

}  // namespace guozhuang::perf
