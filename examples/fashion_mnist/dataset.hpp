#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace fashion {

inline constexpr std::size_t image_pixels = 28 * 28;
inline constexpr std::size_t classes = 10;

/// Grey images of 28 x 28 pixels, each with the number of its class.
struct Dataset {
    std::vector<std::uint8_t> pixels;  ///< image_pixels per sample
    std::vector<std::uint8_t> labels;

    std::size_t size() const noexcept { return labels.size(); }
};

/// Reads DIRECTORY/PREFIX-images-idx3-ubyte.gz and its labels; the prefixes are "train" and "t10k".
/// Throws std::runtime_error.
Dataset load_dataset(const std::filesystem::path& directory, const std::string& prefix);

/// Some samples, ready for the model.
struct Batch {
    /// Shape [size, image_pixels]; each pixel is shifted and scaled to mean 0 and deviation 1 over
    /// the training set.
    std::vector<float> images;
    std::vector<std::uint8_t> labels;

    std::size_t size() const noexcept { return labels.size(); }
};

/// The samples `order[0], order[1], ...` in batches of `batch_size`, of which the last may be
/// smaller: for (const Batch& batch : Batches(...)).
class Batches {
public:
    /// `limit`: at most so many batches; 0 for all.
    Batches(const Dataset& dataset, std::span<const std::size_t> order, std::size_t batch_size,
            std::size_t limit = 0);

    /// Batches there will be.
    std::size_t count() const noexcept;

    class Iterator {
    public:
        explicit Iterator(Batches& batches) : batches_(&batches) { batches_->read(next_); }
        const Batch& operator*() const noexcept { return batches_->current_; }
        void operator++() { batches_->read(++next_); }
        bool operator==(std::size_t end) const noexcept { return next_ == end; }

    private:
        Batches* batches_;
        std::size_t next_ = 0;
    };
    Iterator begin() { return Iterator(*this); }
    std::size_t end() const noexcept { return count(); }

private:
    void read(std::size_t number);

    const Dataset* dataset_;
    std::span<const std::size_t> order_;
    std::size_t batch_size_;
    Batch current_;
};

/// The samples 0 .. samples-1 in another random order every epoch.
class Shuffle {
public:
    Shuffle(std::size_t samples, std::uint64_t seed);

    void set_epoch(std::uint64_t epoch);
    const std::vector<std::size_t>& indices() const noexcept { return indices_; }

private:
    std::uint64_t seed_;
    std::vector<std::size_t> indices_;
};

/// The samples 0 .. samples-1 as they come.
std::vector<std::size_t> in_order(std::size_t samples);

}  // namespace fashion
