#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/local_sgd.hpp>
#include <guozhuang/plan.hpp>
#include <new>
#include <optional>
#include <utility>

#include "training/refuse.hpp"
#include "training/values.hpp"

namespace guozhuang {
namespace {

std::string label(const LocalSgdOptions& options) {
    return label_of("LocalSgd", options.name);
}

/// The values of the parameters, once the options are checked.
std::vector<NamedTensor> checked(std::span<const Parameter> parameters,
                                 const LocalSgdOptions& options) {
    const auto fail = [&](const std::string& problem) {
        throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", label(options), problem),
                    {.operation = "step"});
    };
    if (options.steps < 1) fail(fmt::format("steps is {}; it must be 1 at least", options.steps));
    if (!(options.outer_rate > 0) || !std::isfinite(options.outer_rate))
        fail(fmt::format("outer_rate is {}; it must be above 0", options.outer_rate));
    if (!(options.outer_momentum >= 0 && options.outer_momentum < 1))
        fail(fmt::format("outer_momentum is {}; it must be 0 at least and below 1",
                         options.outer_momentum));
    if (options.nesterov && options.outer_momentum == 0)
        fail("nesterov needs an outer_momentum above 0");
    return values_of(parameters, label(options));
}

}  // namespace

struct LocalSgd::State {
    State(std::span<const Parameter> parameters, const LocalSgdOptions& chosen)
        : options(chosen),
          values(checked(parameters, chosen)),
          plan(bundles_of(values), {.name = options.name,
                                    .kind = "local SGD",
                                    .session = options.session,
                                    .process_set = options.process_set}) {
        if (options.outer_rate == 1 && options.outer_momentum == 0) return;
        last.emplace(values);
        if (options.outer_momentum == 0) return;
        momentum.emplace(values);
        for (const auto& [name, tensor] : momentum->tensors()) zero(tensor);
    }
    void agree();
    void step_outside();
    void average();

    LocalSgdOptions options;
    std::vector<NamedTensor> values;
    std::optional<Copies> last;           ///< x
    std::optional<Copies> momentum;       ///< u
    std::int64_t steps = 0;               ///< since the last average
    std::optional<std::uint64_t> agreed;  ///< the number of joins when the ranks last agreed
    Plan plan;
};

/// Makes the next average compare what the outer step needs to be the same.
void LocalSgd::State::agree() {
    std::vector<Agreement> agreements{
        {.what = "values of steps", .value = fmt::format("{}", options.steps)},
        {.what = "values of outer_rate", .value = fmt::format("{}", options.outer_rate)},
        {.what = "values of outer_momentum", .value = fmt::format("{}", options.outer_momentum)},
        {.what = "values of nesterov", .value = options.nesterov ? "true" : "false"}};
    if (last)
        for (const auto& [name, tensor] : last->tensors())
            agreements.push_back({name,
                                  "values at the last average (broadcast_parameters before the "
                                  "constructor makes them the same, after a join "
                                  "broadcast_optimizer_state)",
                                  fmt::format("{:016x}", hash(tensor))});
    plan.agree(std::move(agreements));
}

/// The first bundle carries the agreements, so the others wait for it if there are new ones.
void LocalSgd::State::average() try {
    const auto joins = plan.joins();
    const bool agrees = agreed != joins;
    if (agrees) agree();
    for (std::size_t bundle = 0; bundle < plan.size(); ++bundle) {
        plan.ready(bundle, {.waits_next = true});
        if (agrees && bundle == 0) plan.wait();
    }
    plan.wait();
    agreed = joins;
    steps = 0;
    if (last) step_outside();
} catch (const std::bad_alloc&) {  // the other ranks would wait for this one
    ranks_of(options.session, options.process_set).end_job_without_memory(label(options));
}

void LocalSgd::State::step_outside() {
    const double rate = options.outer_rate, decay = options.outer_momentum;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto& value = values[i].tensor;
        const auto& before = last->tensors()[i].tensor;
        if (!momentum) {
            for_each_element(
                [&]<class T>(T& x, T& old) {
                    old = x = static_cast<T>(old - rate * (static_cast<double>(old) - x));
                },
                value, before);
            continue;
        }
        for_each_element(
            [&]<class T>(T& x, T& old, T& u) {
                const double difference = static_cast<double>(old) - x;
                const double sum = decay * u + difference;
                const double change = options.nesterov ? difference + decay * sum : sum;
                u = static_cast<T>(sum);
                old = x = static_cast<T>(old - rate * change);
            },
            value, before, momentum->tensors()[i].tensor);
    }
}

LocalSgd::LocalSgd(std::vector<Parameter> parameters, const LocalSgdOptions& options)
    : state_(std::make_unique<State>(parameters, options)) {}
LocalSgd::~LocalSgd() = default;
LocalSgd::LocalSgd(LocalSgd&&) noexcept = default;

bool LocalSgd::step() {
    if (++state_->steps < state_->options.steps) return false;
    state_->average();
    return true;
}

void LocalSgd::synchronize() {
    state_->average();
}

std::vector<NamedTensor> LocalSgd::state() const {
    std::vector<NamedTensor> all{{"steps", state_->steps}};
    if (state_->last)
        for (const auto& [name, tensor] : state_->last->tensors())
            all.push_back({"last/" + name, tensor});
    if (state_->momentum)
        for (const auto& [name, tensor] : state_->momentum->tensors())
            all.push_back({"momentum/" + name, tensor});
    return all;
}

}  // namespace guozhuang
