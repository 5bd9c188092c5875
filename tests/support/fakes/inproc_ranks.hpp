#pragma once

#include <cstddef>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "wire/group/group.hpp"
#include "wire/inproc/inproc_transport.hpp"
#include "wire/shm/staging.hpp"

namespace guozhuang::test {

/// Runs `body(transport)` on `ranks` threads, one for each rank of an in-process job, and waits for
/// all. The first exception ends the job for all ranks and is thrown again here. The body does not
/// call close(): this does, if all is well.
template <class Body>
void run_inproc_ranks(int ranks, Body&& body,
                      std::optional<base::WaitSettings> settings = std::nullopt, int hosts = 1) {
    wire::InprocHub hub(ranks, settings, hosts);
    std::mutex mutex;
    std::exception_ptr first;
    const auto run = [&](int rank) {
        try {
            const auto transport = hub.transport(rank);
            body(*transport);
            transport->close();
        } catch (...) {
            {
                const std::lock_guard lock(mutex);
                if (!first) first = std::current_exception();
            }
            hub.abort();
        }
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
    for (auto& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
}

/// Runs `body(group, staging)` as each of these ranks, which stage for each other. All threads use
/// the same memory, so that ThreadSanitizer sees their accesses.
template <class Body>
void run_staging_ranks(int ranks, Body&& body) {
    struct alignas(64) Line {
        std::byte bytes[64];
    };
    constexpr std::size_t stage_bytes = std::size_t{64} << 10;
    std::vector<Line> lines(wire::Staging::bytes_for(ranks, stage_bytes) / sizeof(Line));
    const auto memory = std::as_writable_bytes(std::span(lines));
    wire::Staging::initialise(memory, ranks);
    std::vector<int> group_ranks(static_cast<std::size_t>(ranks));
    std::iota(group_ranks.begin(), group_ranks.end(), 0);
    run_inproc_ranks(ranks, [&](wire::Transport& transport) {
        const wire::Group group{.transport = transport,
                                .ranks = group_ranks,
                                .group_rank = transport.rank(),
                                .tag = {0, wire::Lane::host_data}};
        body(group, wire::Staging::in(memory, ranks));
    });
}

/// Waits for a message like a rank.
inline void finish(wire::Transport& transport, wire::Transport::Ticket& ticket) {
    base::wait_until(transport.doorbell(), transport.wait_settings(),
                     [&] { return transport.test(ticket); });
}

/// The next control message of a tag.
inline wire::Transport::Message next_control(wire::Transport& transport, wire::Tag tag) {
    std::optional<wire::Transport::Message> message;
    base::wait_until(transport.doorbell(), transport.wait_settings(),
                     [&] { return (message = transport.poll(tag)).has_value(); });
    return std::move(*message);
}

}  // namespace guozhuang::test
