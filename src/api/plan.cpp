#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <guozhuang/error.hpp>
#include <guozhuang/plan.hpp>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "api/process_set_state.hpp"
#include "api/requests.hpp"
#include "backends/host/staging_buffers.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "base/wait.hpp"
#include "wire/shm/shared_pages.hpp"

namespace guozhuang {
namespace {

constexpr std::size_t max_reason_bytes = 4096;  // longer texts are cut

/// Names a plan in its errors, even one that has no name yet.
std::string label_of(const PlanOptions& options) {
    return options.name.empty() ? options.kind : "plan " + base::quote(options.name);
}

/// The request of a bundle, for a plan that has not taken its name yet.
engine::Request request_of(SetRuntime& set, const PlanOptions& options, std::size_t bundle,
                           std::span<const NamedTensor> tensors) {
    const auto name =
        fmt::format("{}/bundle {}", options.name.empty() ? options.kind : options.name, bundle);
    std::vector<TensorView> views;
    std::vector<std::string> names;
    for (const auto& [own, tensor] : tensors) {
        views.push_back(tensor);
        names.push_back(own);
    }
    const engine::Call call{.description = {.operation = OperationKind::allreduce,
                                            .op = options.op,
                                            .prescale = options.prescale,
                                            .postscale = options.postscale,
                                            .group = true},
                            .name = name,
                            .tensors = views,
                            .tensor_names = names};
    api::check(set, call);
    return api::prepare(set, call);
}

}  // namespace

struct Plan::State {
    struct Bundle {
        engine::Request request;  ///< a copy is submitted each time
        Handle handle;
        Device device() const { return request.tensors.front().device; }
    };
    /// The plan's stream for bundles on its device, and for all if none is on it, which then fail.
    std::span<const StreamRef> streams_of(const Bundle& bundle) const {
        const bool is_used = std::ranges::any_of(
            bundles, [&](const auto& each) { return stream && each.device() == stream->device; });
        if (!stream || (is_used && bundle.device() != stream->device)) return {};
        return {&*stream, 1};
    }
    /// Waits for the bundles in flight, each by `wait(handle, stream)` with the stream of the
    /// bundle's device, or null. If that returns false, so does this, and the rest stays. Throws
    /// the first error once all have ended.
    template <class Wait>
    bool wait_for_each(std::span<const StreamRef> streams, const Wait& wait);

    std::optional<StreamRef> stream;
    std::shared_ptr<SetRuntime> set;
    std::shared_ptr<const std::string> name;
    std::vector<Bundle> bundles;
    std::exception_ptr failure;  ///< of a bundle that has ended, as long as others have not
};

template <class Wait>
bool Plan::State::wait_for_each(std::span<const StreamRef> streams, const Wait& wait) {
    for (auto& bundle : bundles) {
        if (!bundle.handle) continue;
        const auto own = std::ranges::find(streams, bundle.device(), &StreamRef::device);
        const auto handle = bundle.handle;
        try {
            if (!wait(handle, own == streams.end() ? nullptr : &*own)) return false;
        } catch (...) {
            if (!failure) failure = std::current_exception();
        }
        bundle.handle = {};
    }
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    return true;
}

Plan::Plan(std::vector<std::vector<NamedTensor>> bundles, const PlanOptions& options)
    : state_(std::make_unique<State>()) {
    state_->set = api::set_runtime_of(options.session, options.process_set);
    state_->stream = options.stream;
    api::check_name("plan", options.name);
    std::set<std::string> names;
    std::vector<NamedTensor> all;
    for (std::size_t i = 0; i < bundles.size(); ++i) {
        if (bundles[i].empty())
            throw Error(ErrorCode::invalid_argument,
                        fmt::format("{}: bundle {} has no tensors", label_of(options), i));
        for (const auto& [name, tensor] : bundles[i]) {
            if (name.empty())
                throw Error(
                    ErrorCode::invalid_argument,
                    fmt::format("{}: a tensor of bundle {} has no name", label_of(options), i));
            if (!names.insert(name).second)
                throw Error(ErrorCode::invalid_argument,
                            fmt::format("{}: two tensors are called {}", label_of(options),
                                        base::quote(name)),
                            {.tensor = name, .operation = "plan"});
            api::check_tensor(tensor, label_of(options), name);
        }
        std::ranges::move(bundles[i], std::back_inserter(all));
    }
    api::move_once(all, options.name.empty() ? options.kind : "plan", options.name);
    auto first = all.begin();
    for (std::size_t i = 0; i < bundles.size(); ++i) {
        const auto end = first + static_cast<std::ptrdiff_t>(bundles[i].size());
        state_->bundles.push_back(
            {.request = request_of(*state_->set, options, i, std::span(first, end)), .handle = {}});
        first = end;
    }
    // The name, which counts plans, is taken last: a plan that failed does not count.
    state_->name =
        state_->set->take_plan_name(options.name, options.kind, [this](const std::string& name) {
            for (std::size_t i = 0; i < size(); ++i)
                state_->bundles[i].request.name = fmt::format("{}/bundle {}", name, i);
        });
}

/// Other ranks may not have submitted all bundles when the owner of the tensors is destroyed,
/// perhaps by an exception, so pending bundles go on without its memory.
Plan::~Plan() {
    if (!state_ || base::is_forked()) return;
    const auto is_ours = [&](const engine::SharedTensors& tensors) {
        return std::ranges::any_of(
            state_->bundles, [&](const auto& bundle) { return bundle.request.tensors == tensors; });
    };
    try {
        state_->set->engine().release_tensors(is_ours);
    } catch (const std::exception& error) {
        base::log(LogLevel::debug, "Plan {} ends with the job: {}", base::quote(name()),
                  error.what());
    }
}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&& other) noexcept {
    Plan taken(std::move(other));
    std::swap(state_, taken.state_);
    return *this;
}

