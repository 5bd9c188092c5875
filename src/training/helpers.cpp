#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <guozhuang/error.hpp>
#include <guozhuang/operations.hpp>
#include <guozhuang/training.hpp>
#include <ranges>
#include <vector>

namespace guozhuang {
namespace {

Session& session_of(Session* session) {
    return session != nullptr ? *session : Session::current();
}

/// FNV-1a over 8 bytes at a time: enough to see that two buffers differ.
std::uint64_t hash_of(std::span<const std::byte> memory) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325u ^ memory.size();
    while (!memory.empty()) {
        std::uint64_t word = 0;
        const auto bytes = std::min(memory.size(), sizeof(word));
        std::memcpy(&word, memory.data(), bytes);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 32;
        memory = memory.subspan(bytes);
    }
    return hash;
}

/// Every rank's elements, rank by rank.
template <Element T>
std::vector<std::vector<T>> gather(std::vector<T> elements, const std::string& name, Session& session) {
    const Result result = all_gather(elements, {.name = name, .session = &session});
    const auto flat = result.as<T>();
    std::vector<std::vector<T>> by_rank;
    auto next = flat.begin();
    for (const auto rows : result.rows) {
        by_rank.emplace_back(next, next + rows);
        next += rows;
    }
    return by_rank;
}

/// The ranks whose number at `place` is not rank 0's.
std::vector<int> dissenters(const std::vector<std::vector<std::int64_t>>& by_rank, std::size_t place) {
    std::vector<int> ranks;
    for (std::size_t rank = 1; rank < by_rank.size(); ++rank)
        if (by_rank[rank][place] != by_rank[0][place]) ranks.push_back(static_cast<int>(rank));
    return ranks;
}

/// "rank 2", "ranks 0,1,3".
std::string list_of(std::span<const int> ranks) {
    return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ","));
}

/// Throws on every rank, with the keys of each side, unless all ranks pass the same.
void require_same_keys(const std::map<std::string, double>& metrics, Session& session) {
    const auto own = metrics.empty() ? std::string("none") : fmt::format("'{}'", fmt::join(metrics | std::views::keys, "', '"));
    const auto by_rank = gather(std::vector<std::uint8_t>(own.begin(), own.end()), "average_metrics/keys", session);
    using Side = std::pair<std::vector<std::uint8_t>, std::vector<int>>;  // keys, and the ranks that passed them
    std::vector<Side> sides;                                              // in the order of their first ranks
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
        auto side = std::ranges::find(sides, by_rank[rank], &Side::first);
        if (side == sides.end()) side = sides.insert(side, {by_rank[rank], {}});
        side->second.push_back(static_cast<int>(rank));
    }
    if (sides.size() == 1) return;
    std::string text;
    std::vector<int> odd;
    for (const auto& [keys, ranks] : sides) {
        text += fmt::format("{} {} on {}", text.empty() ? "" : ";", std::string(keys.begin(), keys.end()), list_of(ranks));
        if (ranks.front() != 0) odd.insert(odd.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(odd);
    throw Error(ErrorCode::mismatch, "average_metrics: keys differ:" + text, {.tensor = {}, .operation = "average_metrics", .ranks = odd});
}

void require_host(const TensorView& tensor, const std::string& name, const std::string& operation) {
    if (tensor.device.kind == DeviceKind::cuda)
        throw Error(ErrorCode::unavailable,
                    fmt::format("{}: '{}' is in the memory of a {} device; copy it to the host first", operation, name,
                                name_of(tensor.device.kind)),
                    {.tensor = name, .operation = operation, .ranks = {}});
}

template <class T>
double sum_of_squares(const TensorView& tensor) {
    double sum = 0;
    for (const T element : std::span(static_cast<const T*>(tensor.data), tensor.count()))
        sum += static_cast<double>(element) * static_cast<double>(element);
    return sum;
}

template <class T>
void scale(const TensorView& tensor, double factor) {
    for (T& element : std::span(static_cast<T*>(tensor.data), tensor.count()))
        element = static_cast<T>(static_cast<double>(element) * factor);
}

}  // namespace

