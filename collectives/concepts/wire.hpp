#pragma once

#include <concepts>
#include <cstddef>
#include <span>

namespace guozhuang {

/// How an algorithm moves bytes between the ranks of its group. Ranks are group ranks, 0 ..
/// size()-1.
///
/// `send` and `receive` start a message and return at once; the wire uses the memory until
/// `wait(ticket)` has returned. Messages between two ranks match in the order in which they were
/// started, and both sides know every length beforehand. No algorithm starts a message of zero
/// bytes. Waiting for a default-constructed ticket, or for one again, returns at once. Every
/// function may throw guozhuang::Error (the job was aborted, the transport failed); algorithms do
/// not catch it.
template <class W>
concept Wire = requires(W& wire, std::span<const std::byte> out, std::span<std::byte> in, int peer,
                        typename W::Ticket& ticket) {
    { wire.rank() } -> std::same_as<int>;
    { wire.size() } -> std::same_as<int>;
    /// How many bytes in flight keep a link busy; 0 if any number does.
    { wire.window_bytes() } -> std::same_as<std::size_t>;
    { wire.send(out, peer) } -> std::same_as<typename W::Ticket>;
    { wire.receive(in, peer) } -> std::same_as<typename W::Ticket>;
    { wire.wait(ticket) } -> std::same_as<void>;
    /// Tests without waiting; once it has returned true, the ticket needs no wait.
    { wire.done(ticket) } -> std::same_as<bool>;
};

/// Sends to one rank while receiving from another: a hop of most algorithms. Skips empty spans;
/// both sides know the lengths.
template <Wire W>
void exchange(W& wire, std::span<const std::byte> out, int to, std::span<std::byte> in, int from) {
    typename W::Ticket incoming{}, outgoing{};
    if (!in.empty()) incoming = wire.receive(in, from);
    if (!out.empty()) outgoing = wire.send(out, to);
    if (!in.empty()) wire.wait(incoming);
    if (!out.empty()) wire.wait(outgoing);
}

}  // namespace guozhuang