std::size_t Plan::size() const noexcept {
    return state_->bundles.size();
}

const std::string& Plan::name() const& noexcept {
    return *state_->name;
}

void Plan::ready(std::size_t bundle, ReadyOptions options) {
    if (bundle >= size())
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("Plan {}: there is no bundle {}", base::quote(name()), bundle));
    auto& [request, handle] = state_->bundles[bundle];
    const auto streams = options.streams.empty() ? state_->streams_of(state_->bundles[bundle])
                                                 : std::span<const StreamRef>(options.streams);
    if (handle)
        throw Error(ErrorCode::duplicate_name,
                    fmt::format("Plan {}: bundle {} is on its way already; wait() comes first",
                                base::quote(name()), bundle));
    handle = Handle(api::submit(*state_->set, engine::Request(request), streams,
                                options.waits_next && !request.device));
}

/// Bundle 0 carries the agreements, since all ranks reduce it in every round.
void Plan::agree(std::vector<Agreement> agreements) {
    if (size() == 0) return;
    auto& request = state_->bundles.front().request;
    protocol::Description description = *request.description;
    description.agreements = std::move(agreements);
    for (const auto& [tensor, what, value] : description.agreements)
        if (std::max({tensor.size(), what.size(), value.size()}) > protocol::max_name_bytes)
            throw Error(ErrorCode::invalid_argument,
                        fmt::format("Plan {}: a text to agree on is longer than {} bytes",
                                    base::quote(name()), protocol::max_name_bytes));
    const auto bytes = protocol::encode(description).size();
    if (bytes > protocol::max_description_bytes)
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("Plan {}: to agree on {} things takes {} bytes; at most {} are supported",
                        base::quote(name()), description.agreements.size(), bytes,
                        protocol::max_description_bytes));
    request.description = protocol::share(std::move(description));
}

void Plan::discard(std::string_view reason) {
    std::exception_ptr first;
    const auto attempt = [&](const auto& act) {
        try {
            act();
        } catch (const std::bad_alloc&) {  // the others would wait for this rank's bundle
            api::end_job_without_memory(*state_->set, "discard");
        } catch (...) {
            const auto code = base::code_of(std::current_exception());
            const bool is_expected = code == ErrorCode::discarded || code == ErrorCode::mismatch;
            if (!first && !is_expected) first = std::current_exception();
        }
    };
    for (auto& bundle : state_->bundles) {
        auto& [request, handle] = bundle;
        if (handle) continue;
        attempt([&] {
            protocol::Description description = *request.description;
            description.discarded =
                reason.empty() ? "no reason given" : reason.substr(0, max_reason_bytes);
            auto discarded = request;
            discarded.description = protocol::share(std::move(description));
            handle = Handle(
                api::submit(*state_->set, std::move(discarded), state_->streams_of(bundle), false));
        });
    }
    attempt([&] { wait(); });
    if (first) std::rethrow_exception(first);
}

std::uint64_t Plan::joins() const {
    return state_->set->engine().joins();
}

std::size_t Plan::sharable_bytes() const {
    auto& transport = state_->set->transport();
    std::vector<int> ranks(static_cast<std::size_t>(transport.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    if (ranks.size() == 1 || !state_->set->group_ranks().are_the_world() ||
        !backends::can_stage(transport, ranks))
        return 0;
    std::vector<std::span<std::byte>> memory;
    for (const auto& bundle : state_->bundles)
        for (const auto& tensor : bundle.request.tensors)
            if (tensor.device.kind == DeviceKind::host) memory.push_back(tensor.memory());
    std::size_t bytes = 0;
    for (const auto& pages : wire::whole_pages(memory))
        if (transport.regions()->locate(pages).bytes == 0) bytes += pages.size();
    return bytes;
}

void Plan::wait() {
    wait(std::span<const StreamRef>());
}

void Plan::wait(StreamRef stream) {
    wait(std::span(&stream, 1));
}

void Plan::wait(std::span<const StreamRef> streams) {
    state_->wait_for_each(streams, [](const Handle& handle, const StreamRef* stream) {
        stream == nullptr ? handle.wait() : handle.wait(*stream);
        return true;
    });
}

bool Plan::wait_for(std::chrono::microseconds limit, std::span<const StreamRef> streams) {
    const auto deadline = base::deadline_after(limit);
    return state_->wait_for_each(streams, [&](const Handle& handle, const StreamRef* stream) {
        const auto left =
            std::chrono::duration_cast<std::chrono::microseconds>(deadline - base::Clock::now());
        return stream == nullptr ? handle.wait_for(left) : handle.wait_for(*stream, left);
    });
}

}  // namespace guozhuang
