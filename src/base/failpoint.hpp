#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace guozhuang::base {

/// Points where tests can inject a fault. Their names are those of the enumerators.
enum class Failpoint : std::uint8_t {
    init,              ///< the rank knows its number; it has not yet found the others of its host
    connect,           ///< the ranks of the host know each other's processes
    handshake,         ///< the ranks are connected and are about to compare configurations
    submit,            ///< a caller has asked for an operation
    control_send,      ///< before a control message is sent
    control_sent,      ///< after
    control_arrived,   ///< a control message has arrived and has not been read
    control_received,  ///< its contents are about to go to the negotiator
    execute,           ///< an entry of the log is about to be executed
    executed,          ///< its data has moved, but no caller knows
    segment_send,      ///< an algorithm sends a segment
    segment_receive,   ///< an algorithm expects a segment
    round_publish,     ///< an algorithm ends a round in staging memory
    round_await,       ///< an algorithm waits for the others to end a round
    payload_send,      ///< the payload of a send
    payload_receive,   ///< the memory for the payload of a receive
    shutdown,          ///< the session is closed by its caller
    close,             ///< every rank has shut down; the transport is about to close
    closed,            ///< the transport has closed
    count
};

std::string_view name_of(Failpoint point) noexcept;

/// A fault and its place: "NAME@RANK:NTH=kill|stop:MS|delay:US|error".
struct Fault {
    enum class Kind : std::uint8_t {
        kill,   ///< as by signal 9
        stop,   ///< stopped, as by a debugger, and continued after `amount` ms
        delay,  ///< of `amount` us
        error,  ///< an exception
    };
    Failpoint point = Failpoint::init;
    int rank = 0;
    std::uint64_t nth = 1;  ///< at the nth time that the rank passes the point
    Kind kind = Kind::kill;
    std::uint64_t amount = 0;
};

/// Empty if the text is not a fault.
std::optional<Fault> parse_fault(std::string_view text);
std::string print(const Fault& fault);

/// Arms this process with the fault, or with none.
void arm(const std::optional<Fault>& fault) noexcept;

/// Set by arm() before the rank passes any point.
extern std::atomic<Failpoint> armed_point;
void count_pass();

/// Called where the rank passes a point. While nothing is armed it costs one load and a branch.
inline void pass(Failpoint point) {
    if (armed_point.load(std::memory_order_relaxed) == point) [[unlikely]]
        count_pass();
}

}  // namespace guozhuang::base
