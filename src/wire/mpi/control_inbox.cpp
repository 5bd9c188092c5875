#include "wire/mpi/control_inbox.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <guozhuang/error.hpp>
#include <utility>

#include "base/keep_for_ever.hpp"
#include "wire/mpi/mpi_library.hpp"

namespace guozhuang::wire::mpi {

/// Matches the next message, if there is one, and starts to receive it.
void ControlInbox::accept(MPI_Comm communicator, int tag, int from) {
    int found = 0, length = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(from, tag, communicator, &found, &handle, &status), "MPI_Improbe");
    if (found == 0) return;
    check(MPI_Get_count(&status, MPI_BYTE, &length), "MPI_Get_count");
    if (length < 0 || static_cast<std::size_t>(length) > max_control_bytes) {
        throw Error(
            ErrorCode::wire,
            fmt::format("rank {} sent a control message of {} bytes", status.MPI_SOURCE, length),
            {.ranks = {status.MPI_SOURCE}});
    }
    Incoming incoming;
    incoming.tag = tag;
    incoming.message.from = status.MPI_SOURCE;
    incoming.message.bytes.resize(static_cast<std::size_t>(length));
    auto& stored = incoming_.emplace_back(std::move(incoming));
    try {
        check(MPI_Imrecv(stored.message.bytes.data(), length, MPI_BYTE, &handle, &stored.request),
              "MPI_Imrecv");
    } catch (...) {
        incoming_.pop_back();  // otherwise it would seem to have arrived
        throw;
    }
}

bool ControlInbox::has_arrived(Incoming& incoming) {
    int done = 0;
    check(MPI_Test(&incoming.request, &done, MPI_STATUS_IGNORE), "MPI_Test of a control message");
    return done != 0;
}

std::optional<Messages::Message> ControlInbox::poll(MPI_Comm communicator, int tag) {
    accept(communicator, tag);
    return next(tag);
}

std::optional<Messages::Message> ControlInbox::poll_each(MPI_Comm communicator, int tag,
                                                         int ranks) {
    for (int from = 0; from < ranks; ++from) try {
            accept(communicator, tag, from);
        } catch (const Error&) {  // that process has ended
        }
    return next(tag);
}

std::optional<Messages::Message> ControlInbox::next(int tag) {
    std::vector<int> late;
    for (auto each = incoming_.begin(); each != incoming_.end(); ++each) {
        const int from = each->message.from;
        if (each->tag != tag || std::find(late.begin(), late.end(), from) != late.end()) continue;
        if (!has_arrived(*each)) {
            late.push_back(from);
            continue;
        }
        std::optional<Messages::Message> message = std::move(each->message);
        incoming_.erase(each);
        return message;
    }
    return std::nullopt;
}

std::optional<Messages::Message> ControlInbox::poll_seldom(MPI_Comm communicator, int tag,
                                                           int ranks) {
    const auto now = base::coarse_now();
    if (now < next_look_) return std::nullopt;
    next_look_ = now + std::chrono::milliseconds(1);
    try {
        return poll(communicator, tag);
    } catch (const Error&) {
        return poll_each(communicator, tag, ranks);
    }
}

void ControlInbox::take_the_rest(MPI_Comm communicator) try {
    for (auto before = incoming_.max_size(); before != incoming_.size();) {
        before = incoming_.size();
        accept(communicator, MPI_ANY_TAG);
    }
    std::erase_if(incoming_, has_arrived);
} catch (const Error&) {  // a process that had left the job has ended
}

void ControlInbox::keep_for_ever() {
    if (!incoming_.empty()) base::keep_for_ever(std::exchange(incoming_, {}));
}

}  // namespace guozhuang::wire::mpi
