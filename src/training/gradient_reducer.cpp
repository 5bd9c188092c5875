#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/optimizer.hpp>
#include <new>
#include <unordered_map>
#include <utility>

#include "base/error_text.hpp"
#include "training/batch.hpp"
#include "training/current_streams.hpp"
#include "training/measure_sharing.hpp"
#include "training/refuse.hpp"
#include "training/sharing_advice.hpp"
#include "training/value_check.hpp"

namespace guozhuang {
namespace {

/// Whether they can be in one bundle.
bool are_alike(const TensorView& a, const TensorView& b) {
    return a.dtype == b.dtype && a.device == b.device;
}

}  // namespace

struct GradientReducer::State {
    State(std::vector<Parameter> given, const OptimizerOptions& chosen)
        : parameters(std::move(given)), options(chosen) {
        check();
        if (options.memory == Memory::share) shared = share(gradients(), options.session);
        try {
            lay_out();
        } catch (const std::bad_alloc&) {
            if (options.memory != Memory::share) throw;  // the others would not share again
            ranks().end_job_without_memory("DistributedOptimizer");
        }
    }
    const std::string& own_name() const noexcept { return plan ? plan->name() : options.name; }

    void check();
    std::vector<NamedTensor> gradients() const;
    void lay_out();
    ProcessSet ranks() const;
    void set_stream(StreamRef stream);
    void tie();
    void start_batch() {
        value_check.start_batch();
        batch.start(parameters.size(), bundle_size);
    }
    std::size_t find(std::string_view name) const;
    void mark(std::size_t parameter);
    void note_stream(std::size_t parameter);
    void complete(std::size_t parameter);
    void count_down(std::size_t bundle);
    void send(std::size_t bundle);
    std::vector<Agreement> agreements();
    void note_values();
    void complete_all();
    void complete_unmarked();
    template <class Act>
    void keep_failure(const Act& act);
    void discard(std::string_view reason);
    void leave_out();
    ElementOptions on_stream_of(const TensorView& tensor) const;
    void close_batch();
    template <class Wait>
    bool wait_for_averages(const Wait& wait);
    template <class Wait>
    bool synchronize(const Wait& wait);

    std::vector<Parameter> parameters;
    OptimizerOptions options;
    std::unordered_map<std::string_view, std::size_t> index;  ///< of a parameter, by name
    std::vector<std::size_t> bundle_of;                       ///< of each parameter with a gradient
    /// How many parameters each bundle waits for.
    std::vector<std::size_t> bundle_size;
    /// For each parameter, the first parameter whose gradient has the same memory: its bundle
    /// reduces both.
    std::vector<std::size_t> tied_to;
    /// On which gradients are marked and which wait for the averages: work enqueued on them next
    /// finds these in the gradients.
    CurrentStreams streams;
    SharedMemory shared;
    std::unique_ptr<Plan> plan;

    Batch batch;

    ValueCheck value_check{false};
    bool has_agreed = false;     ///< the plan holds the current agreements
    std::uint64_t left_out = 0;  ///< batches that were reduced, but not stepped with
    bool hooks_used = false, warned = false;
    SharingAdvice sharing_advice;
    int paused = 0;
};

void GradientReducer::State::check() {
    if (options.backward_passes_per_step < 1)
        refuse(options.name, fmt::format("backward_passes_per_step is {}; it must be 1 at least",
                                         options.backward_passes_per_step));
    if (parameters.empty()) refuse(options.name, "there are no parameters");
    if (options.memory == Memory::share && options.process_set.state())
        refuse(options.name,
               "memory is shared among all ranks of the job, not those of a process set");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& parameter = parameters[i];
        if (parameter.name.empty())
            refuse(options.name, fmt::format("parameter {} has no name", i));
        if (!index.emplace(parameter.name, i).second)
            refuse(options.name, "two parameters are called " + base::quote(parameter.name),
                   parameter.name);
        if (parameter.has_gradient() && parameter.value.shape != parameter.gradient.shape)
            refuse(options.name,
                   fmt::format("value and gradient of {} differ in shape",
                               base::quote(parameter.name)),
                   parameter.name);
    }
    if (std::ranges::none_of(parameters, &Parameter::has_gradient))
        refuse(options.name, "no parameter has a gradient");
}

