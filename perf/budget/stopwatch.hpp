#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "statistics.hpp"

namespace guozhuang::perf {

/// The stations of docs/way_of_a_gradient.md that an operation passes on one rank; then the
/// whole operation through the public interface, and what of that is in no station; and a blocking
/// call, which most ranks make at the same time, so that it passes no station.
enum class Station : std::size_t {
    request,    ///< api: checks, description
    queue,      ///< SubmissionQueue: submit, take
    negotiate,  ///< ControlPlane, Negotiator: submission, report, log entry
    message,    ///< ControlChannel: one control message sent, one received
    resolve,    ///< ControlPlane: the entry's requests
    bundle,     ///< Executor, up to the backend
    algorithm,  ///< HostBackend
    complete,   ///< SubmissionQueue, Pending, Handle; what is freed at the end
    whole,
    rest,
    eager
};
inline constexpr std::array<std::string_view, 11> station_names{
    "request",   "queue",    "negotiate", "message", "resolve", "bundle",
    "algorithm", "complete", "whole",     "rest",    "eager"};

struct Cost {
    double ns = 0, allocations = 0;
};

/// The costs of an operation, by station.
class Costs {
public:
    Cost& operator[](Station station) { return costs_[static_cast<std::size_t>(station)]; }
    std::size_t size() const { return costs_.size(); }

private:
    std::array<Cost, station_names.size()> costs_;
};

/// Times one thread from station to station, and counts what it allocates there (operator new).
class Stopwatch {
public:
    /// Measures how long it takes to read the clock, which laps leave out. Throws std::logic_error
    /// if an allocation is not counted.
    Stopwatch();

    /// Begins a lap.
    void start();
    /// Ends a lap, charges it to the station, and begins the next.
    void lap(Station station);
    /// The costs of all laps since the last call.
    Costs take();

private:
    double reading_ns_ = 0;
    Costs costs_;
    std::size_t allocations_at_start_ = 0;
    Clock::time_point start_;
};

}  // namespace guozhuang::perf
