#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iomanip>
#include <string>

#include "options.hpp"

namespace transformer {

/// Shows a line for each tenth of the steps, and text, and logs the losses.
class Report {
public:
    /// Shows nothing from here on but what went wrong: the others may have no part in it.
    void mute() noexcept { muted_ = true; }

    /// `tokens`: of a step, of all ranks together.
    void begin(const Options& options, std::size_t tokens) {
        steps_ = options.steps;
        tokens_ = tokens;
        if (muted_ || options.log_losses.empty()) return;
        log_.open(options.log_losses);
        if (!log_) throw std::runtime_error("cannot write " + options.log_losses.string());
        log_ << std::setprecision(9);
    }
    void step(double loss) {
        log_ << loss << '\n';
        sum_ += loss;
        ++since_;
        ++done_;
        if (done_ * 10 / steps_ == (done_ - 1) * 10 / steps_) return;
        const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
        say("step %zu/%zu  loss %.4f  %.0f tokens/s\n", done_, steps_,
            sum_ / static_cast<double>(since_),
            static_cast<double>(done_ * tokens_) / elapsed.count());
        sum_ = 0;
        since_ = 0;
    }
    template <class... Values>
    void say(const char* format, Values... values) const {
        if (muted_) return;
        std::printf(format, values...);
        std::fflush(stdout);
    }
    /// The exit code of the program.
    int failed(const std::exception& error) const {
        const auto* usage = dynamic_cast<const Usage*>(&error);
        const int code = usage != nullptr ? usage->code : 1;
        std::fprintf(code == 0 ? stdout : stderr, "%s\n", error.what());
        return code;
    }

private:
    bool muted_ = false;
    std::size_t steps_ = 0, tokens_ = 0, done_ = 0, since_ = 0;
    double sum_ = 0;
    std::ofstream log_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace transformer
