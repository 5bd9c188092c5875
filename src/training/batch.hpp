#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <guozhuang/stream.hpp>
#include <vector>

namespace guozhuang {

/// The progress of a GradientReducer since the last step(), which ends the batch.
struct Batch {
    /// The gradients that an earlier pass of the batch has marked, so they are not zero; by the
    /// first parameter with the same memory.
    std::vector<bool> accumulated;
    std::vector<bool> marked;
    std::vector<std::size_t> missing;             ///< gradients that each bundle still waits for
    std::vector<std::vector<StreamRef>> streams;  ///< by bundle: where its gradients were marked
    std::size_t complete_bundles = 0;
    /// The last bundle to become complete. It is held back, so that each rank can still discard the
    /// batch on all ranks.
    std::size_t last_bundle = 0;
    std::size_t marks = 0;
    int passes = 0;
    enum class State : std::uint8_t {
        open,
        closing,  ///< sends the rest now; waits for it next
        closed,   ///< the last bundle is sent, too
        synchronised
    };
    State state = State::open;
    bool is_closed() const noexcept { return state >= State::closed; }
    bool is_synchronised() const noexcept { return state == State::synchronised; }
    bool any_accumulated() const {
        return std::ranges::find(accumulated, true) != accumulated.end();
    }
    bool has_begun() const {
        return state != State::open || passes > 0 || failure || any_accumulated();
    }
    std::exception_ptr failure = nullptr;  ///< of a hook

    /// Begins the next batch. Allocates only for the first one: a failure would leave this rank in
    /// the previous batch, unlike the others.
    void start(std::size_t parameters, const std::vector<std::size_t>& bundle_size) {
        accumulated.assign(parameters, false);
        marked.assign(parameters, false);
        missing = bundle_size;
        streams.resize(bundle_size.size());
        for (auto& noted : streams) noted.clear();
        complete_bundles = last_bundle = marks = 0;
        passes = 0;
        state = State::open;
        failure = nullptr;
    }
};

}  // namespace guozhuang
