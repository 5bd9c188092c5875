#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/plan.hpp>
#include <guozhuang/sharded_optimizer.hpp>
#include <iterator>
#include <new>
#include <unordered_map>
#include <utility>

#include "base/error_text.hpp"
#include "training/shard_bundles.hpp"
#include "training/shard_exchange.hpp"
#include "training/shard_record.hpp"
#include "training/values.hpp"

namespace guozhuang {
namespace {

/// Runs one of several acts that must all be tried, and keeps the first exception.
template <class Act>
void attempt(std::exception_ptr& first, const Act& act) {
    try {
        act();
    } catch (const std::bad_alloc&) {
        throw;  // ends the job
    } catch (...) {
        if (!first) first = std::current_exception();
    }
}

std::string first_line(const std::exception_ptr& error) {
    const auto text = base::describe(error);
    return text.substr(0, text.find('\n'));
}

}  // namespace

struct ShardedOptimizer::State {
    State(detail::ShardRule update, std::vector<Parameter> given,
          const ShardedOptimizerOptions& chosen);
    ~State();

    const std::string& own_name() const noexcept { return plan ? plan->name() : options.name; }
    ProcessSet ranks() const { return ranks_of(options.session, options.process_set); }
    /// Runs `act`, which submits several operations. A rank that runs out of memory in the middle
    /// ends the job, because it cannot begin again alone.
    template <class Act>
    auto as_one(const Act& act) {
        try {
            leave_joined_batch();
            return act();
        } catch (const std::bad_alloc&) {
            ranks().end_job_without_memory("ShardedOptimizer");
        }
    }
    std::vector<Agreement> agreements() const;
    void meet();

    bool is_last_pass() const noexcept { return passes + 1 == options.backward_passes_per_step; }
    bool reduces() const noexcept { return options.shard_gradients || is_last_pass(); }
    bool any_marked() const {
        return std::ranges::find(marked, true) != marked.end() ||
               std::ranges::find(accumulated, true) != accumulated.end();
    }
    void start_batch();
    void leave_joined_batch() {
        if (joins != plan->joins()) start_batch();  // as it did on the other ranks
    }
    void start_pass();
    std::size_t find(std::string_view name) const;
    void mark(std::size_t parameter);
    template <class Act>
    void keep_failure(const Act& act);
    void complete_unmarked();
    void send_rest();
    void take_gradients();
    void end_pass();

    void check_rule() const;
    bool step();
    bool finish_pass();
    void discard(std::string_view reason);
    void update(ShardBundle& bundle);
    template <class T>
    void update(ShardBundle& bundle, const std::function<void(const Shard<T>&)>& rule);
    void update_all();

    void require_between_batches(const char* function) const;

    std::vector<Parameter> parameters;
    ShardedOptimizerOptions options;
    detail::ShardRule rule;
    std::vector<ShardBundle> bundles;
    ShardExchange exchange{parameters, options};
    std::unordered_map<std::string_view, std::size_t> index;  ///< of a parameter, by name
    std::vector<std::size_t> bundle_of;                       ///< of each parameter with a gradient

    /// Tells the ranks which of them take part. One of them can keep all from going on.
    std::vector<float> present;
    std::unique_ptr<Plan> plan;

