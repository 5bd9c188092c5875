// A job under way: the launcher, and what the processes that watch the ranks report.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gzrun_launcher.hpp"
#include "gzrun_link.hpp"

namespace gzrun {

/// Ends what does not end by itself: SIGTERM when the time is up, SIGKILL later, then nothing.
class Countdown {
public:
    static constexpr int nothing_helps = -1;

    void begin(std::chrono::seconds time);  ///< or bring forward, until SIGTERM has been sent
    /// The signal to send now, 0, or nothing_helps.
    int take();
    unsigned milliseconds_left() const;  ///< for poll(): -1 as an int if it has not begun

private:
    std::optional<std::chrono::steady_clock::time_point> due_;
    int next_ = SIGTERM;
};

class Job {
public:
    /// Opens the port for the processes that watch the ranks.
    explicit Job(const Options& options);

    /// The argument by which watch_rank() finds this job.
    std::string contact() const;

    /// Starts the launcher and returns gzrun's exit code when the job is over.
    int run(const std::vector<std::string>& launcher_command);

private:
    struct Rank {
        int link = -1;
        bool has_started = false;
        bool has_ended = false;
    };

    void await_events(int signals);
    void accept_rank();
    void receive(Rank& rank);
    void record_end(Rank& rank, const Message& message);
    void pass_signal(int signals);
    void launcher_ended();
    void signal_ranks(int signal);
    void end_ranks(int signal);
    void release();
    bool all_have_ended() const;
    bool too_many_failed() const;
    int verdict() const;

    const Options& options_;
    std::uint64_t token_;
    int listener_ = -1;
    std::uint16_t port_ = 0;
    Process launcher_;
    std::optional<int> launcher_code_;
    bool launcher_was_signalled_ = false;
    std::vector<Rank> ranks_;
    Rank* first_failure_ = nullptr;
    int code_ = 0;  ///< of the first failure
    int failures_ = 0;
    Countdown ranks_countdown_, launcher_countdown_, blame_countdown_;
};

}  // namespace gzrun
