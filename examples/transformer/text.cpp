#include "text.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string_view>

namespace transformer {
namespace {

/// The files of sayings have no extension; others there are indices of them.
std::vector<std::string> topics_in(const std::filesystem::path& directory) {
    std::vector<std::string> topics;
    if (std::filesystem::is_directory(directory))
        for (const auto& entry : std::filesystem::directory_iterator(directory))
            if (entry.is_regular_file() && !entry.path().has_extension())
                topics.push_back(entry.path().filename().string());
    if (topics.empty())
        throw std::runtime_error("no sayings in " + directory.string() +
                                 ": install the Debian package fortunes, or give another --data");
    std::ranges::sort(topics);
    return topics;
}

std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

/// The numbers 0 .. count-1.
std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 random(seed * 1'000'003 + epoch);
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    return order;
}

/// A line with a percent sign alone ends each saying.
void append(Sayings& to, std::string_view text, int topic) {
    constexpr std::string_view end = "\n%\n";
    while (!text.empty()) {
        const auto length = std::min(text.find(end), text.size());
        if (length > 0) {
            to.texts.emplace_back(text.substr(0, length));
            to.topic_of.push_back(topic);
        }
        text.remove_prefix(std::min(length + end.size(), text.size()));
    }
}

}  // namespace

Sayings load_sayings(const std::filesystem::path& directory,
                     const std::vector<std::string>& topics) {
    Sayings ordered;
    ordered.topics = topics.empty() ? topics_in(directory) : topics;
    for (std::size_t i = 0; i < ordered.topics.size(); ++i)
        append(ordered, read(directory / ordered.topics[i]), static_cast<int>(i));
    Sayings sayings{ordered.topics, {}, {}};
    for (const auto i : shuffled(ordered.size(), 0, 0)) {
        sayings.texts.push_back(std::move(ordered.texts[i]));
        sayings.topic_of.push_back(ordered.topic_of[i]);
    }
    return sayings;
}

Sayings part_of(const Sayings& sayings, std::size_t first, std::size_t last) {
    const auto from = static_cast<std::ptrdiff_t>(first), to = static_cast<std::ptrdiff_t>(last);
    return {sayings.topics,
            {sayings.texts.begin() + from, sayings.texts.begin() + to},
            {sayings.topic_of.begin() + from, sayings.topic_of.begin() + to}};
}

Windows::Windows(const Sayings& sayings, std::size_t length) : length_(length) {
    for (const auto& text : sayings.texts) text_ += text + "\n%\n";
    if (text_.size() <= length)
        throw std::runtime_error("the text is shorter than a window of " + std::to_string(length));
}

Batch Windows::batch(std::span<const std::size_t> windows) const {
    Batch batch;
    for (const auto window : windows)
        for (auto i = window * length_; i < (window + 1) * length_; ++i) {
            batch.tokens.push_back(static_cast<std::uint8_t>(text_[i]));
            batch.targets.push_back(static_cast<std::uint8_t>(text_[i + 1]));
        }
    return batch;
}

Order::Order(std::size_t count, std::size_t batch, std::uint64_t seed)
    : batch_(batch), seed_(seed), order_(shuffled(count, seed, 0)) {
    if (batch > count)
        throw std::runtime_error("a batch of " + std::to_string(batch) + " of only " +
                                 std::to_string(count) + " samples");
}

std::span<const std::size_t> Order::batch(std::size_t step) {
    const auto steps = order_.size() / batch_;
    if (step / steps != epoch_) order_ = shuffled(order_.size(), seed_, epoch_ = step / steps);
    return std::span(order_).subspan(step % steps * batch_, batch_);
}

Batch batch_of(const Sayings& sayings, std::span<const std::size_t> chosen, std::size_t length) {
    Batch batch;
    for (const auto i : chosen) {
        const auto& text = sayings.texts[i];
        batch.lengths.push_back(std::min(text.size(), length));
        for (std::size_t j = 0; j < length; ++j)
            batch.tokens.push_back(j < text.size() ? static_cast<std::uint8_t>(text[j]) : 0);
        batch.targets.push_back(sayings.topic_of[i]);
    }
    return batch;
}

}  // namespace transformer
