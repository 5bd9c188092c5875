#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model.hpp"

namespace transformer {

/// Sayings in English, each with its topic: Debian's package fortunes, a few megabytes.
struct Sayings {
    std::vector<std::string> topics;
    std::vector<std::string> texts;
    std::vector<int> topic_of;  ///< each text, an index into topics

    std::size_t size() const noexcept { return texts.size(); }
};

/// The sayings of every file in the directory, or only of these topics, shuffled, the same way each
/// time. Throws std::runtime_error.
Sayings load_sayings(const std::filesystem::path& directory,
                     const std::vector<std::string>& topics = {});

/// A part of the sayings, without copies of the rest: those from `first` to before `last`.
Sayings part_of(const Sayings& sayings, std::size_t first, std::size_t last);

/// For a GPT: windows of all texts, one after the other, which overlap by a byte, that the
/// earlier one predicts.
class Windows {
public:
    Windows(const Sayings& sayings, std::size_t length);

    std::size_t size() const noexcept { return (text_.size() - 1) / length_; }
    Batch batch(std::span<const std::size_t> windows) const;

private:
    std::string text_;
    std::size_t length_;
};

/// For an encoder: the first `length` bytes of these sayings, and their topics.
Batch batch_of(const Sayings& sayings, std::span<const std::size_t> chosen, std::size_t length);

/// Divides `count` samples into batches: all of them in another random order every epoch, less
/// those that do not fill a batch.
class Order {
public:
    Order(std::size_t count, std::size_t batch, std::uint64_t seed);

    std::span<const std::size_t> batch(std::size_t step);

private:
    std::size_t batch_;
    std::uint64_t seed_;
    std::size_t epoch_ = 0;
    std::vector<std::size_t> order_;
};

}  // namespace transformer
