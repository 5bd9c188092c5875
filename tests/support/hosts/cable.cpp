// The network between hosts that are network namespaces of one machine: moves IP packets between
// their TUN devices, with the rate and the delay of a cable from each host to a switch. In user
// space, because not every kernel can delay packets (netem).
//
//     cable RATE DELAY LOSS PROTOCOL FD...
//
// RATE: bits per second of each cable and direction, 0 for no limit. DELAY: milliseconds from one
// host to another. LOSS: percent of the packets, at random. PROTOCOL: the number in the IP header
// of packets that a firewall drops, 17 for UDP, -1 for none. FD: the device of host 0, whose
// address ends with 1, then of host 1, and so on. A line "0 2 100" of the standard input sets the
// loss between hosts 0 and 2, here to all packets. Ends with the standard input.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <map>
#include <optional>
#include <poll.h>
#include <random>
#include <span>
#include <string>
#include <sys/prctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Packet {
    std::size_t to;
    std::vector<std::byte> bytes;
    bool is_past_switch = false;
};

class Network {
public:
    Network(double bits_per_second, Seconds delay, double loss, int refused,
            const std::vector<int>& devices)
        : bits_per_second_(bits_per_second), delay_(delay), refused_(refused) {
        for (const int device : devices) {
            fcntl(device, F_SETFL, O_NONBLOCK);
            hosts_.push_back({.device = device, .losses = std::vector(devices.size(), loss)});
        }
    }

    void run() {
        while (wait()) {
            for (auto& host : hosts_) take_packets_of(host);
            while (!packets_.empty() && packets_.begin()->first <= Clock::now()) {
                const auto due = packets_.begin()->first;
                auto packet = std::move(packets_.extract(packets_.begin()).mapped());
                if (!packet.is_past_switch) {
                    send_down(std::move(packet), due);
                    continue;
                }
                // Full devices lose packets, as switches do.
                [[maybe_unused]] const auto written =
                    write(hosts_[packet.to].device, packet.bytes.data(), packet.bytes.size());
            }
        }
    }

private:
    struct Host {
        int device;
        std::vector<double> losses;                      ///< share of the packets to each host
        Clock::time_point up_free = {}, down_free = {};  ///< when its cable has sent all so far
    };

    /// For packets, or until one is due. False at the end of the standard input.
    bool wait() {
        std::vector<pollfd> polled{{STDIN_FILENO, POLLIN, 0}};
        for (const auto& host : hosts_) polled.push_back({host.device, POLLIN, 0});
        std::chrono::nanoseconds left = std::chrono::seconds(1);
        if (!packets_.empty())
            left = std::max(packets_.begin()->first - Clock::now(), std::chrono::nanoseconds(0));
        const timespec limit{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
        ppoll(polled.data(), polled.size(), &limit, nullptr);
        return polled.front().revents == 0 || read_command();
    }

    /// A piece of the standard input. False at its end.
    bool read_command() {
        char next = 0;
        if (read(STDIN_FILENO, &next, 1) <= 0) return false;
        command_ += next;
        if (next != '\n') return true;
        std::size_t one = 0, other = 0;
        double percent = 0;
        if (std::sscanf(command_.c_str(), "%zu %zu %lf", &one, &other, &percent) == 3)
            hosts_.at(one).losses.at(other) = hosts_.at(other).losses.at(one) = percent / 100;
        command_.clear();
        return true;
    }

    /// Some at a time, so that those that are due are not late.
    void take_packets_of(Host& from) {
        constexpr int most = 64;
        for (int i = 0; i < most; ++i) {
            const auto bytes = read(from.device, buffer_.data(), buffer_.size());
            if (bytes <= 0) return;
            send(from, std::span(buffer_).first(static_cast<std::size_t>(bytes)));
        }
    }

    /// The last byte of an IPv4 header's destination is a host's number, counted from 1.
    std::optional<std::size_t> receiver_of(std::span<const std::byte> packet) const {
        constexpr std::size_t header_bytes = 20, last_of_destination = 19;
        if (packet.size() < header_bytes || packet.front() >> 4 != std::byte{4}) return {};
        const auto host = std::to_integer<std::size_t>(packet[last_of_destination]) - 1;
        return host < hosts_.size() ? std::optional(host) : std::nullopt;
    }

    bool is_dropped(std::span<const std::byte> packet, double loss) {
        constexpr std::size_t protocol = 9;
        return std::to_integer<int>(packet[protocol]) == refused_ ||
               std::bernoulli_distribution(loss)(random_);
    }

    Clock::duration transfer_of(std::size_t bytes) const {
        const Seconds transfer(
            bits_per_second_ > 0 ? 8 * static_cast<double>(bytes) / bits_per_second_ : 0);
        return std::chrono::duration_cast<Clock::duration>(transfer);
    }

    /// Drops what finds more in the queue than a cable sends in a tenth of a second.
    void send(Host& from, std::span<const std::byte> packet) {
        const auto to = receiver_of(packet);
        const auto now = Clock::now();
        if (!to || is_dropped(packet, from.losses[*to])) return;
        if (from.up_free > now + longest_queue) return;
        from.up_free = std::max(from.up_free, now) + transfer_of(packet.size());
        packets_.emplace(from.up_free, Packet{*to, {packet.begin(), packet.end()}});
    }

    /// At the switch, in the order of arrival: a packet does not wait for one that is sent before
    /// it and still in the queue of another host. The switch sends on what it is still receiving.
    void send_down(Packet packet, Clock::time_point now) {
        auto& down_free = hosts_[packet.to].down_free;
        if (down_free > now + longest_queue) return;
        down_free = std::max(now, down_free + transfer_of(packet.bytes.size()));
        packet.is_past_switch = true;
        packets_.emplace(down_free + std::chrono::duration_cast<Clock::duration>(delay_),
                         std::move(packet));
    }

    static constexpr auto longest_queue = std::chrono::milliseconds(100);

    const double bits_per_second_;
    const Seconds delay_;
    const int refused_;
    std::minstd_rand random_;  ///< the same numbers in every run
    std::vector<Host> hosts_;
    std::multimap<Clock::time_point, Packet> packets_;  ///< by when they are due
    std::string command_;                               ///< of the standard input, so far
    std::vector<std::byte> buffer_ = std::vector<std::byte>(std::size_t{1} << 16);
};

}  // namespace

int main(int count, char** arguments) {
    const std::span given(arguments, static_cast<std::size_t>(count));
    if (given.size() < 6) return EXIT_FAILURE;
    prctl(PR_SET_TIMERSLACK, 1);
    std::vector<int> devices;
    for (const char* device : given.subspan(5)) devices.push_back(std::atoi(device));
    Network(std::atof(given[1]), Seconds(std::atof(given[2]) / 1000), std::atof(given[3]) / 100,
            std::atoi(given[4]), devices)
        .run();
}
