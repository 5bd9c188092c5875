#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <guozhuang/elements.hpp>
#include <guozhuang/error.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/plan.hpp>
#include <guozhuang/training.hpp>
#include <iterator>
#include <map>
#include <new>
#include <ranges>
#include <set>
#include <vector>

#include "base/error_text.hpp"

namespace guozhuang {
namespace {

/// Runs `act`, which submits several operations. A rank that runs out of memory in the middle ends
/// the job, because it cannot begin again alone.
template <class Act>
auto as_one(std::string_view what, const ProcessSet& process_set, const Act& act) try {
    return act();
} catch (const std::bad_alloc&) {
    process_set.end_job_without_memory(what);
}

/// The elements of all ranks, in the order of ranks; a joined rank has none.
template <Element T>
std::vector<std::vector<T>> gather(std::vector<T> elements, const std::string& name,
                                   const ProcessSet& process_set) {
    const Result result = all_gather(elements, {.name = name, .process_set = process_set});
    const auto flat = result.as<T>();
    std::vector<std::vector<T>> by_rank;
    auto next = flat.begin();
    for (const auto rows : result.rows) {
        by_rank.emplace_back(next, next + rows);
        next += rows;
    }
    return by_rank;
}

/// The same by world rank, without joined ranks. Every other rank has some elements.
template <Element T>
std::map<int, std::vector<T>> gather_from_active(std::vector<T> elements, const std::string& name,
                                                 const ProcessSet& process_set) {
    const auto ranks = process_set.ranks();
    std::map<int, std::vector<T>> active;
    for (auto rank = ranks.begin(); auto& theirs : gather(std::move(elements), name, process_set)) {
        if (!theirs.empty()) active[*rank] = std::move(theirs);
        ++rank;
    }
    return active;
}

/// The ranks whose number at `index` differs from that of the first rank.
std::vector<int> dissenters(const std::map<int, std::vector<std::int64_t>>& by_rank,
                            std::size_t index) {
    std::vector<int> others;
    for (const auto& [rank, numbers] : by_rank)
        if (numbers[index] != by_rank.begin()->second[index]) others.push_back(rank);
    return others;
}

/// "rank 2", "ranks 0,1,3".
std::string list_of(std::span<const int> ranks) {
    return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ","));
}

using Names = std::set<std::string>;

std::vector<std::string> gather_bytes(std::string_view bytes, const std::string& name,
                                      const ProcessSet& process_set) {
    std::vector<std::string> strings;
    for (const auto& one :
         gather(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), name, process_set))
        strings.emplace_back(one.begin(), one.end());
    return strings;
}

std::map<int, Names> gather_names(const Names& own, const std::string& name,
                                  const ProcessSet& process_set) {
    // Each name ends with a zero byte. One more tells an active rank from a joined one.
    std::vector<std::uint8_t> bytes(1, 0);
    for (const auto& one : own)
        bytes.insert(bytes.end(), one.c_str(), one.c_str() + one.size() + 1);
    std::map<int, Names> by_rank;
    for (const auto& [rank, theirs] : gather_from_active(std::move(bytes), name, process_set)) {
        auto& names = by_rank[rank];
        for (auto begin = theirs.begin() + 1; begin != theirs.end();) {
            const auto end = std::find(begin, theirs.end(), 0);
            names.emplace(begin, end);
            begin = end + 1;
        }
    }
    return by_rank;
}

/// "'bias', 'weight' and 3 more".
std::string list_of(const Names& names) {
    constexpr std::size_t most = 5;
    if (names.empty()) return "none";
    std::vector<std::string> first;
    for (const auto& name : names | std::views::take(most)) first.push_back(base::quote(name));
    if (names.size() <= most) return fmt::format("{}", fmt::join(first, ", "));
    return fmt::format("{} and {} more", fmt::join(first, ", "), names.size() - most);
}

