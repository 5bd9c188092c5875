#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/log.hpp>
#include <guozhuang/optimizer.hpp>
#include <new>
#include <utility>

#include "base/error_text.hpp"
#include "training/batch.hpp"
#include "training/bundles.hpp"
#include "training/compressor.hpp"
#include "training/current_streams.hpp"
#include "training/measure_sharing.hpp"
#include "training/refuse.hpp"
#include "training/sharing_advice.hpp"
#include "training/value_check.hpp"
#include "training/values.hpp"

namespace guozhuang {

struct GradientReducer::State {
    State(std::vector<Parameter> given, const OptimizerOptions& chosen, BatchCalls wanted)
        : parameters(std::move(given)),
          options(chosen),
          calls(std::move(wanted)),
          bundles(parameters, options),
          compressor(make_compressor(bundles, options)) {
        if (options.memory == Memory::share) shared = share(gradients(), options.session);
        try {
            make_plan();
        } catch (const std::bad_alloc&) {
            if (options.memory != Memory::share) throw;  // the others would not share again
            ranks().end_job_without_memory("DistributedOptimizer");
        }
    }
    const std::string& own_name() const noexcept { return plan ? plan->name() : options.name; }

    bool tracks_uses() const noexcept { return !options.uses.empty(); }
    std::vector<NamedTensor> gradients() const;
    void make_plan();
    ProcessSet ranks() const { return ranks_of(options.session, options.process_set); }
    void set_stream(StreamRef stream);
    void follow_stream();
    void start_batch() {
        value_check.start_batch();
        batch.start(parameters.size(), bundles.size);
    }
    std::size_t find(std::string_view name) const;
    bool is_last_pass() const noexcept {
        return batch.passes + 1 == options.backward_passes_per_step;
    }
    bool has_used(std::size_t parameter) const {
        return batch.accumulated[bundles.tied_to[parameter]];
    }
    void require(std::size_t parameter) const;
    void mark(std::size_t parameter);
    void note_stream(std::size_t parameter);
    void complete(std::size_t parameter);
    void count_down(std::size_t bundle);
    void send(std::size_t bundle);
    std::vector<Agreement> agreements();
    void note_values();
    void complete_unmarked();
    void clear_unused();
    void tell_uses();
    template <class Act>
    void keep_failure(const Act& act);
    void discard(std::string_view reason);
    void leave_out();
    ElementOptions on_stream_of(const TensorView& tensor) const;
    void refuse_second_step() const;
    void close_batch(bool waits_next);
    template <class Wait>
    bool wait_for_averages(const Wait& wait);
    template <class Wait>
    bool synchronize(const Wait& wait);

    std::vector<Parameter> parameters;
    OptimizerOptions options;
    BatchCalls calls;
    Bundles bundles;
    std::unique_ptr<Compressor> compressor;
    /// The streams on which gradients are marked, and which wait for the averages: work that is
    /// enqueued there next finds the averages in the gradients.
    CurrentStreams streams;
    SharedMemory shared;
    std::unique_ptr<Plan> plan;

    Batch batch;