    std::uint64_t steps = 0;
    std::uint64_t joins = 0;  ///< before this batch
    int passes = 0;
    std::vector<bool> marked;       ///< in this pass
    std::vector<bool> accumulated;  ///< in an earlier pass that did not reduce
    std::exception_ptr failure;     ///< of mark()
    bool hooks_used = false, warned = false;
};

ShardedOptimizer::State::State(detail::ShardRule update, std::vector<Parameter> given,
                               const ShardedOptimizerOptions& chosen)
    : parameters(std::move(given)),
      options(chosen),
      rule(std::move(update)),
      bundles(shard_bundles(parameters, options, rule, ranks())),
      bundle_of(parameters.size()),
      present(static_cast<std::size_t>(ranks().size())) {
    for (std::size_t i = 0; i < parameters.size(); ++i) index.emplace(parameters[i].name, i);
    for (std::size_t b = 0; b < bundles.size(); ++b)
        for (const auto parameter : bundles[b].parameters) bundle_of[parameter] = b;
    start_batch();
    std::vector<std::vector<NamedTensor>> votes{{{"the ranks that step", present}}};
    plan =
        std::make_unique<Plan>(std::move(votes), PlanOptions{.name = options.name,
                                                             .kind = "sharded optimizer",
                                                             .op = ReduceOp::sum,
                                                             .session = options.session,
                                                             .process_set = options.process_set});
    as_one([&] {
        // Names of operations must not begin with #, as that of a numbered plan does.
        exchange.name = plan->name().substr(plan->name().starts_with('#') ? 1 : 0);
        plan->agree(agreements());
        meet();
    });
}

/// An exception in backward may free the gradients next, so reductions that read them must end.
/// They do when the other ranks come that far, or leave.
ShardedOptimizer::State::~State() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (const auto& bundle : bundles) {
        if (!bundle.reducing || bundle.is_packed()) continue;
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
            limit - std::chrono::steady_clock::now());
        try {
            if (bundle.reducing.wait_for(left)) continue;
        } catch (const std::exception&) {
            continue;  // it has failed, and reads no more
        }
        log_message(LogLevel::error,
                    "ShardedOptimizer: destroyed while its gradients were being reduced; their "
                    "memory must stay until all ranks have reduced them");
    }
}

std::vector<Agreement> ShardedOptimizer::State::agreements() const {
    std::vector<Agreement> all;
    const auto add = [&](const char* option, const auto& value) {
        all.push_back(
            {.what = fmt::format("values of {}", option), .value = fmt::to_string(value)});
    };
    for (const auto& parameter : parameters) {
        if (!parameter.has_gradient()) continue;
        const auto& [name, value, gradient] = parameter;
        all.push_back(
            {.tensor = name,
             .what = "dtypes and shapes",
             .value = fmt::format("{} [{}]", name_of(value.dtype), fmt::join(value.shape, ", "))});
    }
    add("backward_passes_per_step", options.backward_passes_per_step);
    add("gradient_scale", options.gradient_scale);
    add("bundle_bytes", options.bundle_bytes);
    add("shard_gradients", options.shard_gradients);
    add("moments()", bundles.front().moments);
    all.push_back({.what = "numbers of steps", .value = std::to_string(steps)});
    return all;
}

/// Returns once every rank has called it. Throws on all ranks if one has discarded this or joined.
void ShardedOptimizer::State::meet() {
    const auto self = static_cast<std::size_t>(ranks().rank());
    std::ranges::fill(present, 0.0F);
    present[self] = 1;
    plan->ready(0);
    plan->wait();
    const auto of_job = ranks().ranks();
    std::vector<int> absent;
    for (std::size_t rank = 0; rank < present.size(); ++rank)
        if (present[rank] == 0) absent.push_back(of_job[rank]);
    if (!absent.empty())
        throw Error(ErrorCode::departed,
                    fmt::format("ShardedOptimizer {}: {} cannot take part, because of a join(); "
                                "every rank owns a share",
                                base::quote(own_name()), base::list_ranks(absent)),
                    {.operation = "step", .ranks = absent});
}

void ShardedOptimizer::State::start_batch() {
    if (plan) joins = plan->joins();
    passes = 0;
    failure = nullptr;
    accumulated.assign(parameters.size(), false);
    for (auto& bundle : bundles) bundle.sum = {};
    start_pass();
}

void ShardedOptimizer::State::start_pass() {
    marked.assign(parameters.size(), false);
    for (auto& bundle : bundles) {
        bundle.missing = bundle.parameters.size();
        bundle.reducing = {};
    }
}

std::size_t ShardedOptimizer::State::find(std::string_view name) const {
    const auto found = index.find(name);
    if (found == index.end())
        refuse_sharded(own_name(), "there is no parameter called " + base::quote(name),
                       std::string(name));
    return found->second;
}