void broadcast_parameters(std::span<const Parameter> parameters, int root, Session* session) {
    auto& chosen = session_of(session);
    std::vector<Handle> handles;
    handles.reserve(parameters.size());
    std::exception_ptr first;
    const auto attempt = [&](auto&& step) {
        try {
            step();
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    };
    for (const auto& parameter : parameters)
        attempt([&] {
            handles.push_back(
                broadcast_async(parameter.value, root, {.name = "broadcast_parameters/" + parameter.name, .session = &chosen}));
        });
    for (const auto& handle : handles) attempt([&] { handle.wait(); });
    if (first) std::rethrow_exception(first);
}

void check_consistent(std::span<const Parameter> parameters, Session* session) {
    std::vector<std::int64_t> hashes;
    for (const auto& [name, value, gradient] : parameters) {
        require_host(value, name, "check_consistent");
        const auto label = fmt::format("{} {} [{}]", name, name_of(value.dtype), fmt::join(value.shape, ","));
        hashes.push_back(static_cast<std::int64_t>(hash_of(std::as_bytes(std::span(label)))));
        hashes.push_back(static_cast<std::int64_t>(hash_of(value.memory())));
    }
    const auto by_rank = gather(hashes, "check_consistent", session_of(session));
    const auto refuse = [](const std::string& text, const std::string& tensor, std::vector<int> ranks) {
        throw Error(ErrorCode::mismatch, "check_consistent: " + text,
                    {.tensor = tensor, .operation = "check_consistent", .ranks = std::move(ranks)});
    };
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank)
        if (by_rank[rank].size() != by_rank[0].size())
            refuse(fmt::format("{} parameters on rank 0; {} on rank {}", by_rank[0].size() / 2, by_rank[rank].size() / 2, rank), {},
                   {static_cast<int>(rank)});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& name = parameters[i].name;
        if (const auto ranks = dissenters(by_rank, 2 * i); !ranks.empty())
            refuse(fmt::format("parameter {}, here '{}', has another name, dtype or shape on rank 0 than on {}", i, name, list_of(ranks)),
                   name, ranks);
        if (const auto ranks = dissenters(by_rank, 2 * i + 1); !ranks.empty())
            refuse(fmt::format("'{}' holds other values on {} than on rank 0", name, list_of(ranks)), name, ranks);
    }
}

std::map<std::string, double> average_metrics(const std::map<std::string, double>& metrics, Session* session) {
    auto& chosen = session_of(session);
    require_same_keys(metrics, chosen);
    std::vector<double> values;
    for (const auto& [key, value] : metrics) values.push_back(value);
    allreduce(values, {.name = "average_metrics/values", .op = ReduceOp::average, .session = &chosen});
    auto averaged = metrics;
    auto next = values.begin();
    for (auto& [key, value] : averaged) value = *next++;
    return averaged;
}

double clip_by_global_norm(std::span<const Parameter> parameters, double max_norm) {
    double sum = 0;
    for (const auto& [name, value, gradient] : parameters) {
        require_host(gradient, name, "clip_by_global_norm");
        if (gradient.dtype != DType::f32 && gradient.dtype != DType::f64)
            throw Error(
                ErrorCode::invalid_argument,
                fmt::format("clip_by_global_norm: the gradient of '{}' is {}; f32 and f64 can be clipped", name, name_of(gradient.dtype)),
                {.tensor = name, .operation = "clip_by_global_norm", .ranks = {}});
        sum += gradient.dtype == DType::f32 ? sum_of_squares<float>(gradient) : sum_of_squares<double>(gradient);
    }
    const double norm = std::sqrt(sum);
    if (norm > max_norm)
        for (const auto& [name, value, gradient] : parameters)
            gradient.dtype == DType::f32 ? scale<float>(gradient, max_norm / norm) : scale<double>(gradient, max_norm / norm);
    return norm;
}

double scale_learning_rate(double rate, Session* session) {
    return rate * session_of(session).size();
}

std::size_t steps_per_epoch(std::size_t samples, std::size_t batch, Session* session) {
    if (batch == 0) throw Error(ErrorCode::invalid_argument, "steps_per_epoch: the batch is 0");
    const auto per_step = batch * static_cast<std::size_t>(session_of(session).size());
    return (samples + per_step - 1) / per_step;
}

void print_once(std::string_view line, Session* session) {
    if (session_of(session).rank() != 0) return;
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
}

}  // namespace guozhuang
