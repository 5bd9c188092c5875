#include "dataset.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>

namespace fashion {
namespace {

constexpr float mean_pixel = 0.2860F;  // of all training pixels as fractions of 255
constexpr float deviation = 0.3530F;

/// A gzipped idx file: big-endian words (a magic number that ends in the number of dimensions, the
/// extents), then the bytes.
class IdxFile {
public:
    IdxFile(const std::filesystem::path& path, unsigned dimensions)
        : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
        if (!file_) {
            throw std::runtime_error("cannot read " + path.string() +
                                     ": install the Debian package dataset-fashion-mnist, or name "
                                     "the data set's directory with --data DIR");
        }
        gzbuffer(file_.get(), 1U << 20);
        if (word() != 0x0800 + dimensions)
            throw std::runtime_error(path.string() + " is not an idx file of the expected kind");
    }

    std::size_t word() {
        std::array<std::uint8_t, 4> bytes{};
        read(bytes);
        return (std::size_t{bytes[0]} << 24) | (std::size_t{bytes[1]} << 16) |
               (std::size_t{bytes[2]} << 8) | bytes[3];
    }

    std::vector<std::uint8_t> bytes(std::size_t count) {
        std::vector<std::uint8_t> result(count);
        read(result);
        return result;
    }

private:
    void read(std::span<std::uint8_t> bytes) {
        const auto wanted = static_cast<unsigned>(bytes.size());
        if (gzread(file_.get(), bytes.data(), wanted) != static_cast<int>(wanted)) {
            throw std::runtime_error(path_.string() + " is damaged or cut short");
        }
    }

    std::filesystem::path path_;
    std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

Dataset load_dataset(const std::filesystem::path& directory, const std::string& prefix) {
    IdxFile images(directory / (prefix + "-images-idx3-ubyte.gz"), 3);
    IdxFile labels(directory / (prefix + "-labels-idx1-ubyte.gz"), 1);
    const auto samples = images.word();
    const auto rows = images.word();
    const auto columns = images.word();
    if (rows * columns != image_pixels || labels.word() != samples) {
        throw std::runtime_error("the images and labels of '" + prefix + "' in " +
                                 directory.string() + " do not fit together");
    }
    return {images.bytes(samples * image_pixels), labels.bytes(samples)};
}

Batches::Batches(const Dataset& dataset, std::span<const std::size_t> order, std::size_t batch_size,
                 std::size_t limit)
    : dataset_(&dataset), order_(order), batch_size_(batch_size) {
    if (batch_size_ == 0) throw std::invalid_argument("a batch of no samples");
    if (limit != 0) order_ = order_.first(std::min(order_.size(), limit * batch_size_));
}

std::size_t Batches::count() const noexcept {
    return (order_.size() + batch_size_ - 1) / batch_size_;
}

void Batches::read(std::size_t number) {
    if (number >= count()) return;
    const auto first = number * batch_size_;
    const auto samples = order_.subspan(first, std::min(batch_size_, order_.size() - first));
    current_.images.resize(samples.size() * image_pixels);
    current_.labels.resize(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const auto source =
            std::span(dataset_->pixels).subspan(samples[i] * image_pixels, image_pixels);
        const auto to_unit = [](std::uint8_t pixel) {
            return (static_cast<float>(pixel) / 255.0F - mean_pixel) / deviation;
        };
        std::transform(source.begin(), source.end(),
                       current_.images.begin() + static_cast<std::ptrdiff_t>(i * image_pixels),
                       to_unit);
        current_.labels[i] = dataset_->labels[samples[i]];
    }
}

Shuffle::Shuffle(std::size_t samples, std::uint64_t seed)
    : seed_(seed), indices_(in_order(samples)) {
    set_epoch(0);
}

void Shuffle::set_epoch(std::uint64_t epoch) {
    std::seed_seq seeds{seed_, epoch};
    std::mt19937_64 random(seeds);
    std::iota(indices_.begin(), indices_.end(), std::size_t{0});
    std::shuffle(indices_.begin(), indices_.end(), random);
}

std::vector<std::size_t> in_order(std::size_t samples) {
    std::vector<std::size_t> indices(samples);
    std::iota(indices.begin(), indices.end(), std::size_t{0});
    return indices;
}

}  // namespace fashion
