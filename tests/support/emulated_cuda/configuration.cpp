#include "support/emulated_cuda/configuration.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <random>
#include <string_view>

#include "support/emulated_cuda/rules.hpp"

namespace guozhuang::emulated_cuda {
namespace {

constexpr int most_devices = 16;

std::string_view text_of(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

int number(const char* name, std::string_view text, int largest) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > largest)
        break_rule(std::string(name) + " has an invalid value: " + std::string(text));
    return value;
}

int number_or(const char* name, int otherwise, int largest) {
    const auto text = text_of(name);
    return text.empty() ? otherwise : number(name, text, largest);
}

/// As CUDA does, ignores all from the first number on that is no device's.
std::vector<int> visible_devices(int count) {
    std::vector<int> visible;
    if (!std::getenv("CUDA_VISIBLE_DEVICES")) {
        for (int i = 0; i < count; ++i) visible.push_back(i);
        return visible;
    }
    auto list = text_of("CUDA_VISIBLE_DEVICES");
    while (!list.empty()) {
        const auto item = list.substr(0, list.find(','));
        int index = -1;
        std::from_chars(item.data(), item.data() + item.size(), index);
        if (index < 0 || index >= count) break;
        visible.push_back(index);
        list.remove_prefix(std::min(list.size(), item.size() + 1));
    }
    return visible;
}

Configuration::PeerAccess peers() {
    const auto* name = "EMULATED_CUDA_PEERS";
    if (text_of(name) == "ring") return Configuration::PeerAccess::ring;
    if (text_of(name) == "reads") return Configuration::PeerAccess::reads;
    return number_or(name, 1, 1) != 0 ? Configuration::PeerAccess::all
                                      : Configuration::PeerAccess::none;
}

void read_failure(Configuration& all) {
    const auto* name = "EMULATED_CUDA_FAIL";
    const auto text = text_of(name);
    if (text.empty()) return;
    const auto first = text.find(':');
    if (first == std::string_view::npos)
        break_rule(std::string(name) + " has an invalid value: " + std::string(text));
    all.failing_function = text.substr(0, first);
    const auto rest = text.substr(first + 1);
    const auto second = rest.find(':');
    all.failing_call = static_cast<std::uint64_t>(number(name, rest.substr(0, second), 1 << 30));
    if (second == std::string_view::npos) return;
    const auto how = rest.substr(second + 1);
    constexpr std::string_view stop = "stop:";
    if (how == "kill")
        all.failure_kills = true;
    else if (how.starts_with(stop))
        all.stop_ms = number(name, how.substr(stop.size()), 1 << 20);
    else
        all.failure = number(name, how, 9999);
}

}  // namespace

const Configuration& configuration() {
    static const auto& read = *new auto([] {
        Configuration all{};
        all.machine_devices = number_or("EMULATED_CUDA_DEVICES", 1, most_devices);
        all.devices = visible_devices(all.machine_devices);
        all.is_mig = number_or("EMULATED_CUDA_MIG", 0, 1) != 0;
        if (all.is_mig && all.devices.size() > 1) all.devices.resize(1);
        all.driver = number_or("EMULATED_CUDA_DRIVER", 13000, 1 << 20);
        all.memory_bytes =
            static_cast<std::size_t>(number_or("EMULATED_CUDA_MEMORY_MIB", 1024, 1 << 17)) << 20;
        all.allocations_wait = number_or("EMULATED_CUDA_ALLOCATIONS_WAIT", 0, 1) != 0;
        all.peers = peers();
        all.channels = std::max(number_or("CUDA_DEVICE_MAX_CONNECTIONS", 8, 32), 1);
        constexpr int largest_seed = (1 << 30) - 1;
        all.seed = number_or("EMULATED_CUDA_SEED",
                             static_cast<int>(std::random_device()() & largest_seed), largest_seed);
        all.failure = 999;
        read_failure(all);
        all.trace = text_of("EMULATED_CUDA_TRACE");
        return all;
    }());
    return read;
}

bool are_peers(int device, int other) {
    if (configuration().is_mig) return false;
    const auto apart = std::abs(device - other);
    switch (configuration().peers) {
        case Configuration::PeerAccess::none: return false;
        case Configuration::PeerAccess::ring:
            return apart == 1 || apart == configuration().machine_devices - 1;
        case Configuration::PeerAccess::reads:
        case Configuration::PeerAccess::all: break;
    }
    return apart != 0;
}

}  // namespace guozhuang::emulated_cuda