std::vector<NamedTensor> GradientReducer::State::gradients() const {
    std::vector<NamedTensor> all;
    for (const auto& parameter : parameters)
        if (parameter.has_gradient()) all.push_back({parameter.name, parameter.gradient});
    return all;
}

/// Lays out bundles in reverse order of the parameters, the order in which backward finishes them.
/// A bundle has one dtype and device; the first one is small.
void GradientReducer::State::lay_out() {
    std::vector<std::vector<NamedTensor>> bundles;
    std::size_t bytes = 0;
    bundle_of.resize(parameters.size());
    for (std::size_t i = parameters.size(); i-- > 0;) {
        if (!parameters[i].has_gradient()) continue;
        const auto& [name, value, gradient] = parameters[i];
        const auto limit = bundles.size() <= 1 ? options.first_bundle_bytes : options.bundle_bytes;
        const bool fits = !bundles.empty() && bytes + gradient.bytes() <= limit &&
                          are_alike(bundles.back().front().tensor, gradient);
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
    streams = CurrentStreams(parameters);
    if (options.stream) set_stream(*options.stream);
    value_check = ValueCheck(options.check_values && ranks().size() > 1);
    start_batch();
    // Last: a reducer that could not be made has taken no name.
    plan =
        std::make_unique<Plan>(std::move(bundles), PlanOptions{.name = options.name,
                                                               .kind = "optimizer",
                                                               .op = options.op,
                                                               .postscale = options.gradient_scale,
                                                               .stream = options.stream,
                                                               .session = options.session,
                                                               .process_set = options.process_set});
}

ProcessSet GradientReducer::State::ranks() const {
    const bool has_set = options.process_set != ProcessSet();
    return has_set ? options.process_set : ProcessSet(options.session);
}

void GradientReducer::State::set_stream(StreamRef stream) {
    if (!streams.set(stream))
        refuse(own_name(), fmt::format("no gradient is on {} {}, where the stream is",
                                       name_of(stream.device.kind), stream.device.index));
}

/// A gradient that several parameters share is reduced with one of them. Its bundle waits for all
/// of them, since each adds to it.
void GradientReducer::State::tie() {
    std::unordered_map<const void*, std::size_t> first;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto memory = parameters[i].gradient.memory();
        tied_to.push_back(memory.empty() ? i : first.emplace(memory.data(), i).first->second);
        if (bundle_of[tied_to[i]] != bundle_of[i]) ++bundle_size[bundle_of[tied_to[i]]];
    }
}

std::size_t GradientReducer::State::find(std::string_view name) const {
    const auto found = index.find(name);
    if (found == index.end())
        refuse(own_name(), "there is no parameter called " + base::quote(name), std::string(name));
    return found->second;
}

void GradientReducer::State::mark(std::size_t parameter) {
    if (parameter >= parameters.size())
        refuse(own_name(),
               fmt::format("there is no parameter {}; there are {}", parameter, parameters.size()));
    const auto& name = parameters[parameter].name;
    if (!parameters[parameter].has_gradient())
        refuse(own_name(),
               base::quote(name) + " was given without a gradient, so none can be ready", name);
    const bool reduces = paused == 0 && batch.passes + 1 == options.backward_passes_per_step;
    if (batch.is_synchronised() || (reduces && batch.marked[parameter]))
        refuse(own_name(),
               fmt::format("the gradient of {} was marked ready twice in one step; a batch that "
                           "step() will not end is ended by discard()",
                           base::quote(name)),
               name);
    hooks_used = true;
    note_values();
    batch.accumulated[tied_to[parameter]] = true;
    if (!reduces) return note_stream(parameter);
    ++batch.marks;
    complete(parameter);
}

/// Its bundle, which is that of its memory, waits for the stream of its device.
void GradientReducer::State::note_stream(std::size_t parameter) {
    const auto* const stream = streams.of(parameters[parameter].gradient.device);
    auto& noted = batch.streams[bundle_of[tied_to[parameter]]];
    if (stream && std::ranges::find(noted, stream->native, &StreamRef::native) == noted.end())
        noted.push_back(*stream);
}

