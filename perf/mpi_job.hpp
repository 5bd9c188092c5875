#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace guozhuang::perf {

/// What cannot be measured as it was asked for: thrown on all ranks alike, so it is for the first
/// to say and for none to abort.
class Refusal : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The ranks of a measurement as plain MPI sees them: what a measurement needs beside the library
/// that it measures. MPI is initialised for the life of an MpiJob, before any Session, which then
/// works in an MPI that its user owns. Every member but rank(), size() and abort() is collective,
/// and the results are the same on all ranks. The main thread only.
class MpiJob {
public:
    MpiJob(int* argc, char*** argv);
    ~MpiJob();
    MpiJob(const MpiJob&) = delete;
    MpiJob& operator=(const MpiJob&) = delete;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    bool first() const noexcept { return rank_ == 0; }

    /// Lets the ranks start together: before each timed operation, whatever its series.
    void align() const;
    double max(double value) const;
    /// Position by position: the slowest rank of each iteration.
    std::vector<double> max(std::vector<double> values) const;
    std::uint64_t sum(std::uint64_t value) const;
    /// Rank 0's value: for what is decided from a measured time.
    std::size_t of_first(std::size_t value) const;
    /// Every rank's text, in rank order, on rank 0; empty elsewhere.
    std::vector<std::string> gather(const std::string& text) const;

    /// For what must succeed on all ranks before anything is measured. If the step throws on any,
    /// all throw a Refusal with the text that the first of those gave.
    void all_or_none(const std::function<void()>& step) const;

    /// Microseconds that a word takes from the core of rank 0 to that of rank 1 and back through
    /// memory that both have mapped (the median of 50 times 100 round trips): what the figures of a
    /// run are to be seen beside. 0 where the two share no memory, or a core.
    double flag_round_trip_us() const;

    /// Ends all ranks: the only way out when one has failed and the others wait for it.
    [[noreturn]] void abort() const;

    /// "Open MPI v4.1.4", "MPICH Version:4.0.2" ...
    static std::string library();

private:
    int rank_ = 0;
    int size_ = 1;
};

/// The count as the int that MPI-3 takes; throws std::invalid_argument where it does not fit.
int mpi_count(std::size_t count);

}  // namespace guozhuang::perf