    ValueCheck value_check{false, false};
    bool has_agreed = false;     ///< the plan holds the current agreements
    std::uint64_t left_out = 0;  ///< batches that were reduced, but skipped
    bool hooks_used = tracks_uses(), warned = false;
    SharingAdvice sharing_advice;
    int paused = 0;
};

std::vector<NamedTensor> GradientReducer::State::gradients() const {
    std::vector<NamedTensor> all;
    for (const auto& parameter : parameters)
        if (parameter.has_gradient()) all.push_back({parameter.name, parameter.gradient});
    return all;
}

void GradientReducer::State::make_plan() {
    streams = CurrentStreams(parameters);
    if (options.stream) set_stream(*options.stream);
    value_check = ValueCheck(options.check_values && ranks().size() > 1, tracks_uses());
    start_batch();
    // Last: a reducer that could not be made has taken no name.
    plan = std::make_unique<Plan>(std::move(bundles.tensors),
                                  PlanOptions{.name = options.name,
                                              .kind = "optimizer",
                                              .op = options.op,
                                              .postscale = options.gradient_scale,
                                              .stream = options.stream,
                                              .session = options.session,
                                              .process_set = options.process_set});
}

void GradientReducer::State::set_stream(StreamRef stream) {
    if (!streams.set(stream))
        refuse(own_name(), fmt::format("no gradient is on {} {}, where the stream is",
                                       name_of(stream.device.kind), stream.device.index));
}

void GradientReducer::State::follow_stream() {
    if (!calls.stream) return;
    if (const auto stream = calls.stream()) set_stream(*stream);
}

std::size_t GradientReducer::State::find(std::string_view name) const {
    const auto found = bundles.index.find(name);
    if (found == bundles.index.end())
        refuse(own_name(), "there is no parameter called " + base::quote(name), std::string(name));
    return found->second;
}

void GradientReducer::State::require(std::size_t parameter) const {
    if (parameter >= parameters.size())
        refuse(own_name(),
               fmt::format("there is no parameter {}; there are {}", parameter, parameters.size()));
}

void GradientReducer::State::mark(std::size_t parameter) {
    require(parameter);
    const auto& name = parameters[parameter].name;
    const bool has_gradient = parameters[parameter].has_gradient();
    if (!has_gradient && !tracks_uses())
        refuse(own_name(),
               base::quote(name) + " was given without a gradient, so none can be ready", name);
    const bool reduces = paused == 0 && is_last_pass();
    if (batch.is_synchronised() || (reduces && has_gradient && batch.marked[parameter]))
        refuse(own_name(),
               fmt::format("the gradient of {} was marked ready twice in one step; a batch that "
                           "step() will not end is ended by discard()",
                           base::quote(name)),
               name);
    hooks_used = true;
    follow_stream();
    if (batch.marks == 0) note_values();
    batch.accumulated[bundles.tied_to[parameter]] = true;
    if (reduces) ++batch.marks;
    if (!has_gradient) return;
    if (reduces)
        complete(parameter);
    else
        note_stream(parameter);
}

/// The bundle that reduces the gradient's memory waits for the stream of its device.
void GradientReducer::State::note_stream(std::size_t parameter) {
    if (streams.all().empty()) return;
    const auto* const stream = streams.of(parameters[parameter].gradient.device);
    if (stream == nullptr) return;
    auto& noted = batch.streams[bundles.bundle_of[bundles.tied_to[parameter]]];
    if (std::ranges::find(noted, stream->native, &StreamRef::native) == noted.end())
        noted.push_back(*stream);
}

void GradientReducer::State::complete(std::size_t parameter) {
    batch.marked[parameter] = true;
    note_stream(parameter);  // an unmarked gradient was cleared on this stream
    const auto bundle = bundles.bundle_of[parameter],
               reducing = bundles.bundle_of[bundles.tied_to[parameter]];
    count_down(bundle);
    if (reducing != bundle) count_down(reducing);
}

/// Sends each complete bundle except the last.
void GradientReducer::State::count_down(std::size_t bundle) {
    if (--batch.missing[bundle] > 0) return;
    if (++batch.complete_bundles < plan->size())
        send(bundle);
    else
        batch.last_bundle = bundle;
}

void GradientReducer::State::send(std::size_t bundle) {
    // A rank that had joined has skipped steps, too, so all ranks count from 0 again after a join.
    if (bundle == 0 && !value_check.has_passed(*plan) && std::exchange(left_out, 0) != 0)
        has_agreed = false;
    if (bundle == 0 && (!has_agreed || value_check.is_due(*plan))) {
        plan->agree(agreements());
        has_agreed = !value_check.is_due(*plan);
    }
    plan->ready(bundle, {.waits_next = batch.state == Batch::State::closing,
                         .streams = batch.streams[bundle]});
}

/// Called as early in a batch as possible, before a trainer changes values.
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
    if (compressor) compressor->append_agreements(all);
    if (!value_check.is_due(*plan)) return all;
    note_values();
    const auto& values = value_check.agreements();
    all.insert(all.end(), values.begin(), values.end());
    return all;
}

void GradientReducer::State::complete_unmarked() {
    if (tracks_uses())
        tell_uses();
    else if (hooks_used)
        clear_unused();
    for (std::size_t i = parameters.size(); i-- > 0;)
        if (!batch.marked[i] && parameters[i].has_gradient()) complete(i);
}

