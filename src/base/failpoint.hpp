#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace guozhuang::base {

/// Where a fault can be put in, to see what comes of it. The names are the enumerators.
enum class Failpoint : std::uint8_t {
    init,              ///< the rank knows its number; it has not met the others of its host
    meet,              ///< the ranks of the host know each other's processes
    handshake,         ///< it has; ranks are about to compare versions and configurations
    submit,            ///< a caller has asked for an operation
    control_send,      ///< before a control message is sent
    control_sent,      ///< after
    control_arrived,   ///< a control message has arrived and was not looked at
    control_received,  ///< its contents are on the way to the negotiator
    execute,           ///< an entry of the log is about to be executed
    executed,          ///< its data has been moved, nobody has been told
    segment_send,      ///< an algorithm sends a segment
    segment_receive,   ///< an algorithm expects a segment
    round_publish,     ///< an algorithm ends a round in staging memory
    round_await,       ///< an algorithm waits for the others to end a round
    letter_send,       ///< the payload of a send
    letter_receive,    ///< the memory for that of a receive
    shutdown,          ///< the session is closed by its caller
    close,             ///< every rank has shut down; the transport is about to close
    closed,            ///< it has
    count
};

std::string_view name_of(Failpoint point) noexcept;

/// A fault and where to put it: "NAME@RANK:NTH=kill|stop:MS|delay:US|error".
struct Fault {
    enum class Kind : std::uint8_t {
        kill,   ///< as by signal 9
        stop,   ///< stopped, as by a debugger, and continued after `amount` ms
        delay,  ///< of `amount` us
        error,  ///< an exception
    };
    Failpoint point = Failpoint::init;
    int rank = 0;
    std::uint64_t nth = 1;  ///< time that the rank comes by
    Kind kind = Kind::kill;
    std::uint64_t amount = 0;
};

/// Empty if the text is none.
std::optional<Fault> parse_fault(std::string_view text);
std::string print(const Fault& fault);

/// Puts the fault in, or none, for this process.
void arm(const std::optional<Fault>& fault) noexcept;

/// Of this process: armed before its rank passes any point.
extern std::atomic<Failpoint> armed_point;
void count_pass();

/// The rank passes a point. Costs one load and a branch that is never taken.
inline void pass(Failpoint point) {
    if (armed_point.load(std::memory_order_relaxed) == point) [[unlikely]]
        count_pass();
}

}  // namespace guozhuang::base