void GradientReducer::State::complete(std::size_t parameter) {
    batch.marked[parameter] = true;
    note_stream(parameter);  // an unmarked gradient was cleared on this stream
    const auto bundle = bundle_of[parameter], reducing = bundle_of[tied_to[parameter]];
    count_down(bundle);
    if (reducing != bundle) count_down(reducing);
}

/// Sends each bundle that is complete, but for the last.
void GradientReducer::State::count_down(std::size_t bundle) {
    if (--batch.missing[bundle] > 0) return;
    if (++batch.complete_bundles < plan->size())
        send(bundle);
    else
        batch.last_bundle = bundle;
}

void GradientReducer::State::send(std::size_t bundle) {
    // A rank that had joined has skipped steps too: all ranks count anew after a join.
    if (bundle == 0 && !value_check.has_passed(*plan) && std::exchange(left_out, 0) != 0)
        has_agreed = false;
    if (bundle == 0 && (!has_agreed || value_check.is_due(*plan))) {
        plan->agree(agreements());
        has_agreed = !value_check.is_due(*plan);
    }
    plan->ready(bundle, {.waits_next = batch.state == Batch::State::closing,
                         .streams = batch.streams[bundle]});
}

/// To be called as early in a batch as this hears of it, before a trainer changes values.
void GradientReducer::State::note_values() {
    value_check.note_values(parameters, *plan, [&](const TensorView& value) {
        return hash(value, on_stream_of(value));
    });
}

std::vector<Agreement> GradientReducer::State::agreements() {
    std::vector<Agreement> all{
        {.what = "values of backward_passes_per_step",
         .value = std::to_string(options.backward_passes_per_step)},
        {.what = "values of check_values", .value = options.check_values ? "true" : "false"},
        {.what = "numbers of batches that were reduced and then left out",
         .value = std::to_string(left_out)}};
    if (!value_check.is_due(*plan)) return all;
    note_values();
    const auto& values = value_check.agreements();
    all.insert(all.end(), values.begin(), values.end());
    return all;
}

/// Clears gradients that were not marked, if hooks are in use, and completes all bundles.
void GradientReducer::State::complete_all() {
    if (batch.complete_bundles < plan->size()) complete_unmarked();
    send(batch.last_bundle);
}

void GradientReducer::State::complete_unmarked() {
    std::vector<std::size_t> absent;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (!hooks_used || batch.marked[i] || batch.accumulated[tied_to[i]] ||
            !parameters[i].has_gradient())
            continue;
        absent.push_back(i);
    }
    for (const auto i : absent) zero(parameters[i].gradient, on_stream_of(parameters[i].gradient));
    if (!absent.empty() && !std::exchange(warned, true))
        log_message(
            LogLevel::warning,
            fmt::format("DistributedOptimizer {}: the gradient of {} was not marked in this step "
                        "and counts as zero (said once; there may be others)",
                        base::quote(own_name()), base::quote(parameters[absent.back()].name)));
    for (std::size_t i = parameters.size(); i-- > 0;)
        if (!batch.marked[i] && parameters[i].has_gradient()) complete(i);
}

/// Keeps the first exception of a hook in a batch: step() throws it again.
template <class Act>
void GradientReducer::State::keep_failure(const Act& act) {
    if (batch.failure) return;
    try {
        act();
    } catch (...) {
        batch.failure = std::current_exception();
        throw;
    }
}

/// Discards the batch on all ranks; on this rank alone if it cannot keep it from being reduced.
void GradientReducer::State::discard(std::string_view reason) {
    if (batch.is_closed()) {
        try {
            wait_for_averages([&] { return plan->wait(streams.all()), true; });
        } catch (const Error& error) {
            const bool is_of_the_batch =
                error.code() == ErrorCode::discarded || error.code() == ErrorCode::mismatch;
            if (is_of_the_batch) return;  // no rank steps with it
            throw;
        }
        return leave_out();
    }
    try {
        plan->discard(reason);
    } catch (...) {
        start_batch();
        throw;
    }
    start_batch();
}

/// This rank does not step with a batch that all have reduced, so its parameters part from those of
/// ranks that do. The next reduction finds that.
void GradientReducer::State::leave_out() {
    ++left_out;
    has_agreed = false;
    start_batch();
}

