#include "wire/mpi/messages_in_flight.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "wire/mpi/mpi_library.hpp"

namespace guozhuang::wire::mpi {

std::size_t fragment_bytes(const topology::Topology& topology, int peer, std::size_t bytes,
                           std::size_t longest) noexcept {
    constexpr auto long_round_trip = std::chrono::microseconds(20);
    constexpr auto sent_unasked = std::size_t{32} << 10, longest_cut = std::size_t{1} << 20;
    const bool is_cut =
        topology.is_far(peer) && topology.round_trip > long_round_trip && bytes <= longest_cut;
    return is_cut ? std::min(longest, sent_unasked) : longest;
}

Messages::Ticket MessagesInFlight::start(MPI_Comm communicator, const MessageSide& side,
                                         const Envelope& envelope,
                                         std::span<const std::byte> source,
                                         std::span<std::byte> target) {
    Ticket ticket;
    InFlight& message = table_.open(ticket);
    const auto index = static_cast<std::uint32_t>(ticket.id) - 1;
    message.side = side;
    std::size_t offset = 0;
    do {  // an empty message is one empty fragment
        const int length = static_cast<int>(std::min(side.bytes - offset, envelope.fragment_bytes));
        const std::size_t in_flight = requests_.size();
        try {
            fragments_.push_back({index, length});
            MPI_Request* const request = &requests_.emplace_back(MPI_REQUEST_NULL);
            if (side.receives)
                check(MPI_Irecv(target.data() + offset, length, MPI_BYTE, side.peer, envelope.code,
                                communicator, request),
                      "MPI_Irecv");
            else
                check(MPI_Isend(source.data() + offset, length, MPI_BYTE, side.peer, envelope.code,
                                communicator, request),
                      "MPI_Isend");
        } catch (...) {
            fragments_.resize(in_flight);
            requests_.resize(in_flight);
            // Earlier fragments, if any, still refer to the message.
            if (message.missing == 0) table_.retire(ticket);
            throw;
        }
        ++message.missing;
        offset += static_cast<std::size_t>(length);
    } while (offset < side.bytes);
    return ticket;
}

MessagesInFlight::Progress MessagesInFlight::progress() {
    Progress progress;
    if (requests_.empty()) return progress;
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  indices_.data(), statuses_.data());
    if (code != MPI_ERR_IN_STATUS) check(code, "MPI_Testsome");
    if (count == MPI_UNDEFINED || count == 0) return progress;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        const Fragment& fragment = fragments_[static_cast<std::size_t>(indices_[i])];
        const MPI_Status& status = statuses_[i];
        complete(fragment, status, code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS);
        const InFlight& message = table_.at(fragment.index);
        if (message.missing == 0 && message.side.receives && message.side.bytes > eager_bytes)
            progress.senders.push_back(message.side.peer);
    }
    progress.any = true;
    drop_completed();
    return progress;
}

void MessagesInFlight::complete(const Fragment& fragment, const MPI_Status& status, bool failed) {
    InFlight& message = table_.at(fragment.index);
    --message.missing;
    const auto& [peer, bytes, receives] = message.side;
    if (failed) {
        message.error =
            fmt::format("the {} rank {} failed: {}", receives ? "receive from" : "send to", peer,
                        error_text(status.MPI_ERROR));
        return;
    }
    int arrived = fragment.bytes;
    if (receives) check(MPI_Get_count(&status, MPI_BYTE, &arrived), "MPI_Get_count");
    if (arrived != fragment.bytes)
        message.error = fmt::format("rank {} sent {} bytes where {} were expected", peer, arrived,
                                    fragment.bytes);
}

void MessagesInFlight::drop_completed() {
    for (std::size_t i = requests_.size(); i-- > 0;) {
        if (requests_[i] != MPI_REQUEST_NULL) continue;
        requests_[i] = requests_.back();
        fragments_[i] = fragments_.back();
        requests_.pop_back();
        fragments_.pop_back();
    }
}

bool MessagesInFlight::cancel() noexcept {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
        int done = 0;
        if (table_.at(fragments_[i].index).side.receives) MPI_Cancel(&requests_[i]);
        MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
    }
    drop_completed();
    return none_at_mpi();
}

std::vector<int> MessagesInFlight::begun_by(std::span<const int> senders) {
    std::set<int> ranks;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
        const auto& side = table_.at(fragments_[i].index).side;
        int done = 1;
        if (side.receives && std::ranges::binary_search(senders, side.peer))
            MPI_Test(&requests_[i], &done, MPI_STATUS_IGNORE);
        if (done == 0) ranks.insert(side.peer);
    }
    drop_completed();
    return {ranks.begin(), ranks.end()};
}

}  // namespace guozhuang::wire::mpi