void ShardedOptimizer::State::mark(std::size_t parameter) {
    if (parameter >= parameters.size())
        refuse_sharded(own_name(), fmt::format("there is no parameter {}; there are {}", parameter,
                                               parameters.size()));
    const auto& name = parameters[parameter].name;
    if (!parameters[parameter].has_gradient())
        refuse_sharded(own_name(),
                       base::quote(name) + " was given without a gradient, so none can be ready",
                       name);
    if (marked[parameter])
        refuse_sharded(own_name(),
                       fmt::format("the gradient of {} was marked ready twice in one pass; a batch "
                                   "that step() will not end is ended by discard()",
                                   base::quote(name)),
                       name);
    hooks_used = marked[parameter] = true;
    const auto b = bundle_of[parameter];
    if (--bundles[b].missing == 0 && reduces()) exchange.send_gradients(bundles[b], b);
}

/// Keeps the first exception of mark() in a batch: step() throws it again.
template <class Act>
void ShardedOptimizer::State::keep_failure(const Act& act) {
    leave_joined_batch();
    if (failure) return;
    try {
        as_one(act);
    } catch (...) {
        failure = std::current_exception();
        throw;
    }
}

void ShardedOptimizer::State::complete_unmarked() {
    if (!hooks_used) return;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [name, value, gradient] = parameters[i];
        if (!parameters[i].has_gradient() || marked[i] || accumulated[i]) continue;
        zero(gradient, {.session = options.session, .process_set = options.process_set});
        if (!std::exchange(warned, true))
            log_message(
                LogLevel::warning,
                fmt::format("ShardedOptimizer {}: the gradient of {} was not marked in this "
                            "step and counts as zero (said once; there may be others)",
                            base::quote(own_name()), base::quote(name)));
    }
}

void ShardedOptimizer::State::send_rest() {
    for (std::size_t b = 0; b < bundles.size(); ++b)
        if (!bundles[b].reducing) exchange.send_gradients(bundles[b], b);
}

/// Waits for all reductions, even if one fails.
void ShardedOptimizer::State::take_gradients() {
    std::exception_ptr first;
    for (auto& bundle : bundles) attempt(first, [&] { ShardExchange::take_gradients(bundle); });
    if (first) std::rethrow_exception(first);
}

void ShardedOptimizer::State::end_pass() {
    ++passes;
    if (!options.shard_gradients)
        for (std::size_t i = 0; i < parameters.size(); ++i)
            if (marked[i]) accumulated[i] = true;
    start_pass();
}

void ShardedOptimizer::State::check_rule() const {
    if (failure) std::rethrow_exception(failure);
    const auto before = bundles.front().moments;
    if (rule.moments() != before)
        refuse_sharded(own_name(), fmt::format("the rule now keeps {} numbers for each element; it "
                                               "kept {} when the optimizer was made",
                                               rule.moments(), before));
}

bool ShardedOptimizer::State::step() {
    if (reduces() && hooks_used && !any_marked() && !failure)
        refuse_sharded(own_name(),
                       "step() was called, but no gradient was marked ready since the last one: "
                       "was it called twice? (A batch without gradients is ended by discard().)");
    try {
        check_rule();
    } catch (...) {
        const auto error = std::current_exception();
        try {
            discard(first_line(error));
        } catch (const Error&) {  // the first error is thrown
        }
        std::rethrow_exception(error);
    }
    try {
        return finish_pass();
    } catch (...) {
        start_batch();  // this batch has failed on all ranks; the next may succeed
        throw;
    }
}

bool ShardedOptimizer::State::finish_pass() {
    if (reduces()) {
        complete_unmarked();
        send_rest();
        take_gradients();
    }
    if (!is_last_pass()) {
        end_pass();
        return false;
    }
    meet();
    ++steps;
    update_all();
    start_batch();
    return true;
}

/// Takes part in all reductions that the other ranks wait for, then keeps them from stepping.
void ShardedOptimizer::State::discard(std::string_view reason) {
    try {
        for (;; end_pass()) {
            if (reduces()) {
                send_rest();
                take_gradients();
            }
            if (is_last_pass()) break;
        }
        plan->discard(reason);
    } catch (...) {
        start_batch();
        throw;
    }
    start_batch();
}

