#pragma once

#include <concepts>
#include <cstddef>
#include <span>

namespace guozhuang {

/// How an algorithm moves bytes between the ranks of its group; ranks are group ranks,
/// 0 .. size()-1.
///
/// `send` and `receive` start a message and return at once; the memory belongs to the wire until
/// `wait(ticket)` has returned. Messages between two ranks match in the order in which they were
/// started, and both sides know every length beforehand. Algorithms never start a message of zero
/// bytes. A ticket that was default-constructed or waited for counts as complete: waiting for it
/// returns at once. Every function may throw guozhuang::Error (the job was aborted, the transport
/// failed); the algorithm lets it pass.
template <class W>
concept Wire = requires(W& wire, std::span<const std::byte> out, std::span<std::byte> in, int peer,
                        typename W::Ticket& ticket) {
    { wire.rank() } -> std::same_as<int>;
    { wire.size() } -> std::same_as<int>;
    { wire.send(out, peer) } -> std::same_as<typename W::Ticket>;
    { wire.receive(in, peer) } -> std::same_as<typename W::Ticket>;
    { wire.wait(ticket) } -> std::same_as<void>;
    /// Looks without waiting; after true the ticket needs no wait.
    { wire.done(ticket) } -> std::same_as<bool>;
};

/// Sends to one neighbour while receiving from another: one hop of most algorithms. Empty spans are
/// skipped (both sides know the lengths).
template <Wire W>
void exchange(W& wire, std::span<const std::byte> out, int to, std::span<std::byte> in, int from) {
    typename W::Ticket incoming{}, outgoing{};
    if (!in.empty()) incoming = wire.receive(in, from);
    if (!out.empty()) outgoing = wire.send(out, to);
    if (!in.empty()) wire.wait(incoming);
    if (!out.empty()) wire.wait(outgoing);
}

}  // namespace guozhuang
