#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "wire/inproc/inproc_transport.hpp"

namespace guozhuang::test {

/// Runs `body(transport)` on `ranks` threads, one for each rank of an in-process job, and waits for all. The first exception ends the job
/// for all ranks and is thrown again here. The body does not call close(): that happens here, if all is well.
template <class Body>
void run_inproc_ranks(int ranks, Body&& body, std::optional<base::WaitSettings> settings = std::nullopt, int hosts = 1) {
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

/// Waits for a message, as a rank does.
inline void finish(wire::Transport& transport, wire::Transport::Ticket& ticket) {
    base::wait_until(transport.doorbell(), transport.wait_settings(), [&] { return transport.test(ticket); });
}

/// The next control message of a tag.
inline wire::Transport::Message next_control(wire::Transport& transport, wire::Tag tag) {
    std::optional<wire::Transport::Message> message;
    base::wait_until(transport.doorbell(), transport.wait_settings(), [&] { return (message = transport.poll(tag)).has_value(); });
    return std::move(*message);
}

}  // namespace guozhuang::test
