#include "runtime/handshake.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <guozhuang/error.hpp>
#include <guozhuang/version.hpp>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error_text.hpp"
#include "base/log.hpp"
#include "protocol/codec.hpp"
#include "wire/group/control_channel.hpp"

namespace guozhuang {
namespace {

constexpr auto time_to_hear = std::chrono::minutes(5);
constexpr auto head_start = std::chrono::seconds(5);  // for rank 0, which knows best who is missing

/// One rank's message: a value for each key, then its warnings. The refusal says what it cannot
/// accept, if anything.
using Facts = std::vector<std::string>;
constexpr std::size_t first_setting = 2;  // behind the version and the refusal

std::vector<std::string> keys() {
    std::vector<std::string> names{"version", "refusal"};
    for (const auto& row : base::config_table())
        if (row.scope == base::ConfigScope::rank0_wins) names.emplace_back(row.name);
    return names;
}

Facts facts_of(const base::Config& config, std::string_view refusal,
               const std::vector<std::string>& warnings) {
    Facts facts{version(), std::string(refusal)};
    for (const auto& row : base::config_table())
        if (row.scope == base::ConfigScope::rank0_wins) facts.push_back(row.print(config));
    facts.insert(facts.end(), warnings.begin(), warnings.end());
    return facts;
}

/// Returns this rank's settings with rank 0's values where rank 0 decides.
base::Config adopt(base::Config own, std::span<const std::string> values) {
    auto value = values.begin();
    for (const auto& row : base::config_table()) {
        if (row.scope != base::ConfigScope::rank0_wins) continue;
        if (value == values.end() || !row.parse(own, *value))
            throw Error(ErrorCode::wire,
                        fmt::format("init: what rank 0 says of {} makes no sense", row.name),
                        {.operation = "init", .ranks = {0}});
        ++value;
    }
    return own;
}

/// "2.0 on ranks 0,1; 2.1 on rank 2", or nothing if all say the same.
std::string differences(const std::vector<Facts>& facts, std::size_t key) {
    std::map<std::string, std::vector<int>> sides;
    for (std::size_t rank = 0; rank < facts.size(); ++rank)
        sides[facts[rank][key]].push_back(static_cast<int>(rank));
    if (sides.size() == 1) return {};
    std::string text;
    for (const auto& [value, ranks] : sides)
        text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", value, base::list_ranks(ranks));
    return text;
}

/// Each text in these columns once, with the ranks that gave it unless all did.
std::vector<std::string> texts_of(const std::vector<Facts>& facts, std::size_t first,
                                  std::size_t last) {
    std::map<std::string, std::vector<int>> given;
    for (std::size_t rank = 0; rank < facts.size(); ++rank)
        for (std::size_t i = first; i < std::min(last, facts[rank].size()); ++i)
            if (!facts[rank][i].empty()) given[facts[rank][i]].push_back(static_cast<int>(rank));
    std::vector<std::string> texts;
    for (const auto& [text, ranks] : given)
        texts.push_back(ranks.size() == facts.size()
                            ? text
                            : fmt::format("{} (on {})", text, base::list_ranks(ranks)));
    return texts;
}

class Handshake {
public:
    explicit Handshake(wire::Transport& transport)
        : transport_(transport),
          channel_(transport, {wire::job_context}, topology::all_ranks(transport.size())),
          deadline_(base::Clock::now() + time_to_hear +
                    (transport.rank() == 0 ? std::chrono::seconds(0) : head_start)) {}

