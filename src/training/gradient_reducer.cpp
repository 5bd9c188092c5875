#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/optimizer.hpp>
#include <unordered_map>
#include <utility>

namespace guozhuang {
namespace {

[[noreturn]] void refuse(const std::string& optimizer, const std::string& problem, const std::string& tensor = {}) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("DistributedOptimizer{}: {}", optimizer.empty() ? "" : fmt::format(" '{}'", optimizer), problem),
                {.tensor = tensor, .operation = "step", .ranks = {}});
}

/// Whether they can be in one bundle.
bool are_alike(const TensorView& a, const TensorView& b) {
    return a.dtype == b.dtype && a.device == b.device;
}

}  // namespace

struct GradientReducer::State {
    State(std::vector<Parameter> given, const OptimizerOptions& chosen) : parameters(std::move(given)), options(chosen) {
        check();
        if (options.memory == Memory::share) shared = share(gradients(), options.session);
        lay_out();
    }

    void check();
    std::vector<NamedTensor> gradients() const;
    void lay_out();
    void tie();
    void start_step();
    void complete(std::size_t parameter);
    void clear_unmarked();

    std::vector<Parameter> parameters;
    OptimizerOptions options;
    std::unordered_map<std::string_view, std::size_t> index;  ///< of a parameter, by name
    std::vector<std::size_t> bundle_of;                       ///< of each parameter
    std::vector<std::size_t> bundle_size;                     ///< parameters that each bundle waits for
    std::vector<std::size_t> tied_to;  ///< of each parameter, the first whose gradient is the same memory: its bundle reduces it
    SharedMemory shared;
    std::unique_ptr<Plan> plan;

    // This step.
    std::vector<bool> accumulated;  ///< gradients, by tied_to, that were marked in some pass: they are not zero
    std::vector<bool> marked;
    std::vector<std::size_t> missing;  ///< gradients that each bundle still waits for
    std::size_t marks = 0;
    int passes = 0;
    bool synchronised = false;

    bool hooks_used = false;  ///< in any step so far
    bool warned = false;
    int paused = 0;
};

void GradientReducer::State::check() {
    if (options.backward_passes_per_step < 1)
        refuse(options.name, fmt::format("backward_passes_per_step is {}; it must be 1 at least", options.backward_passes_per_step));
    if (parameters.empty()) refuse(options.name, "there are no parameters");
    if (options.memory == Memory::share && options.process_set.state())
        refuse(options.name, "memory is shared among all ranks of the job, not those of a process set");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& parameter = parameters[i];
        if (parameter.name.empty()) refuse(options.name, fmt::format("parameter {} has no name", i));
        if (!index.emplace(parameter.name, i).second)
            refuse(options.name, fmt::format("two parameters are called '{}'", parameter.name), parameter.name);
        if (parameter.value.shape != parameter.gradient.shape)
            refuse(options.name, fmt::format("value and gradient of '{}' differ in shape", parameter.name), parameter.name);
    }
}

std::vector<NamedTensor> GradientReducer::State::gradients() const {
    std::vector<NamedTensor> all;
    for (const auto& parameter : parameters) all.push_back({parameter.name, parameter.gradient});
    return all;
}

/// Bundles in reverse order of the parameters, as backward finishes them: of one dtype and device each, the first one small.
void GradientReducer::State::lay_out() {
    std::vector<std::vector<NamedTensor>> bundles;
    std::size_t bytes = 0;
    bundle_of.resize(parameters.size());
    for (std::size_t i = parameters.size(); i-- > 0;) {
        const auto& [name, value, gradient] = parameters[i];
        const auto limit = bundles.size() <= 1 ? options.first_bundle_bytes : options.bundle_bytes;
        const bool fits = !bundles.empty() && bytes + gradient.bytes() <= limit && are_alike(bundles.back().front().tensor, gradient);
        if (!fits) {
            bundles.emplace_back();
            bundle_size.push_back(0);
            bytes = 0;
        }
        bundles.back().push_back({name, gradient});
        ++bundle_size.back();
        bundle_of[i] = bundles.size() - 1;
        bytes += gradient.bytes();
    }
    tie();
    plan = std::make_unique<Plan>(std::move(bundles), PlanOptions{.name = options.name,
                                                                  .kind = "optimizer",
                                                                  .op = options.op,
                                                                  .postscale = options.gradient_scale,
                                                                  .stream = options.stream,
                                                                  .session = options.session,
                                                                  .process_set = options.process_set});
    options.name = plan->name();
    start_step();
}

