#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <guozhuang/error.hpp>
#include <guozhuang/gossip.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/plan.hpp>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "training/random.hpp"
#include "training/values.hpp"

namespace guozhuang {

struct Gossip::State {
    /// The values of a rank as they travel: one message for each dtype. Operations own it, too, so
    /// that a rank that leaves in the middle of a step takes no memory from them.
    struct Message {
        std::vector<float> f32;
        std::vector<double> f64;

        /// Calls act(value, element of the message) for each element.
        template <class Act>
        void for_each(std::span<const NamedTensor> tensors, const Act& act) {
            auto* narrow = f32.data();
            auto* wide = f64.data();
            for (const auto& [name, tensor] : tensors)
                for_each_element(
                    [&]<class T>(T& value) {
                        if constexpr (std::is_same_v<T, float>)
                            act(value, *narrow++);
                        else
                            act(value, *wide++);
                    },
                    tensor);
        }
    };

    State(std::span<const Parameter> parameters, const GossipOptions& chosen);
    void compare() const;
    std::optional<int> partner();
    void exchange(int with);

    GossipOptions options;
    ProcessSet ranks;
    std::vector<NamedTensor> values;
    std::shared_ptr<Message> own = std::make_shared<Message>();
    std::shared_ptr<Message> other = std::make_shared<Message>();
    std::uint64_t steps = 0;
};

Gossip::State::State(std::span<const Parameter> parameters, const GossipOptions& chosen)
    : options(chosen),
      ranks(ranks_of(options.session, options.process_set)),
      values(values_of(parameters, "Gossip")) {
    for (const auto& [name, tensor] : values) {
        const bool is_wide = tensor.dtype == DType::f64;
        for (auto* message : {own.get(), other.get()})
            is_wide ? message->f64.resize(message->f64.size() + tensor.count())
                    : message->f32.resize(message->f32.size() + tensor.count());
    }
    compare();
}

/// Partners that do not expect each other would wait for ever.
void Gossip::State::compare() const {
    std::vector<Agreement> agreements{
        {.what = "values of pairs",
         .value = options.pairs == GossipPairs::random ? "random" : "ring"},
        {.what = "values of seed", .value = fmt::format("{}", options.seed)},
        {.what = "values of tag", .value = fmt::format("{}", options.tag)},
        {.what = "numbers of parameters", .value = fmt::format("{}", values.size())}};
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto& [name, tensor] = values[i];
        agreements.push_back({.what = fmt::format("names of parameter {}", i), .value = name});
        agreements.push_back(
            {name, "dtypes and shapes",
             fmt::format("{} [{}]", name_of(tensor.dtype), fmt::join(tensor.shape, ", "))});
    }
    float token = 0;
    Plan plan({{{"options", token}}},
              {.kind = "gossip", .session = options.session, .process_set = options.process_set});
    plan.agree(std::move(agreements));
    plan.ready(0, {.waits_next = true});
    plan.wait();
}

/// Neighbours in this step's order are partners. Every rank draws the same order.
std::optional<int> Gossip::State::partner() {
    const auto step = steps++;
    const auto all = ranks.ranks();
    auto order = numbers_below(all.size());
    if (options.pairs == GossipPairs::random)
        Random(options.seed, step).shuffle(std::span(order));
    else
        std::ranges::rotate(order, order.begin() + static_cast<std::ptrdiff_t>(step % all.size()));
    const auto own_index = static_cast<std::size_t>(
        std::ranges::find(order, static_cast<std::size_t>(ranks.rank())) - order.begin());
    const auto index = own_index ^ 1;
    if (index >= order.size()) return std::nullopt;
    return all[order[index]];
}

void Gossip::State::exchange(int with) try {
    PointToPointOptions how{.tag = options.tag,
                            .session = options.session,
                            .process_set = options.process_set,
                            .timeout = options.timeout};
    std::vector<Handle> handles;
    const auto start = [&](auto& sent, auto& received) {
        if (sent.empty()) return;
        how.keep_alive = other;
        handles.push_back(recv_async(received, with, how));
        how.keep_alive = own;
        handles.push_back(send_async(sent, with, how));
    };
    start(own->f32, other->f32);
    start(own->f64, other->f64);
    std::exception_ptr failure;
    for (const auto& handle : handles) try {
            handle.wait();
        } catch (...) {
            if (!failure) failure = std::current_exception();
        }
    if (failure) std::rethrow_exception(failure);
} catch (const std::bad_alloc&) {  // the partner would wait for the rest
    ranks.end_job_without_memory("Gossip");
}

Gossip::Gossip(std::vector<Parameter> parameters, const GossipOptions& options)
    : state_(std::make_unique<State>(parameters, options)) {}
Gossip::~Gossip() = default;
Gossip::Gossip(Gossip&&) noexcept = default;

std::optional<int> Gossip::step() {
    auto& state = *state_;
    const auto partner = state.partner();
    if (!partner) return partner;
    state.own->for_each(state.values, [](auto& value, auto& sent) { sent = value; });
    state.exchange(*partner);
    // Halves are exact, and a sum is the same in either order.
    state.other->for_each(state.values,
                          [](auto& value, auto& received) { value = value / 2 + received / 2; });
    return partner;
}

}  // namespace guozhuang
