// shrinking SCENE: ranks die or leave, and the others go on without them. Ends with 0 if all was as
// it must be, with 3 if something was not.
//
//     steps STEP:RANK,...   those ranks are killed before those steps (rank: as numbered then)
//     slow                  as steps, until the ranks are killed from outside, for 200 steps
//     old                   what was made before is refused, and can be made anew
//     leave                 rank 1 leaves by an error, and its process goes on for a while
//     late                  the others notice the death only after a second
//     stopped               rank 1 is stopped when rank 2 dies
//     nobody                all call it, and none has died
//     cut                   some cannot be reached: those that go on end with 0, the rest with 4
//     unwanted              a session that was made without time_to_shrink
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <guozhuang/guozhuang.hpp>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gz = guozhuang;
using namespace std::chrono_literals;

namespace {

struct Wrong : std::runtime_error {
    using std::runtime_error::runtime_error;
};

void check(bool holds, const std::string& what) {
    if (!holds) throw Wrong("wrong: " + what);
}

/// Runs it, and returns the error that it must end with.
gz::Error error_of(const std::function<void()>& action, gz::ErrorCode code) {
    try {
        action();
    } catch (const gz::Error& error) {
        check(error.code() == code, std::string("another error: ") + error.what());
        return error;
    }
    throw Wrong("wrong: no error");
}

void check_sum(const gz::Session& session) {
    int sum = 1 + session.rank();
    gz::allreduce(sum);
    check(sum == session.size() * (session.size() + 1) / 2, "a sum");
}

/// Returns when all have come so far. Elsewhere it may still run then, and fail with what this rank
/// does next.
void meet() {
    try {
        int sum = 1;
        gz::allreduce(sum);
    } catch (const gz::Error&) {  // NOLINT(bugprone-empty-catch): see above
    }
}

/// Trains on samples that it counts; a step is committed as soon as it has ended.
class Training {
public:
    Training(gz::Session& session, int steps, std::multimap<int, int> deaths)
        : session_(session), steps_(steps), deaths_(std::move(deaths)) {}

    void run() {
        while (true) {
            try {
                restore();
                return train();
            } catch (const gz::RankDied& death) {
                die_if_due(step_ + 1);  // it has heard of another one before its own step
                const int before = session_.rank();
                session_.shrink();
                std::printf("rank %d is rank %d of %d after: %s\n", before, session_.rank(),
                            session_.size(), death.what());
            }
        }
    }

private:
    static constexpr std::size_t samples = 1001, batch = 3;

    void die_if_due(int step) const {
        const auto [first, last] = deaths_.equal_range(step);
        const auto is_own = [&](const auto& death) { return death.second == session_.rank(); };
        if (std::any_of(first, last, is_own)) std::raise(SIGKILL);
    }

    void restore() {
        int newest = step_;
        gz::allreduce(newest, {.op = gz::ReduceOp::max});
        int root = step_ == newest ? session_.rank() : session_.size();
        gz::allreduce(root, {.op = gz::ReduceOp::min});
        auto used = used_;
        auto done = done_;
        gz::broadcast(used, root);
        gz::broadcast(done, root);
        used_ = used;
        done_ = done;
        step_ = newest;
        deaths_.erase(deaths_.begin(), deaths_.upper_bound(step_));
    }

    void train() {
        gz::DistributedSampler sampler(samples, {.tail = gz::Tail::uneven});
        sampler.set_epoch(0, done_);
        const auto ranks = static_cast<std::size_t>(session_.size());
        for (std::size_t next = 0; done_ < samples || step_ < steps_; next += batch) {
            die_if_due(step_);
            std::vector<int> used(samples);
            for (std::size_t i = next; i < std::min(next + batch, sampler.size()); ++i)
                ++used[sampler.indices()[i]];
            gz::allreduce(used);
            for (std::size_t i = 0; i < samples; ++i) used_[i] += used[i];
            done_ = std::min(done_ + batch * ranks, samples);
            ++step_;
            if (deaths_.empty()) std::this_thread::sleep_for(5ms);  // time to be killed
        }
        check(std::ranges::count(used_, 1) == std::ptrdiff_t{samples}, "each sample once");
    }

