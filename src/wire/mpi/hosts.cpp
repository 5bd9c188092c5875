#include "wire/mpi/hosts.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <map>
#include <utility>

#include "base/error_text.hpp"
#include "base/failpoint.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "device/or_reason.hpp"
#include "topology/host_grid.hpp"
#include "topology/machine.hpp"
#include "wire/mpi/mpi_library.hpp"
#include "wire/mpi/mpi_transport.hpp"
#include "wire/shm/share_together.hpp"

namespace guozhuang::wire::mpi {
namespace {

constexpr auto time_to_link = std::chrono::seconds(5);
constexpr auto time_to_answer = std::chrono::milliseconds(500);  ///< after that

/// Gathers a value from each rank of the communicator, by rank, as plain bytes.
template <class T>
std::vector<T> gather(MPI_Comm communicator, const T& mine) {
    int size = 0;
    check(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
    std::vector<T> all(static_cast<std::size_t>(size));
    constexpr int bytes = sizeof mine;
    check(MPI_Allgather(&mine, bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, communicator),
          "MPI_Allgather");
    return all;
}

/// The first rank of every rank's host, by rank.
std::vector<int> first_ranks(MPI_Comm world, int rank, MPI_Comm host) {
    int first = 0;
    check(MPI_Allreduce(&rank, &first, 1, MPI_INT, MPI_MIN, host), "MPI_Allreduce");
    return gather(world, first);
}

void sort_into_hosts(const std::vector<int>& first_of, int rank, Host& host) {
    std::map<int, int> numbers;  // of the hosts, by their first rank
    host.topology = {.rank = rank, .host_of = {}};
    for (const int first : first_of)
        host.topology.host_of.push_back(
            numbers.try_emplace(first, static_cast<int>(numbers.size())).first->second);
    host.hosts = static_cast<int>(numbers.size());
    const topology::HostGrid grid(host.topology.host_of, rank);
    host.ranks = grid.local();
    host.local_rank = grid.local_rank();
}

std::vector<Monitor::WatchedProcess> others_of(MPI_Comm host_comm, const Host& host) {
    auto processes = gather(host_comm, base::this_process());
    for (auto& process : processes) base::look_up(process);
    std::vector<Monitor::WatchedProcess> others;
    for (std::size_t i = 0; i < processes.size(); ++i)
        if (std::cmp_not_equal(i, host.local_rank)) others.push_back({host.ranks[i], processes[i]});
    return others;
}

/// Makes an object that this rank can do without.
template <class Make>
auto attempt(Make&& make) -> device::OrReason<decltype(make())> {
    try {
        return {make(), {}};
    } catch (const std::exception& error) {  // the other ranks wait for the answer, whatever it is
        return {nullptr, error.what()};
    }
}

/// Each rank sends this to all others, as plain bytes.
struct Introduction {
    base::ProcessId process = {};
    std::array<char, 65> host{};  ///< as long as Linux permits
    Endpoint links = {}, bells = {};
};

/// Sends to one rank and receives from another, which both do the same.
template <class T>
T exchange(MPI_Comm world, const T& mine, int to, int from) {
    T theirs{};
    constexpr int bytes = sizeof mine;
    check(MPI_Sendrecv(&mine, bytes, MPI_BYTE, to, 0, &theirs, bytes, MPI_BYTE, from, 0, world,
                       MPI_STATUS_IGNORE),
          "MPI_Sendrecv");
    return theirs;
}

/// The first ranks of the hosts before and after this one.
std::pair<int, int> neighbours_of(const Host& host) {
    const auto& [rank, host_of, shares_cores, round_trip] = host.topology;
    const auto first_rank_of = [&](int which) {
        return static_cast<int>(std::ranges::find(host_of, (which + host.hosts) % host.hosts) -
                                host_of.begin());
    };
    const int here = host_of[static_cast<std::size_t>(rank)];
    return {first_rank_of(here - 1), first_rank_of(here + 1)};
}

/// How long a message to the next host and its answer take, in the fastest of these rounds. Returns
/// the longest time of all hosts.
std::chrono::nanoseconds measure_round_trip(MPI_Comm world, const Host& host, int rounds) {
    std::chrono::nanoseconds fastest{0};
    if (host.local_rank == 0) {
        const auto [before, after] = neighbours_of(host);
        fastest = std::chrono::nanoseconds::max();
        for (int round = 0; round < rounds; ++round) {
            const auto start = base::Clock::now();
            exchange(world, round, after, before);
            exchange(world, round, before, after);
            fastest = std::min<std::chrono::nanoseconds>(fastest, base::Clock::now() - start);
        }
    }
    std::int64_t longest = fastest.count();
    check(MPI_Allreduce(MPI_IN_PLACE, &longest, 1, MPI_INT64_T, MPI_MAX, world), "MPI_Allreduce");
    return std::chrono::nanoseconds(longest);
}

/// On short links in more rounds, since busy cores delay some.
std::chrono::nanoseconds measure_round_trip(MPI_Comm world, const Host& host) {
    if (host.hosts == 1) return {};
    constexpr auto short_round_trip = std::chrono::milliseconds(10);
    auto round_trip = measure_round_trip(world, host, 3);
    if (round_trip < short_round_trip)
        round_trip = std::min(round_trip, measure_round_trip(world, host, 30));
    base::log(LogLevel::debug, "a round trip between hosts takes {} us",
              std::chrono::duration_cast<std::chrono::microseconds>(round_trip).count());
    return round_trip;
}

/// The ranks of the next host (step 1) or the one before (-1) that this rank is linked with. Every
/// rank of two neighbouring hosts has a link across: those with the same local rank, where the host
/// with fewer ranks counts around. From the last host to the first it is the local rank after that:
/// of two hosts, each rank has links to two of the other.
std::vector<int> partners_of(const Host& host, int step) {
    const auto& host_of = host.topology.host_of;
    const int here = host_of[static_cast<std::size_t>(host.topology.rank)];
    std::vector<int> there;
    for (int rank = 0; rank < host.topology.size(); ++rank)
        if (host_of[static_cast<std::size_t>(rank)] == (here + step + host.hosts) % host.hosts)
            there.push_back(rank);
    const std::size_t shift = here + step == host.hosts || here + step < 0 ? 1 : 0;
    std::vector<int> partners;
    for (std::size_t number = 0; number < std::max(host.ranks.size(), there.size()); ++number) {
        const auto shifted = number + shift;
        const auto own = (step > 0 ? number : shifted) % host.ranks.size();
        if (std::cmp_equal(own, host.local_rank))
            partners.push_back(there[(step > 0 ? shifted : number) % there.size()]);
    }
    return partners;
}

/// The ranks on which the condition does not hold.
std::vector<int> exceptions(MPI_Comm world, bool here) {
    const auto holds = gather(world, here ? 1 : 0);
    std::vector<int> ranks;
    for (int rank = 0; std::cmp_less(rank, holds.size()); ++rank)
        if (holds[static_cast<std::size_t>(rank)] == 0) ranks.push_back(rank);
    return ranks;
}

/// Accepts a link from each of these ranks. Returns why some are missing; empty: none is.
template <class Add>
std::string accept_links(device::OrReason<std::unique_ptr<HostListener>>& listener,
                         std::vector<int> callers, base::Deadline deadline, const Add& add) {
    try {
        while (listener.value && !callers.empty()) {
            auto [rank, link] = listener.value->accept(deadline);
            if (std::erase(callers, rank) != 0) add(rank, std::move(link));
        }
    } catch (const std::exception& error) {
        return error.what();
    }
    return listener.reason;
}

/// Links this rank with ranks of the hosts before and after, so that somebody hears of a death even
/// if nobody on its host is left to report it, or all others there are stopped. If an address leads
/// to another process, the rank tries the next one; all ranks go on until nobody has one left, or
/// time.
std::vector<Monitor::WatchedProcess> link_hosts(
    MPI_Comm world, const Host& host, device::OrReason<std::unique_ptr<HostListener>>& listener,
    const std::vector<Introduction>& all, std::chrono::milliseconds silence) {
    const auto level = host.local_rank == 0 ? LogLevel::warning : LogLevel::debug;
    const auto of = [&](int rank) -> auto& { return all[static_cast<std::size_t>(rank)]; };
    std::vector<Monitor::WatchedProcess> linked;
    const auto add = [&](int rank, std::shared_ptr<HostLink> link) {
        link->limit_silence(silence);
        linked.push_back({rank, of(rank).process, of(rank).host.data(), std::move(link)});
    };
    std::map<int, device::OrReason<std::shared_ptr<HostLink>>> onward;
    const auto connect = [&](int rank, const Endpoint& to) {
        onward[rank] = attempt([&] {
            return std::make_shared<HostLink>(to, host.topology.rank,
                                              base::deadline_after(time_to_link));
        });
    };
    const auto end = base::deadline_after(2 * time_to_link);
    for (const int rank : partners_of(host, 1)) connect(rank, of(rank).links);
    auto callers = partners_of(host, -1);
    std::string missing;
    const auto is_open = [](const auto& link) { return link.second.value != nullptr; };
    do {
        auto calling = callers;
        for (const int rank : exceptions(world, std::ranges::any_of(onward, is_open)))
            std::erase(calling, rank);
        const auto deadline = base::deadline_after(time_to_link);
        const auto accept = [&](int rank, auto link) {
            std::erase(callers, rank);
            add(rank, std::move(link));
        };
        missing = std::max(missing, accept_links(listener, calling, deadline, accept));
        for (auto& [rank, open] : onward) {
            const auto link = std::exchange(open.value, nullptr);
            const bool is_linked = link && link->is_accepted(deadline + time_to_answer);
            if (is_linked) add(rank, link);
            if (!link || is_linked) continue;
            link->close();
            open.reason = "it has not answered";
            if (base::Clock::now() < end) connect(rank, link->rest());
        }
    } while (!exceptions(world, std::ranges::none_of(onward, is_open)).empty());
    for (const int rank : missing.empty() ? std::vector<int>() : callers)
        base::log(level, "rank {} (host {}) cannot connect with this one: {}", rank,
                  of(rank).host.data(), missing);
    for (const auto& [rank, link] : onward)
        if (!link.reason.empty())
            base::log(
                level,
                "no TCP connection with rank {} (host {}): {}; should all ranks of a host die at "
                "once, the others may not notice (GUOZHUANG_STALL_ERROR_S limits how long they "
                "wait)",
                rank, of(rank).host.data(), link.reason);
    return linked;
}

void meet_other_hosts(MPI_Comm world, const base::Config& config, Host& host) {
    if (host.hosts == 1) return;
    auto listener = attempt([] { return std::make_unique<HostListener>(); });
    auto bells = attempt([] { return std::make_unique<RemoteBells>(); });
    Introduction mine{.process = base::this_process()};
    base::host_name().copy(mine.host.data(), mine.host.size() - 1);
    if (listener.value) mine.links = listener.value->endpoint();
    if (bells.value) mine.bells = bells.value->endpoint();
    const auto all = gather(world, mine);
    host.linked = link_hosts(world, host, listener, all, config.limits.silent_host);
    host.remote_bells = std::move(bells.value);
    if (!host.remote_bells) return base::log_info("no bell for other hosts: " + bells.reason);
    std::vector<Endpoint> endpoints;
    for (const auto& each : all) endpoints.push_back(each.bells);
    host.remote_bells->connect(host.topology.rank, std::move(endpoints));
}

/// Follows affinity and quotas.
int cores_together(MPI_Comm machine) {
    const auto& mine = topology::this_machine();
    topology::CoreMask all{};
    check(MPI_Allreduce(mine.cores.data(), all.data(), static_cast<int>(all.size()), MPI_UINT64_T,
                        MPI_BOR, machine),
          "MPI_Allreduce");
    return topology::cores_within(topology::count(all), gather(machine, mine.quota));
}

/// All ranks of a host have the memory, or none has: a rank that others cannot ring must not sleep
/// until somebody rings.
std::optional<HostMemory> share_memory(MPI_Comm host_comm, const Host& host, bool wanted) {
    if (exceptions(host_comm, wanted).size() == host.ranks.size()) return std::nullopt;
    const auto ranks = static_cast<int>(host.ranks.size());
    std::optional<HostMemory> memory;
    const auto failure = share_together(
        [&](const auto& own) { return gather(host_comm, own); },
        [&] {
            if (!wanted)
                throw Error(
                    ErrorCode::unavailable,
                    fmt::format("GUOZHUANG_SHARED_MEMORY=0 on rank {}", host.topology.rank));
            if (host.local_rank != 0) return HostMemory::Offer();
            return memory.emplace(HostMemory::create(ranks)).offer();
        },
        [&](const std::vector<HostMemory::Offer>& offers) {
            if (host.local_rank != 0) memory = HostMemory::attach(offers.front(), ranks);
        });
    if (!failure) {
        memory->close_file();
        return memory;
    }
    if (failure->rank == host.local_rank) {
        base::log_warning(
            fmt::format("no memory shared by the ranks of this host ({}): data travels as MPI "
                        "messages, and waiting ranks look for "
                        "messages at intervals of up to 1 ms instead of being woken",
                        failure->cause));
    }
    return std::nullopt;
}

/// A rank of this host; empty if it is not, or shares no memory.
std::optional<trace::RankStatus> look_at_neighbour(Host& host, int rank) {
    const auto* const activity = activity_of(host, rank);
    if (activity == nullptr) return std::nullopt;
    const auto other = std::ranges::find(host.others, rank, &Monitor::WatchedProcess::rank);
    const auto process = other == host.others.end() ? base::this_process() : other->id;
    const auto state = base::is_visible(process) ? base::state_of(process) : "";
    return trace::status_of(
        *activity, fmt::format("pid {}{}{}", process.pid, state.empty() ? "" : ", ", state),
        state.starts_with("stopped"));
}

}  // namespace

bool rings_for_all(const Host& host) noexcept {
    return host.hosts == 1 && host.memory;
}

base::WaitSettings wait_settings_of(const Host& host, const base::Config& config) {
    auto settings = topology::wait_settings(host.machine_ranks, host.cores);
    // A message wakes its receiver, so looking without being woken is only a safety net.
    if (host.memory && (host.hosts == 1 || host.remote_bells)) {
        settings.sleep_limit = std::chrono::milliseconds(10);
        settings.long_sleep_limit = std::chrono::milliseconds(50);
    }
    if (!rings_for_all(host)) settings.idle_limit = std::chrono::milliseconds(100);
    if (config.spin_us) settings.spin = std::chrono::microseconds(*config.spin_us);
    return settings;
}

std::optional<std::chrono::milliseconds> time_to_end(const base::Config& config) {
    if (!config.exit_on_death) return std::nullopt;
    return std::max(base::time_to_unwind, config.limits.shrink);
}

Monitor::Source rings_of(Host& host, base::Doorbell& bell) {
    if (!host.remote_bells) return {-1, {}};
    const auto look = [&host](int rank) { return look_at_neighbour(host, rank); };
    return {host.remote_bells->descriptor(),
            [&host, &bell, look] { return host.remote_bells->receive(bell, look); }};
}

std::uint32_t longest_sleep_us(const Host& host, bool is_moving) noexcept {
    if (is_moving) return static_cast<std::uint32_t>(base::longest_sleep_for_messages.count());
    return host.remote_bells && host.remote_bells->are_silent() ? 1000 : ~std::uint32_t{0};
}

std::vector<Monitor::WatchedProcess> watched_by(const Host& host) {
    auto all = host.others;
    all.insert(all.end(), host.linked.begin(), host.linked.end());
    return all;
}

std::tuple<int, std::string, ErrorCode> describe_end(const Monitor::End& end,
                                                     const trace::Activity* theirs,
                                                     const base::Doorbell* bell) {
    const int rank = end.process.rank;
    std::string reason(end.process.link ? end.process.link->reason() : "");
    if (const auto note = theirs != nullptr ? theirs->quit_reason.read() : std::nullopt)
        reason = note->text;
    auto text = fmt::format("rank {} has shut down ({})", rank, reason);
    if (reason.empty())
        text = describe_death(end, theirs != nullptr ? trace::describe(*theirs) : "");
    const auto first = bell != nullptr ? base::noted_cause(*bell) : std::nullopt;
    // Unless another rank of the host has noted this very end.
    if (first && (first->rank != rank || first->code != ErrorCode::rank_died))
        return {first->rank, fmt::format("{}; {}", first->text, text), first->code};
    return {rank, text, reason.empty() ? ErrorCode::rank_died : ErrorCode::departed};
}

trace::Activity* activity_of(Host& host, int rank) {
    const auto found = std::ranges::lower_bound(host.ranks, rank);
    if (!host.memory || found == host.ranks.end() || *found != rank) return nullptr;
    return &host.memory->activity(static_cast<int>(found - host.ranks.begin()));
}

std::optional<trace::RankStatus> look_at(Host& host, int rank) {
    if (!host.topology.is_far(rank)) return look_at_neighbour(host, rank);
    if (!host.remote_bells) return std::nullopt;
    const auto& host_of = host.topology.host_of;
    std::vector<int> there{rank};
    for (int other = 0; other < host.topology.size(); ++other)
        if (other != rank &&
            host_of[static_cast<std::size_t>(other)] == host_of[static_cast<std::size_t>(rank)])
            there.push_back(other);
    return host.remote_bells->ask(rank, there);
}

void refuse_threads(const Host& host) {
    const auto& below = host.without_threads;
    throw Error(
        ErrorCode::unavailable,
        fmt::format("MPI runs below MPI_THREAD_MULTIPLE on {}, which is enough only among ranks "
                    "that share memory: {}, so "
                    "threads of this library call MPI. Replace MPI_Init(&argc, &argv) by "
                    "MPI_Init_thread(&argc, &argv, "
                    "MPI_THREAD_MULTIPLE, &provided), or make the Session first, which does that",
                    base::list_ranks(below),
                    host.hosts > 1 ? fmt::format("here they are on {} hosts", host.hosts)
                                   : "here they share none"),
        {.operation = "init", .ranks = below});
}

std::vector<int> ranks_to_notify(const Host& host, const base::AbortCause& cause) {
    const int here = host.topology.host_of[static_cast<std::size_t>(host.ranks.front())],
              me = host.ranks[static_cast<std::size_t>(host.local_rank)];
    const int died_on = cause.code == ErrorCode::rank_died && cause.rank >= 0
                            ? host.topology.host_of[static_cast<std::size_t>(cause.rank)]
                            : -1;
    std::vector<std::vector<int>> ranks_of(static_cast<std::size_t>(host.hosts));
    for (int rank = 0; std::cmp_less(rank, host.topology.host_of.size()); ++rank)
        ranks_of[static_cast<std::size_t>(host.topology.host_of[static_cast<std::size_t>(rank)])]
            .push_back(rank);
    std::vector<int> all;
    for (int which = 0; which < host.hosts; ++which) {
        const auto& ranks = ranks_of[static_cast<std::size_t>(which)];
        if (which == here ? host.memory.has_value() : which == died_on) continue;
        if (died_on == here && host.all_have_memory)
            all.push_back(ranks[static_cast<std::size_t>(host.local_rank) % ranks.size()]);
        else
            std::ranges::copy_if(ranks, std::back_inserter(all),
                                 [me](int rank) { return rank != me; });
    }
    return all;
}

bool end_inside_mpi(const Monitor::End& end, std::string_view doing, bool has_other_hosts) {
    static std::atomic<bool> is_ending{false};
    if (is_ending.exchange(true)) return true;  // another monitor has seen another process end
    const auto text = describe_death(end, fmt::format("during {}", doing));
    base::log_error(text);
    base::suppress_last_words();
    base::keep_process();  // of a limit that has yet to come
    // at once, mpirun would end the others before they have spoken
    base::end_process(text, base::time_to_unwind, has_other_hosts ? abort_mpi : nullptr);
    return true;
}

Host discover_host(MPI_Comm world, const base::Config& config, bool threads) {
    int rank = 0;
    check(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
    MPI_Comm machine = MPI_COMM_NULL, host_comm = MPI_COMM_NULL;
    check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine),
          "MPI_Comm_split_type");
    const int colour = config.simulated_host ? 1 + *config.simulated_host : 0;
    check(MPI_Comm_split(machine, colour, rank, &host_comm), "MPI_Comm_split");
    Host host;
    sort_into_hosts(first_ranks(world, rank, host_comm), rank, host);
    host.others = others_of(host_comm, host);
    if (host.hosts > 1) base::survive_broken_pipes();  // MPI writes to sockets of dead ranks
    const auto on_end = [&](const Monitor::End& end) {
        return end_inside_mpi(end, "init", host.hosts > 1);
    };
    // The monitor that stays will warn of processes that it cannot watch; these two need not.
    const Monitor of_this_host(host.others, on_end, LogLevel::debug);
    meet_other_hosts(world, config, host);
    const Monitor of_other_hosts(host.linked, on_end, LogLevel::debug);
    base::pass(base::Failpoint::connect);
    check(MPI_Comm_size(machine, &host.machine_ranks), "MPI_Comm_size");
    host.cores = cores_together(machine);
    host.topology.ranks_share_cores = host.machine_ranks > host.cores;
    host.memory = share_memory(host_comm, host, config.shared_memory);
    host.all_have_memory = exceptions(world, host.memory.has_value()).empty();
    host.without_threads = exceptions(world, threads);
    host.topology.round_trip = measure_round_trip(world, host);
    check(MPI_Comm_free(&host_comm), "MPI_Comm_free");
    check(MPI_Comm_free(&machine), "MPI_Comm_free");
    return host;
}

}  // namespace guozhuang::wire::mpi
