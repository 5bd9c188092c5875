#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace guozhuang::perf {

class HostRounds;

/// A measurement that cannot be done as asked. Thrown on all ranks alike, so the first rank reports
/// it and none aborts.
class Refusal : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The ranks of a measurement, as plain MPI sees them. MPI is initialised while an MpiJob lives,
/// which is before any Session: so sessions find a running MPI. All functions but rank(), size()
/// and abort() are collective, and return the same on all ranks. For the main thread only.
class MpiJob {
public:
    /// Who may call MPI: any thread, which the library needs between hosts; or the main one alone,
    /// where some MPIs are twice as fast.
    enum class Callers : bool { any, main };

    MpiJob(int* argc, char*** argv, Callers callers = Callers::any);
    ~MpiJob();
    MpiJob(const MpiJob&) = delete;
    MpiJob& operator=(const MpiJob&) = delete;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    bool first() const noexcept { return rank_ == 0; }

    /// Lets the ranks start at the same time. To be called before each timed operation of any
    /// series.
    void align() const;
    /// From now on align() is a barrier of flags in memory that all ranks have mapped, not an MPI
    /// barrier: so operations start alike whichever MPI is measured, and a waiting rank yields
    /// where ranks share cores. Collective. Throws a Refusal if the ranks are not all on one host.
    void align_in_memory();
    double max(double value) const;
    /// The largest over all ranks, index by index: the slowest rank of each iteration.
    std::vector<double> max(std::vector<double> values) const;
    std::uint64_t sum(std::uint64_t value) const;
    double add(double value) const;
    /// Rank 0's value: for decisions that depend on measured times.
    std::size_t of_first(std::size_t value) const;
    /// On rank 0 the texts of all ranks, in rank order; empty on others.
    std::vector<std::string> gather(const std::string& text) const;

    /// Runs a step that must succeed on all ranks before anything is measured. If it throws on any,
    /// all throw a Refusal with the text of the first of these.
    void all_or_none(const std::function<void()>& step) const;

    /// Microseconds that a word takes from rank 0's core to rank 1's and back, through memory that
    /// both have mapped (the median of 50 times 100 round trips). The figures of a run are to be
    /// compared with it. 0 if the two ranks share no memory, or share a core.
    double flag_round_trip_us() const;

    /// Ends all ranks: the only way out if one has failed and the others wait for it.
    [[noreturn]] void abort() const;

    /// "Open MPI v4.1.4", "MPICH Version:4.0.2" ...
    static std::string library();

private:
    int rank_ = 0;
    int size_ = 1;
    std::unique_ptr<HostRounds> rounds_;  ///< null: MPI's barrier
};

/// The count as an int, which MPI-3 takes. Throws std::invalid_argument if it does not fit.
int mpi_count(std::size_t count);

}  // namespace guozhuang::perf