void GradientReducer::State::tell_uses() {
    std::ranges::fill(options.uses, 0.0F);
    for (std::size_t i = 0; i < parameters.size(); ++i) options.uses[i] = has_used(i) ? 1.0F : 0.0F;
    count_down(bundles.uses_bundle);
}

void GradientReducer::State::clear_unused() {
    std::vector<std::size_t> absent;
    for (std::size_t i = 0; i < parameters.size(); ++i)
        if (!batch.marked[i] && !has_used(i) && parameters[i].has_gradient()) absent.push_back(i);
    for (const auto i : absent) zero(parameters[i].gradient, on_stream_of(parameters[i].gradient));
    if (!absent.empty() && !std::exchange(warned, true))
        log_message(
            LogLevel::warning,
            fmt::format("DistributedOptimizer {}: the gradient of {} was not marked in this step "
                        "and counts as zero (said once; there may be others)",
                        base::quote(own_name()), base::quote(parameters[absent.back()].name)));
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
        follow_stream();
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

/// This rank skips a batch that all ranks have reduced, so its parameters diverge from those of
/// ranks that step. The next reduction finds that.
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

void GradientReducer::State::refuse_second_step() const {
    if (hooks_used && batch.marks == 0 && !batch.any_accumulated() && !batch.failure)
        refuse(own_name(),
               "step() was called, but no gradient was marked ready since the last one: was it "
               "called twice? (A batch without gradients is ended by discard().)");
}

/// Sends all remaining bundles, including the last. If it cannot, all ranks discard the batch.
void GradientReducer::State::close_batch(bool waits_next) {
    const auto discard_all = [this](std::string_view reason) {
        try {
            discard(reason.substr(0, reason.find('\n')));
        } catch (...) {  // the first error is thrown
        }
    };
    try {
        if (batch.failure) std::rethrow_exception(batch.failure);
        if (calls.closing) calls.closing();
        follow_stream();
        if (waits_next) batch.state = Batch::State::closing;
        if (batch.complete_bundles < plan->size()) complete_unmarked();
        send(batch.last_bundle);
    } catch (const std::bad_alloc&) {
        discard("not enough memory");  // its own error, if any: nobody should try again after that
        throw;
    } catch (const std::exception& error) {
        discard_all(error.what());
        throw;
    } catch (...) {
        discard_all("an unknown exception");
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
        if (compressor) compressor->reduce(own_name());
    } catch (...) {
        start_batch();  // this batch has failed on all ranks; the next may succeed
        throw;
    }
    value_check.pass(*plan);
    batch.state = Batch::State::synchronised;
    try {
        if (calls.reduced) calls.reduced();
    } catch (...) {
        leave_out();
        throw;
    }
    return true;
}

template <class Wait>
bool GradientReducer::State::synchronize(const Wait& wait) {
    if (!batch.is_closed() || batch.failure) {
        refuse_second_step();
        close_batch(true);
    }
    follow_stream();
    return wait_for_averages(wait);
}

GradientReducer::GradientReducer(std::vector<Parameter> parameters, const OptimizerOptions& options,
                                 BatchCalls calls)
    : state_(std::make_unique<State>(std::move(parameters), options, std::move(calls))) {}
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

void GradientReducer::close() {
    if (state_->is_last_pass() && !state_->batch.is_closed()) state_->close_batch(false);
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
    state.follow_stream();
    try {
        state.note_values();
    } catch (...) {  // the step() that ends the batch throws it, on all ranks
        if (!state.batch.failure) state.batch.failure = std::current_exception();
    }
    if (!state.is_last_pass()) {
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

bool GradientReducer::is_used(std::size_t parameter) const {
    const auto& state = *state_;
    state.require(parameter);
    const bool is_told = state.tracks_uses() && state.batch.is_synchronised();
    return is_told ? state.options.uses[parameter] != 0 : state.has_used(parameter);
}

bool GradientReducer::is_paused() const noexcept {
    return state_->paused > 0;
}

bool GradientReducer::is_closed() const noexcept {
    return state_->batch.is_closed();
}

bool GradientReducer::is_synchronised() const noexcept {
    return state_->batch.is_synchronised();
}

void GradientReducer::pause() noexcept {
    ++state_->paused;
}

void GradientReducer::resume() noexcept {
    --state_->paused;
}

}  // namespace guozhuang
