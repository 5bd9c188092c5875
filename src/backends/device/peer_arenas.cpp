#include "backends/device/peer_arenas.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <guozhuang/error.hpp>
#include <utility>

#include "base/keep_for_ever.hpp"

namespace guozhuang::backends {
namespace {

using namespace std::chrono_literals;

constexpr auto most_time_to_close = 2s;
constexpr auto most_time_to_try = 30s;

/// Size of the token that the trial writes and reads.
constexpr auto token_bytes = sizeof(std::uint64_t);

std::uint64_t token_of(int rank) {
    return device::own_process() + static_cast<std::uint64_t>(rank);
}

/// Where a rank writes its token into another rank's arena, behind the owner's token.
std::span<std::byte> written_by(int rank, std::span<std::byte> arena) {
    return arena.subspan((static_cast<std::size_t>(rank) + 1) * token_bytes, token_bytes);
}

}  // namespace

struct PeerArenas::Offer {
    device::MemoryOffer arena;
    std::uint64_t token = 0;  ///< the arena's first bytes, which identify it
};

PeerArenas::PeerArenas(Dependencies dependencies)
    : deps_(std::move(dependencies)), words_(deps_.driver, deps_.device, deps_.ranks) {}

std::optional<wire::SharingFailure> PeerArenas::share() {
    if (auto failure = words_.share()) return failure;
    const auto gather = [&](const auto& own) { return deps_.ranks.gather(own); };
    auto failure = wire::share_together(
        gather, [&] { return make_offer(); },
        [&](const std::vector<Offer>& offers) { open(offers); });
    if (failure) return failure;
    meet(words_.have_tried());
    if (deps_.writes) {
        failure = wire::share_together(
            gather, [&] { return token_of(rank()); },
            [&](const std::vector<std::uint64_t>& tokens) { require_written(tokens); });
        if (failure) return failure;
        meet(words_.have_checked());
    }
    stream_.reset();
    return std::nullopt;
}

/// Orders one access to an arena after another. The words do that even for threads of one process,
/// which have mapped the memory behind `ranks` at different addresses.
void PeerArenas::meet(std::atomic<std::uint32_t>& have_come) {
    ++have_come;
    base::wait_until(deps_.doorbell, base::settings_for_words(deps_.wait),
                     [&] { return have_come == static_cast<std::uint32_t>(ranks()); });
}

PeerArenas::Offer PeerArenas::make_offer() {
    stream_ = deps_.driver->make_stream(deps_.device);
    own_ = allocate();
    Offer offer{.arena = deps_.driver->sharing().offer(deps_.device, own_.memory),
                .token = token_of(rank())};
    const auto all = (static_cast<std::size_t>(ranks()) + 1) * token_bytes;
    deps_.driver->fill(*stream_, own_.memory.first(all), std::array<std::byte, 1>{});
    deps_.driver->fill(*stream_, own_.memory.first(token_bytes),
                       std::as_bytes(std::span(&offer.token, 1)));
    wait_until_done();
    return offer;
}

device::OwnedMemory PeerArenas::allocate() const {
    try {
        return device::allocate_owned(deps_.driver, deps_.device, deps_.bytes);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::out_of_memory) throw;
        throw Error(error.code(),
                    fmt::format("no memory for its arena; a smaller GUOZHUANG_DEVICE_BYTES needs "
                                "less: {}",
                                error.what()));
    }
}

std::span<std::byte> PeerArenas::read_of(int rank) const {
    return read_.memory.subspan(static_cast<std::size_t>(rank) * token_bytes, token_bytes);
}

/// Tries what the path will do, to find out now what fails: the streams meet, and a kernel on each
/// reads the arenas that it must reach, and writes to them.
void PeerArenas::open(std::span<const Offer> offers) {
    is_offered_ = true;
    meet(words_.have_opened());
    words_.try_on(*stream_);
    read_ = device::allocate_pinned(deps_.driver, deps_.device, offers.size() * token_bytes);
    std::vector<device::Copy> copies;
    for (const int rank : deps_.reached) {
        const auto& offer = offers[static_cast<std::size_t>(rank)];
        arenas_.emplace(rank, device::open_owned(deps_.driver, deps_.device, offer.arena));
        copies.push_back({read_of(rank), of(rank).first(token_bytes)});
        if (deps_.writes)
            copies.push_back({written_by(this->rank(), of(rank)), own_.memory.first(token_bytes)});
    }
    deps_.driver->copy_all(*stream_, copies, {});
    wait_until_done();
    for (const int rank : deps_.reached) {
        const auto& offer = offers[static_cast<std::size_t>(rank)];
        if (std::memcmp(read_of(rank).data(), &offer.token, token_bytes) != 0)
            throw Error(ErrorCode::unavailable,
                        fmt::format("the memory of the device of rank {} of the set holds "
                                    "something else when it is read from here",
                                    rank));
    }
}

void PeerArenas::require_written(std::span<const std::uint64_t> tokens) {
    std::vector<device::Copy> copies;
    for (int rank = 0; rank < ranks(); ++rank)
        copies.push_back({read_of(rank), written_by(rank, own_.memory)});
    deps_.driver->copy_all(*stream_, copies, {});
    wait_until_done();
    for (int rank = 0; rank < ranks(); ++rank)
        if (std::memcmp(read_of(rank).data(), &tokens[static_cast<std::size_t>(rank)],
                        token_bytes) != 0)
            throw Error(ErrorCode::unavailable,
                        fmt::format("what rank {} of the set writes into the memory of this "
                                    "device does not come here",
                                    rank));
}

/// Nothing rings when a device is done, so the pauses are short.
void PeerArenas::wait_until_done() {
    const auto done = stream_->record();
    if (!base::wait_until(
            deps_.doorbell, base::settings_for_words(deps_.wait), [&] { return done->done(); },
            base::Clock::now() + most_time_to_try)) {
        words_.release(0);
        throw Error(ErrorCode::unavailable,
                    fmt::format("the device has not come to it within {} s",
                                std::chrono::seconds(most_time_to_try).count()));
    }
}

PeerArenas::~PeerArenas() {
    if (!is_tried_out()) {
        base::keep_for_ever(words_.memory());
        base::keep_for_ever(std::move(own_));
        base::keep_for_ever(std::move(read_));
        base::keep_for_ever(std::move(arenas_));
        return;
    }
    arenas_.clear();
    if (!is_offered_ || have_all_closed()) return;
    base::keep_for_ever(std::move(own_));
}

/// The end of the job does not end the work on the stream.
bool PeerArenas::is_tried_out() noexcept try {
    if (!stream_) return true;
    const auto done = stream_->record();
    base::Doorbell of_nobody;
    return base::wait_until(
        of_nobody, base::settings_for_words(deps_.wait), [&] { return done->done(); },
        base::Clock::now() + most_time_to_close);
} catch (const Error&) {
    return false;
}

bool PeerArenas::have_all_closed() noexcept {
    const auto all = static_cast<std::uint32_t>(ranks());
    ++words_.have_closed();
    try {
        return base::wait_until(
            deps_.doorbell, base::settings_for_words(deps_.wait),
            [&] { return words_.have_closed() == all; }, base::Clock::now() + most_time_to_close);
    } catch (const Error&) {
        return false;
    }
}

}  // namespace guozhuang::backends
