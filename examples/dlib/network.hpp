#pragma once

#include <dlib/dnn.h>

#include <cstddef>
#include <vector>

#include "fashion_mnist/dataset.hpp"

namespace fashion {

using Image = dlib::matrix<float, 28, 28>;

/// Two convolutions and two linear layers.
template <class Images>
using Convolutions =
    dlib::relu<dlib::con<16, 5, 5, 2, 2, dlib::relu<dlib::con<6, 5, 5, 2, 2, Images>>>>;
using Network = dlib::loss_multiclass_log<
    dlib::fc<classes, dlib::relu<dlib::fc<64, Convolutions<dlib::input<Image>>>>>>;

inline std::vector<Image> images_of(const Batch& batch) {
    std::vector<Image> images(batch.size());
    auto pixel = batch.images.begin();
    for (auto& image : images)
        for (auto& value : image) value = *pixel++;
    return images;
}

inline std::vector<unsigned long> labels_of(const Batch& batch) {
    return {batch.labels.begin(), batch.labels.end()};
}

inline std::size_t count_correct(Network& network, const Batch& batch) {
    const auto guesses = network(images_of(batch));
    std::size_t correct = 0;
    for (std::size_t i = 0; i < guesses.size(); ++i) correct += guesses[i] == batch.labels[i];
    return correct;
}

}  // namespace fashion