/// Throws on every rank unless all pass the same names. The text has the names that are not on all
/// ranks: "average_metrics: keys differ: 'loss' on ranks 0,2; 'lose' on rank 1".
void require_same(const std::string& operation, const std::string& what, const Names& own,
                  const ProcessSet& process_set) {
    const auto by_rank = gather_names(own, fmt::format("{}/{}", operation, what), process_set);
    std::map<std::string, std::size_t> owners;
    for (const auto& [rank, names] : by_rank)
        for (const auto& name : names) ++owners[name];
    // Names that not all ranks have, with the ranks that have them, in the order of first ranks.
    std::vector<std::pair<Names, std::vector<int>>> sides;
    for (const auto& [rank, names] : by_rank) {
        Names lone;
        std::ranges::copy_if(names, std::inserter(lone, lone.end()),
                             [&](const auto& name) { return owners[name] < by_rank.size(); });
        auto side = std::ranges::find(sides, lone, &std::pair<Names, std::vector<int>>::first);
        if (side == sides.end()) side = sides.emplace(side, std::move(lone), std::vector<int>());
        side->second.push_back(rank);
    }
    if (sides.size() == 1) return;
    std::string text;
    std::vector<int> odd;
    for (const auto& [lone, held_by] : sides) {
        text +=
            fmt::format("{} {} on {}", text.empty() ? "" : ";", list_of(lone), list_of(held_by));
        if (held_by.front() != by_rank.begin()->first)
            odd.insert(odd.end(), held_by.begin(), held_by.end());
    }
    std::ranges::sort(odd);
    throw Error(ErrorCode::mismatch, fmt::format("{}: {} differ:{}", operation, what, text),
                {.operation = operation, .ranks = odd});
}

/// The same for parameters. Throws Error(invalid_argument) if two have the same name.
void require_same(const std::string& operation, std::span<const Parameter> parameters,
                  const ProcessSet& process_set) {
    Names names;
    for (const auto& parameter : parameters)
        if (!names.insert(parameter.name).second)
            throw Error(ErrorCode::invalid_argument,
                        fmt::format("{}: two parameters are called {}", operation,
                                    base::quote(parameter.name)),
                        {.tensor = parameter.name, .operation = operation});
    require_same(operation, "parameters", names, process_set);
}

/// Broadcasts all tensors at once. If one fails, waits for the others before it throws. Throws
/// std::bad_alloc at once, which ends the job: another rank may run out of memory at another
/// tensor.
void broadcast_all(const std::vector<NamedTensor>& tensors, int root,
                   const ProcessSet& process_set) {
    std::vector<Handle> handles;
    handles.reserve(tensors.size());
    std::exception_ptr first;
    const auto attempt = [&](auto&& step) {
        try {
            step();
        } catch (const std::bad_alloc&) {
            throw;
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    };
    for (const auto& [name, tensor] : tensors)
        attempt([&] {
            handles.push_back(
                broadcast_async(tensor, root, {.name = name, .process_set = process_set}));
        });
    for (const auto& handle : handles) attempt([&] { handle.wait(); });
    if (first) std::rethrow_exception(first);
}

}  // namespace

void broadcast_parameters(std::span<const Parameter> parameters, int root,
                          const ProcessSet& process_set) {
    as_one("broadcast_parameters", process_set, [&] {
        require_same("broadcast_parameters", parameters, process_set);
        std::vector<NamedTensor> values;
        for (const auto& [name, value, gradient] : parameters)
            values.push_back({"broadcast_parameters/" + name, value});
        broadcast_all(values, root, process_set);
    });
}

void broadcast_bytes(std::string& bytes, int root, const ProcessSet& process_set) {
    as_one("broadcast_bytes", process_set, [&] {
        auto length = static_cast<std::int64_t>(bytes.size());
        broadcast(length, root, {.name = "broadcast_bytes/length", .process_set = process_set});
        bytes.resize(static_cast<std::size_t>(length));
        broadcast(TensorView(bytes.data(), DType::u8, {length}), root,
                  {.name = "broadcast_bytes", .process_set = process_set});
    });
}

std::vector<std::string> all_gather_bytes(std::string_view bytes, const ProcessSet& process_set) {
    return as_one("all_gather_bytes", process_set,
                  [&] { return gather_bytes(bytes, "all_gather_bytes", process_set); });
}

void OptimizerState::operator()(std::string name, const TensorView& tensor) {
    if (!tensors_.emplace(name, tensor).second)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("broadcast_optimizer_state: two parts of the state are called {}",
                                base::quote(name)),
                    {.tensor = name, .operation = "broadcast_optimizer_state"});
}

