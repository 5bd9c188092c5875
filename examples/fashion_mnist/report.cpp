#include "report.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <iomanip>
#include <numeric>
#include <string>

namespace fashion {
namespace {

double mean(const std::vector<double>& values) {
    return values.empty() ? 0
                          : std::accumulate(values.begin(), values.end(), 0.0) /
                                static_cast<double>(values.size());
}

/// Launchers such as mpirun give their processes a pseudo-terminal even where their own output goes
/// to a file; but then it has no width.
bool on_terminal() {
    winsize window{};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
}

}  // namespace

std::size_t Report::share_of(std::size_t batch, int ranks) const {
    const auto size = static_cast<std::size_t>(ranks);
    const auto share = batch / size;
    if (share == 0)
        throw Usage("--batch " + std::to_string(batch) + " is less than a sample for each of " +
                        std::to_string(ranks) + " ranks",
                    2);
    if (share * size != batch && !muted_)
        std::printf("--batch %zu: %d ranks take %zu samples each, %zu in a step\n", batch, ranks,
                    share, share * size);
    return share;
}

void Report::begin(const Options& options, std::size_t steps_per_epoch) {
    if (muted_) return;
    terminal_ = on_terminal();
    epochs_ = options.epochs;
    steps_ = steps_per_epoch;
    start_ = std::chrono::steady_clock::now();
    if (options.log_losses.empty()) return;
    log_.open(options.log_losses);
    if (!log_) throw std::runtime_error("cannot write " + options.log_losses.string());
    log_ << std::setprecision(9);
}

std::size_t Report::part_of(std::size_t done) const {
    return done * (terminal_ ? 200 : 4) / steps_;
}

bool Report::is_due(std::size_t done) const {
    return !muted_ && part_of(done) != shown_;
}

void Report::step(const std::vector<double>& losses) {
    if (!is_due(losses.size())) return;
    shown_ = part_of(losses.size());
    draw(static_cast<double>(losses.size()) / static_cast<double>(steps_), mean(losses));
}

void Report::draw(double fraction, double loss) const {
    const int percent = static_cast<int>(100 * fraction);
    if (terminal_) {
        const std::string done(static_cast<std::size_t>(30 * fraction), '#');
        std::printf("\repoch %zu/%zu  [%-30s] %3d %%  loss %.4f\033[K", epoch_, epochs_,
                    done.c_str(), percent, loss);
    } else if (percent < 100) {
        std::printf("epoch %zu/%zu  %3d %%  loss %.4f\n", epoch_, epochs_, percent, loss);
    }
    std::fflush(stdout);
}

void Report::epoch_done(const std::vector<double>& losses, double accuracy) {
    if (muted_) return;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    std::printf("%sepoch %zu/%zu  loss %.4f  test accuracy %.4f  (%.1f s)\n",
                terminal_ ? "\r\033[K" : "", epoch_, epochs_, mean(losses), accuracy,
                elapsed.count());
    std::fflush(stdout);
    for (const double loss : losses) log_ << loss << '\n';
    ++epoch_;
    shown_ = 0;
}

int Report::failed(const std::exception& error) {
    const auto* usage = dynamic_cast<const Usage*>(&error);
    const int code = usage != nullptr ? usage->code : 1;
    std::fprintf(code == 0 ? stdout : stderr, "%s%s\n", terminal_ ? "\n" : "", error.what());
    return code;
}

}  // namespace fashion