template <class T>
void ShardedOptimizer::State::update(ShardBundle& bundle,
                                     const std::function<void(const Shard<T>&)>& update_shard) {
    const auto gradients = bundle.sum.values<T>();
    auto* const all = reinterpret_cast<T*>(bundle.state.data());
    std::vector<std::span<T>> state(bundle.moments);
    bundle.for_own(parameters, [&](auto parameter, auto first, auto at, auto count) {
        for (std::size_t k = 0; k < state.size(); ++k)
            state[k] = {all + k * bundle.own + at, count};
        update_shard({.parameter = parameter,
                      .first = first,
                      .values = {static_cast<T*>(parameters[parameter].value.data) + first, count},
                      .gradients = gradients.subspan(at, count),
                      .state = state,
                      .step = steps});
    });
}

void ShardedOptimizer::State::update(ShardBundle& bundle) {
    bundle.dtype == DType::f32 ? update(bundle, rule.f32) : update(bundle, rule.f64);
}

/// The values of a bundle are collected while the next one is updated. If the rule throws, what is
/// left of the values is collected as it is.
void ShardedOptimizer::State::update_all() {
    std::exception_ptr thrown;
    std::exception_ptr first;
    for (std::size_t b = 0; b <= bundles.size(); ++b) {
        if (b < bundles.size()) {
            try {
                if (!thrown) update(bundles[b]);
            } catch (...) {
                thrown = std::current_exception();
            }
            attempt(first, [&] { exchange.send_values(bundles[b], b); });
        }
        if (b > 0) attempt(first, [&] { exchange.take_values(bundles[b - 1]); });
    }
    if (first) std::rethrow_exception(first);
    if (!thrown) return meet();
    plan->discard(fmt::format("its update rule has failed: {}", first_line(thrown)));
    std::rethrow_exception(thrown);
}

void ShardedOptimizer::State::require_between_batches(const char* function) const {
    if (passes > 0 || any_marked())
        refuse_sharded(own_name(),
                       fmt::format("{}() was called in the middle of a batch", function));
}

ShardedOptimizer::ShardedOptimizer(detail::ShardRule rule, std::vector<Parameter> parameters,
                                   const ShardedOptimizerOptions& options)
    : state_(std::make_unique<State>(std::move(rule), std::move(parameters), options)) {}
ShardedOptimizer::~ShardedOptimizer() = default;
ShardedOptimizer::ShardedOptimizer(ShardedOptimizer&&) noexcept = default;

void ShardedOptimizer::mark(std::size_t parameter) {
    state_->keep_failure([&] { state_->mark(parameter); });
}

void ShardedOptimizer::mark(std::string_view name) {
    state_->keep_failure([&] { state_->mark(state_->find(name)); });
}

bool ShardedOptimizer::step() {
    return state_->as_one([&] { return state_->step(); });
}

void ShardedOptimizer::discard(std::string_view reason) {
    state_->as_one([&] { state_->discard(reason); });
}

std::size_t ShardedOptimizer::state_bytes() const noexcept {
    std::size_t bytes = 0;
    for (const auto& bundle : state_->bundles) bytes += bundle.state.size();
    return bytes;
}

std::string ShardedOptimizer::save() const {
    const auto& state = *state_;
    state.require_between_batches("save");
    std::vector<ShardRecord> share;
    for (const auto& bundle : state.bundles)
        std::ranges::move(records_of(bundle, state.parameters, state.steps),
                          std::back_inserter(share));
    return write_shard(share);
}

void ShardedOptimizer::load(std::span<const std::string> shares) {
    auto& state = *state_;
    state.require_between_batches("load");
    std::vector<ShardRecord> records;
    for (const auto& share : shares)
        std::ranges::move(read_shard(share), std::back_inserter(records));
    if (records.empty()) refuse_sharded(name(), "there are no shares to load");
    const auto steps = records.front().step;
    for (const auto& record : records)
        if (record.step != steps)
            refuse_sharded(name(), fmt::format("the shares are of different steps: {} and {}",
                                               steps, record.step));
    std::vector<std::vector<std::byte>> restored;
    for (const auto& bundle : state.bundles)
        restored.push_back(restored_state(records, bundle, state.parameters, name()));
    for (std::size_t b = 0; b < restored.size(); ++b)
        state.bundles[b].state = std::move(restored[b]);
    state.steps = steps;
    state.plan->agree(state.agreements());
}

const std::string& ShardedOptimizer::name() const& noexcept {
    return state_->own_name();
}

}  // namespace guozhuang
