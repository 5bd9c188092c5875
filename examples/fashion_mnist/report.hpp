#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <fstream>
#include <vector>

#include "options.hpp"

namespace fashion {

/// Everything that the user sees: a progress bar on a terminal, a line a quarter of an epoch
/// otherwise, a line per epoch, the log of losses, and what went wrong.
class Report {
public:
    /// Shows nothing from here on but what went wrong: the others may have no part in it.
    void mute() noexcept { muted_ = true; }

    /// Returns how many samples of a batch each rank takes. Prints a note if the batch does not
    /// divide by `ranks`. Throws Usage if no sample is left for a rank.
    std::size_t share_of(std::size_t batch, int ranks) const;

    void begin(const Options& options, std::size_t steps_per_epoch);
    /// Whether step() would show anything after so many steps of the epoch.
    bool is_due(std::size_t done) const;
    /// After each step, with the losses of the epoch so far.
    void step(const std::vector<double>& losses);
    void epoch_done(const std::vector<double>& losses, double accuracy);
    /// The exit code of the program.
    int failed(const std::exception& error);

private:
    std::size_t part_of(std::size_t done) const;
    void draw(double fraction, double loss) const;

    bool muted_ = false;
    bool terminal_ = false;
    std::size_t epochs_ = 0;
    std::size_t epoch_ = 1;
    std::size_t steps_ = 0;
    std::size_t shown_ = 0;  ///< parts of the epoch that are on the screen already
    std::ofstream log_;
    std::chrono::steady_clock::time_point start_;
};

}  // namespace fashion
