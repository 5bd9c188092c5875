#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <guozhuang/async_averager.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/plan.hpp>
#include <new>
#include <utility>

#include "training/refuse.hpp"
#include "training/values.hpp"

namespace guozhuang {

struct AsyncAverager::State {
    State(std::span<const Parameter> parameters, const AsyncAveragerOptions& chosen)
        : options(chosen),
          values(checked(parameters)),
          snapshot(values),
          average(values),
          plan(bundles(), {.name = options.name,
                           .kind = "asynchronous averages",
                           .session = options.session,
                           .process_set = options.process_set}) {}
    std::string label() const { return label_of("AsyncAverager", options.name); }
    ProcessSet ranks() const { return ranks_of(options.session, options.process_set); }
    /// The average, and in a bundle of its own how many of the ranks have finished.
    std::vector<std::vector<NamedTensor>> bundles() {
        auto all = bundles_of(average.tensors());
        all.push_back({{"finished ranks", finished}});
        return all;
    }
    std::vector<NamedTensor> checked(std::span<const Parameter> parameters) const;
    void begin(bool is_finished);
    template <class Wait>
    bool has_arrived(const Wait& wait);
    void wait() {
        has_arrived([this] {
            plan.wait();
            return true;
        });
    }
    void add();

    AsyncAveragerOptions options;
    std::vector<NamedTensor> values;
    Copies snapshot;     ///< the values when the average began
    Copies average;      ///< the snapshot, then its average over the ranks
    float finished = 0;  ///< 1 if this rank has no more steps; then the mean of that over the ranks
    bool is_pending = false;
    int staleness = 0;  ///< steps since the average began
    int stalest = 0;
    std::uint64_t averages = 0, late_steps = 0;
    Plan plan;  ///< last: its destructor detaches it from the memory above
};

std::vector<NamedTensor> AsyncAverager::State::checked(
    std::span<const Parameter> parameters) const {
    if (options.max_staleness < 1)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{}: max_staleness is {}; it must be 1 at least", label(),
                                options.max_staleness),
                    {.operation = "step"});
    return values_of(parameters, label());
}

void AsyncAverager::State::begin(bool is_finished) try {
    copy(values, snapshot.tensors());
    copy(values, average.tensors());
    finished = is_finished ? 1 : 0;
    staleness = 0;
    for (std::size_t bundle = 0; bundle < plan.size(); ++bundle) plan.ready(bundle);
    is_pending = true;
} catch (const std::bad_alloc&) {  // the other ranks would wait for this one
    ranks().end_job_without_memory(label());
}

/// Whether `wait` has seen the end of the average. Nothing is pending after an error, either.
template <class Wait>
bool AsyncAverager::State::has_arrived(const Wait& wait) {
    try {
        is_pending = !wait();
    } catch (...) {
        is_pending = false;
        throw;
    }
    return !is_pending;
}

void AsyncAverager::State::add() {
    for (std::size_t i = 0; i < values.size(); ++i)
        for_each_element(
            []<class T>(T& value, T mean, T before) {
                value = static_cast<T>(value + (static_cast<double>(mean) - before));
            },
            values[i].tensor, average.tensors()[i].tensor, snapshot.tensors()[i].tensor);
    ++averages;
    stalest = std::max(stalest, staleness);
}

AsyncAverager::AsyncAverager(std::vector<Parameter> parameters, const AsyncAveragerOptions& options)
    : state_(std::make_unique<State>(parameters, options)) {}
AsyncAverager::~AsyncAverager() = default;
AsyncAverager::AsyncAverager(AsyncAverager&&) noexcept = default;

bool AsyncAverager::step() {
    auto& state = *state_;
    const bool is_first = !state.is_pending;
    if (!is_first) {
        ++state.staleness;
        if (!state.has_arrived([&] { return state.plan.wait_for(std::chrono::microseconds(0)); })) {
            if (state.staleness < state.options.max_staleness) return false;
            ++state.late_steps;
            state.wait();
        }
        state.add();
    }
    state.begin(false);
    return !is_first;
}

/// All ranks see the same mean of `finished` in the same average, so they stop together.
void AsyncAverager::synchronize() {
    auto& state = *state_;
    if (state.is_pending) {
        state.wait();
        state.add();
    }
    const float all = 1 - 0.5F / static_cast<float>(state.ranks().size());
    do {
        state.begin(true);
        state.wait();
        copy(state.average.tensors(), state.values);
        ++state.averages;
    } while (state.finished < all);
}

std::uint64_t AsyncAverager::averages() const noexcept {
    return state_->averages;
}

std::uint64_t AsyncAverager::late_steps() const noexcept {
    return state_->late_steps;
}

int AsyncAverager::stalest() const noexcept {
    return state_->stalest;
}

}  // namespace guozhuang