/// The bundle that reduces a gradient of several parameters waits for all of them, since each adds
/// to it.
void GradientReducer::State::tie() {
    std::unordered_map<const void*, std::size_t> first;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto memory = parameters[i].gradient.memory();
        tied_to.push_back(memory.empty() ? i : first.emplace(memory.data(), i).first->second);
        if (bundle_of[tied_to[i]] != bundle_of[i]) ++bundle_size[bundle_of[tied_to[i]]];
    }
}

void GradientReducer::State::start_step() {
    accumulated.assign(parameters.size(), false);
    marked.assign(parameters.size(), false);
    missing = bundle_size;
    marks = 0;
    passes = 0;
    synchronised = false;
}

void GradientReducer::State::complete(std::size_t parameter) {
    marked[parameter] = true;
    const auto bundle = bundle_of[parameter], reducing = bundle_of[tied_to[parameter]];
    if (--missing[bundle] == 0) plan->ready(bundle);
    if (reducing != bundle && --missing[reducing] == 0) plan->ready(reducing);
}

void GradientReducer::State::clear_unmarked() {
    for (std::size_t i = parameters.size(); i-- > 0;) {
        if (marked[i]) continue;
        const auto memory = parameters[i].gradient.memory();
        const bool absent = hooks_used && !accumulated[tied_to[i]];
        if (absent && parameters[i].gradient.device.kind != DeviceKind::host)
            refuse(
                options.name,
                fmt::format(
                    "the gradient of '{}' was not marked in this step, and on a device it cannot be cleared from here: clear and mark it",
                    parameters[i].name),
                parameters[i].name);
        if (absent && !memory.empty()) std::memset(memory.data(), 0, memory.size());
        if (absent && !std::exchange(warned, true))
            log_message(LogLevel::warning,
                        fmt::format("DistributedOptimizer '{}': the gradient of '{}' was not marked in this step and counts as zero "
                                    "(said once; there may be others)",
                                    options.name, parameters[i].name));
        complete(i);
    }
}

GradientReducer::GradientReducer(std::vector<Parameter> parameters, const OptimizerOptions& options)
    : state_(std::make_unique<State>(std::move(parameters), options)) {}
GradientReducer::~GradientReducer() = default;
GradientReducer::GradientReducer(GradientReducer&&) noexcept = default;

void GradientReducer::mark(std::size_t parameter) {
    auto& state = *state_;
    if (parameter >= state.parameters.size())
        refuse(state.options.name, fmt::format("there is no parameter {}; there are {}", parameter, state.parameters.size()));
    if (state.paused > 0 || state.passes + 1 < state.options.backward_passes_per_step) {
        state.accumulated[state.tied_to[parameter]] = true;
        state.hooks_used = true;
        return;
    }
    const auto& name = state.parameters[parameter].name;
    if (state.marked[parameter] || state.synchronised)
        refuse(state.options.name, fmt::format("the gradient of '{}' was marked ready twice in one step", name), name);
    state.hooks_used = true;
    state.accumulated[state.tied_to[parameter]] = true;
    ++state.marks;
    state.complete(parameter);
}

void GradientReducer::mark(std::string_view name) {
    const auto found = state_->index.find(name);
    if (found == state_->index.end())
        refuse(state_->options.name, fmt::format("there is no parameter called '{}'", name), std::string(name));
    mark(found->second);
}

void GradientReducer::synchronize() {
    auto& state = *state_;
    if (state.synchronised) return;
    const bool any_accumulated = std::ranges::find(state.accumulated, true) != state.accumulated.end();
    if (state.hooks_used && state.marks == 0 && !any_accumulated)
        refuse(state.options.name, "step() was called, but no gradient was marked ready since the last one: was it called twice?");
    try {
        state.clear_unmarked();
        state.plan->wait();
    } catch (...) {
        try {
            state.plan->wait();  // for bundles that were on their way when another could not start
        } catch (...) {          // the first error is the one to tell
        }
        state.start_step();  // this one has failed; the next may succeed
        throw;
    }
    state.synchronised = true;
}

bool GradientReducer::finish_pass() {
    auto& state = *state_;
    if (state.passes + 1 < state.options.backward_passes_per_step) {
        ++state.passes;
        return false;
    }
    synchronize();
    state.start_step();
    return true;
}

void GradientReducer::pause() noexcept {
    ++state_->paused;
}

void GradientReducer::resume() noexcept {
    --state_->paused;
}

}  // namespace guozhuang