void OptimizerState::broadcast(int root, const ProcessSet& process_set) const {
    as_one("broadcast_optimizer_state", process_set, [&] {
        const std::string operation = "broadcast_optimizer_state";
        Names own;
        std::vector<NamedTensor> tensors;
        for (const auto& [name, tensor] : tensors_) {
            own.insert(fmt::format("{} {} [{}]", name, name_of(tensor.dtype),
                                   fmt::join(tensor.shape, ", ")));
            tensors.push_back({fmt::format("{}/{}", operation, name), tensor});
        }
        require_same(operation, "states", own, process_set);
        broadcast_all(tensors, root, process_set);
    });
}

void check_consistent(std::span<const Parameter> parameters, const ProcessSet& process_set,
                      const std::optional<StreamRef>& stream) {
    as_one("check_consistent", process_set, [&] {
        std::vector<std::int64_t> hashes;
        for (const auto& [name, value, gradient] : parameters) {
            const auto label =
                fmt::format("{} {} [{}]", name, name_of(value.dtype), fmt::join(value.shape, ","));
            hashes.push_back(static_cast<std::int64_t>(
                hash(TensorView(const_cast<char*>(label.data()), DType::u8, {std::ssize(label)}))));
            hashes.push_back(static_cast<std::int64_t>(
                hash(value, {.stream = stream, .process_set = process_set})));
        }
        require_same("check_consistent", parameters, process_set);
        const auto by_rank = gather_from_active(hashes, "check_consistent", process_set);
        const auto refuse = [](const std::string& text, const std::string& tensor,
                               std::vector<int> others) {
            throw Error(
                ErrorCode::mismatch, "check_consistent: " + text,
                {.tensor = tensor, .operation = "check_consistent", .ranks = std::move(others)});
        };
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            const auto& name = parameters[i].name;
            const int first = by_rank.begin()->first;
            if (const auto others = dissenters(by_rank, 2 * i); !others.empty())
                refuse(
                    fmt::format("parameter {}, here {}, has another place, dtype or shape on rank "
                                "{} than on {}",
                                i, base::quote(name), first, list_of(others)),
                    name, others);
            if (const auto others = dissenters(by_rank, 2 * i + 1); !others.empty())
                refuse(fmt::format("{} holds other values on {} than on rank {}", base::quote(name),
                                   list_of(others), first),
                       name, others);
        }
    });
}

std::map<std::string, double> average_metrics(const std::map<std::string, double>& metrics,
                                              const ProcessSet& process_set) {
    return as_one("average_metrics", process_set, [&] {
        const auto keys = metrics | std::views::keys;
        require_same("average_metrics", "keys", {keys.begin(), keys.end()}, process_set);
        std::vector<double> values;
        for (const auto& [key, value] : metrics) values.push_back(value);
        allreduce(values, {.name = "average_metrics/values",
                           .op = ReduceOp::average,
                           .process_set = process_set});
        auto averaged = metrics;
        auto next = values.begin();
        for (auto& [key, value] : averaged) value = *next++;
        return averaged;
    });
}

double clip_by_global_norm(std::span<const Parameter> parameters, double max_norm,
                           const ElementOptions& options) {
    if (!(max_norm >= 0))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("clip_by_global_norm: max_norm is {}; it must be 0 at least "
                                "(infinity: nothing is clipped)",
                                max_norm),
                    {.operation = "clip_by_global_norm"});
    std::vector<TensorView> gradients;
    for (const auto& [name, value, gradient] : parameters) {
        if (!is_floating(gradient.dtype))
            throw Error(ErrorCode::invalid_argument,
                        fmt::format("clip_by_global_norm: the gradient of {} is {}; f16, bf16, "
                                    "f32 and f64 can be clipped",
                                    base::quote(name), name_of(gradient.dtype)),
                        {.tensor = name, .operation = "clip_by_global_norm"});
        gradients.push_back(gradient);
    }
    const double before = norm(gradients, options);
    if (before > max_norm)
        for (const auto& gradient : gradients) scale(gradient, max_norm / before, options);
    return before;
}

double scale_learning_rate(double rate, const ProcessSet& process_set) {
    return rate * process_set.size();
}

std::size_t steps_per_epoch(std::size_t samples, std::size_t batch, const ProcessSet& process_set) {
    if (batch == 0) throw Error(ErrorCode::invalid_argument, "steps_per_epoch: the batch is 0");
    const auto per_step = batch * static_cast<std::size_t>(process_set.size());
    return (samples + per_step - 1) / per_step;
}

void print_once(std::string_view line, const ProcessSet& process_set) {
    if (process_set.rank() != 0) return;
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
}

}  // namespace guozhuang