    /// The verdict of rank 0, for everybody; empty if all is well.
    std::string judge(Facts own) {
        const auto names = keys();
        std::vector<Facts> facts(static_cast<std::size_t>(transport_.size()));
        facts[0] = std::move(own);
        for (std::size_t heard = 1; heard < facts.size(); ++heard) {
            const auto message = next(facts);
            protocol::Reader in(message.bytes);
            auto& theirs = facts[static_cast<std::size_t>(message.from)];
            if (!theirs.empty())
                throw Error(ErrorCode::wire,
                            fmt::format("rank {} has introduced itself twice", message.from),
                            {.operation = "init", .ranks = {message.from}});
            while (!in.at_end()) theirs.push_back(in.string());
            // A rank of another version may know fewer facts.
            if (theirs.size() < names.size()) theirs.resize(names.size(), "(unknown)");
        }
        if (const auto versions = differences(facts, 0); !versions.empty())
            return fmt::format("the ranks run different versions of the library: {}", versions);
        if (const auto refusals = texts_of(facts, 1, 2); !refusals.empty())
            return fmt::format("{}", fmt::join(refusals, "; "));
        for (std::size_t key = first_setting; key < names.size(); ++key)
            if (const auto values = differences(facts, key); !values.empty())
                base::log_warning(
                    fmt::format("{} differs: {}; rank 0's holds for all", names[key], values));
        for (const auto& warning : texts_of(facts, names.size(), std::string::npos))
            base::log_warning(warning);
        const auto hosts = transport_.topology().hosts();
        base::log_info(fmt::format("version {}: {} rank{} on {} host{}, {}, shared memory: {}",
                                   version(), transport_.size(), transport_.size() == 1 ? "" : "s",
                                   hosts, hosts == 1 ? "" : "s", transport_.description(),
                                   transport_.stage_bytes() == 0 ? "no" : "yes"));
        return {};
    }

    void tell(int to, const Facts& facts) {
        protocol::Writer out;
        for (const auto& fact : facts)
            out.string(std::string_view(fact).substr(0, protocol::max_name_bytes));
        channel_.send(to, out.take());
    }

    /// The verdict of rank 0, and the settings that it decides.
    Facts hear() {
        const auto message = next({});
        protocol::Reader in(message.bytes);
        Facts facts{in.string()};
        while (!in.at_end()) facts.push_back(in.string());
        return facts;
    }

    void flush() {
        if (!base::wait_until(
                transport_.doorbell(), transport_.wait_settings(),
                [&] { return channel_.flushed(); }, base::deadline_after(time_to_hear)))
            throw Error(
                ErrorCode::timeout,
                fmt::format("init: {} took no message for {} minutes",
                            transport_.rank() == 0 ? "another rank" : "rank 0",
                            time_to_hear.count()),
                {.operation = "init", .ranks = std::vector(transport_.rank() == 0 ? 0U : 1U, 0)});
    }

private:
    engine::Control::Message next(const std::vector<Facts>& so_far) {
        std::optional<engine::Control::Message> message;
        if (!base::wait_until(
                transport_.doorbell(), transport_.wait_settings(),
                [&] { return (message = channel_.poll()).has_value(); }, deadline_)) {
            std::vector<int> missing{0};
            if (!so_far.empty()) missing.clear();
            for (std::size_t rank = 1; rank < so_far.size(); ++rank)
                if (so_far[rank].empty()) missing.push_back(static_cast<int>(rank));
            auto text = fmt::format("init: nothing was heard of {} for {} minutes",
                                    base::list_ranks(missing), time_to_hear.count());
            for (const int rank : missing)
                if (const auto status = transport_.look_at(rank); status && !status->is_awaited)
                    text += fmt::format("; rank {}: {}", rank, status->process);
            throw Error(ErrorCode::timeout, text, {.operation = "init", .ranks = missing});
        }
        return std::move(*message);
    }

    wire::Transport& transport_;
    wire::ControlChannel channel_;
    base::Deadline deadline_;
};

}  // namespace

base::Config run_handshake(wire::Transport& transport, const base::Config& config,
                           std::string_view refusal, const std::vector<std::string>& warnings) {
    Handshake handshake(transport);
    const auto own = facts_of(config, refusal, warnings);
    Facts told{""};
    if (transport.rank() == 0) {
        told.front() = handshake.judge(own);
        const auto decided = facts_of(config, {}, {});
        told.insert(told.end(), decided.begin() + first_setting, decided.end());
        for (int rank = 1; rank < transport.size(); ++rank) handshake.tell(rank, told);
    } else {
        handshake.tell(0, own);
        told = handshake.hear();
    }
    handshake.flush();
    if (!told.front().empty()) throw Error(ErrorCode::configuration, told.front());
    return adopt(config, std::span(told).subspan(1));
}

}  // namespace guozhuang