ElementOptions GradientReducer::State::on_stream_of(const TensorView& tensor) const {
    const auto* const stream = streams.of(tensor.device);
    return {.stream = stream ? std::optional(*stream) : std::nullopt,
            .session = options.session,
            .process_set = options.process_set};
}

/// Sends what has not been sent, the last bundle too. If it cannot, all ranks discard the batch.
void GradientReducer::State::close_batch() {
    if (hooks_used && batch.marks == 0 && !batch.any_accumulated() && !batch.failure)
        refuse(own_name(),
               "step() was called, but no gradient was marked ready since the last one: was it "
               "called twice? (A batch without gradients is "
               "ended by discard().)");
    try {
        if (batch.failure) std::rethrow_exception(batch.failure);
        batch.state = Batch::State::closing;
        complete_all();
    } catch (const std::exception& error) {
        const bool lacks_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
        try {
            discard(lacks_memory ? "not enough memory" : error.what());
        } catch (...) {  // the first error is thrown, but for one after which one could try again
            if (lacks_memory) throw;
        }
        throw;
    }
    batch.state = Batch::State::closed;
}

/// `wait()` waits for the plan, and returns whether all of it has ended.
template <class Wait>
bool GradientReducer::State::wait_for_averages(const Wait& wait) {
    if (batch.is_synchronised()) return true;
    try {
        if (!wait()) return false;
    } catch (...) {
        start_batch();  // this batch has failed on all ranks; the next may succeed
        throw;
    }
    value_check.pass(*plan);
    batch.state = Batch::State::synchronised;
    return true;
}

template <class Wait>
bool GradientReducer::State::synchronize(const Wait& wait) {
    if (!batch.is_closed() || batch.failure) close_batch();
    return wait_for_averages(wait);
}

GradientReducer::GradientReducer(std::vector<Parameter> parameters, const OptimizerOptions& options)
    : state_(std::make_unique<State>(std::move(parameters), options)) {}
GradientReducer::~GradientReducer() = default;
GradientReducer::GradientReducer(GradientReducer&&) noexcept = default;

void GradientReducer::mark(std::size_t parameter) {
    state_->keep_failure([&] { state_->mark(parameter); });
}

void GradientReducer::mark(std::string_view name) {
    state_->keep_failure([&] { state_->mark(state_->find(name)); });
}

void GradientReducer::set_stream(StreamRef stream) {
    state_->set_stream(stream);
}

void GradientReducer::discard(std::string_view reason) {
    state_->discard(reason);
}

void GradientReducer::synchronize() {
    auto& state = *state_;
    const auto start = SharingAdvice::Clock::now();
    const bool may_share = !state.batch.is_synchronised() && state.options.memory != Memory::share;
    state.synchronize([&] { return state.plan->wait(state.streams.all()), true; });
    if (may_share)
        state.sharing_advice.note_wait(SharingAdvice::Clock::now() - start, *state.plan,
                                       state.ranks());
}

bool GradientReducer::synchronize_for(std::chrono::microseconds limit) {
    return state_->synchronize(
        [&] { return state_->plan->wait_for(limit, state_->streams.all()); });
}

bool GradientReducer::finish_pass(const std::function<void()>& step) {
    auto& state = *state_;
    try {
        state.note_values();
    } catch (...) {  // the step() that ends the batch throws it, on all ranks
        if (!state.batch.failure) state.batch.failure = std::current_exception();
    }
    if (state.batch.passes + 1 < state.options.backward_passes_per_step) {
        ++state.batch.passes;
        return false;
    }
    synchronize();
    if (step) step();  // if it throws, it is called again, or discard()
    state.start_batch();
    return true;
}

SharingTimes GradientReducer::measure_sharing() const {
    return guozhuang::measure_sharing(state_->parameters, state_->options, name(), state_->ranks(),
                                      state_->batch.has_begun());
}

const std::string& GradientReducer::name() const& noexcept {
    return state_->own_name();
}

void GradientReducer::pause() noexcept {
    ++state_->paused;
}

void GradientReducer::resume() noexcept {
    --state_->paused;
}

}  // namespace guozhuang