    gz::Session& session_;
    const int steps_;
    std::multimap<int, int> deaths_;  ///< the rank to die by the step
    std::vector<int> used_ = std::vector<int>(samples);
    std::size_t done_ = 0;
    int step_ = 0;
};

std::multimap<int, int> deaths_in(const std::string& text) {
    std::multimap<int, int> deaths;
    std::istringstream in(text);
    for (std::string death; std::getline(in, death, ',');)
        deaths.emplace(std::stoi(death), std::stoi(death.substr(death.find(':') + 1)));
    return deaths;
}

/// Makes allreduces until one fails.
void await_error(gz::ErrorCode code) {
    error_of(
        [] {
            int sum = 1;
            while (true) gz::allreduce(sum);
        },
        code);
}

void use_old_things(gz::Session& session) {
    std::vector<float> values(1000, 1.0F);
    const std::vector<gz::Parameter> parameters{{"values", values, values}};
    struct {
        void step() {}
    } nothing;
    const auto set = gz::ProcessSet::create({0, 2});
    const bool is_member = session.rank() == 0 || session.rank() == 2;
    gz::DistributedOptimizer optimizer(nothing, parameters);
    optimizer.step();
    meet();
    if (session.rank() == 1) std::raise(SIGKILL);
    await_error(gz::ErrorCode::rank_died);
    session.shrink();
    const auto refuses = [](const std::function<void()>& action) {
        const auto error = error_of(action, gz::ErrorCode::not_initialised);
        check(std::string(error.what()).find("before it shrank") != std::string::npos,
              error.what());
    };
    refuses([&] { optimizer.step(); });
    if (is_member) refuses([&] { gz::allreduce(values, {.process_set = set}); });
    gz::DistributedOptimizer anew(nothing, parameters);
    anew.step();
    const auto all = gz::ProcessSet::create({0, 1});
    if (session.rank() < 2) gz::allreduce(values, {.process_set = all});
    check_sum(session);
}

void after_leave(gz::Session& session) {
    if (session.rank() == 1) {
        session.leave("it has had enough");
        std::this_thread::sleep_for(3s);
        std::exit(0);
    }
    await_error(gz::ErrorCode::departed);
    session.shrink();
}

void after_a_while(gz::Session& session) {
    if (session.rank() == 1) std::raise(SIGKILL);
    std::this_thread::sleep_for(session.rank() == 0 ? 1500ms : 100ms);
    await_error(gz::ErrorCode::rank_died);
    session.shrink();
}

void beside_a_stopped_rank(gz::Session& session) {
    std::this_thread::sleep_for(session.rank() == 1 ? 200ms : 400ms);
    if (session.rank() == 1) std::raise(SIGSTOP);
    if (session.rank() == 2) std::raise(SIGKILL);
    await_error(gz::ErrorCode::rank_died);
    const auto error = error_of([&] { session.shrink(); }, gz::ErrorCode::timeout);
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    std::exit(4);
}

/// Rank 1 does not come, as if it were stuck.
void without_a_lost_rank(gz::Session& session) {
    if (session.rank() == 1) std::this_thread::sleep_for(60s);
    if (session.rank() == 2) std::raise(SIGKILL);
    await_error(gz::ErrorCode::rank_died);
    session.shrink();
}

void together(gz::Session& session) {
    const int size = session.size();
    session.shrink();
    check(session.size() == size, "the size");
}

void cut_off(gz::Session& session) {
    await_error(gz::ErrorCode::rank_died);
    try {
        session.shrink();
    } catch (const gz::Error& error) {
        check(error.code() == gz::ErrorCode::unavailable, error.what());
        std::printf("%s\n", error.what());
        std::fflush(stdout);
        std::_Exit(4);
    }
}

void unwanted(gz::Session& session) {
    const auto error = error_of([&] { session.shrink(); }, gz::ErrorCode::invalid_argument);
    std::printf("%s\n", error.what());
}

void run(int argc, char** argv) {
    const std::string scene = argc > 1 ? argv[1] : "", detail = argc > 2 ? argv[2] : "";
    const bool waits = scene == "stopped" || scene == "lost";
    gz::SessionOptions options{.time_to_shrink = waits ? 2s : 30s};
    if (scene == "unwanted") options = {};
    gz::Session session(&argc, &argv, options);
    const std::map<std::string, std::function<void(gz::Session&)>> scenes{
        {"steps", [&](auto& each) { Training(each, 0, deaths_in(detail)).run(); }},
        {"slow", [](auto& each) { Training(each, 200, {}).run(); }},
        {"old", use_old_things},
        {"leave", after_leave},
        {"late", after_a_while},
        {"stopped", beside_a_stopped_rank},
        {"lost", without_a_lost_rank},
        {"nobody", together},
        {"cut", cut_off},
        {"unwanted", unwanted},
    };
    check_sum(session);
    meet();
    if (scene == "slow" || scene == "cut")
        std::printf("rank %d has pid %d\n", session.rank(), getpid());
    std::fflush(stdout);
    scenes.at(scene)(session);
    check(session.rank() == gz::rank() && session.size() == gz::size(), "the default session");
    check_sum(session);
    std::printf("rank %d of %d is through\n", session.rank(), session.size());
    session.close();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run(argc, argv);
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 3;
    }
}
