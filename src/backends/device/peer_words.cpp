#include "backends/device/peer_words.hpp"

#include <array>
#include <atomic>
#include <guozhuang/error.hpp>
#include <map>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "wire/shm/shared_file.hpp"

namespace guozhuang::backends {
namespace {

constexpr std::size_t page_bytes = 4096;
// Larger than any count a stream can wait for; less than 2^31, so has_reached() holds.
constexpr std::uint32_t far = std::uint32_t{1} << 30;
constexpr std::array all_phases = {Phase::filled, Phase::passed, Phase::taken};

}  // namespace

/// The memory, registered with the device. Ranks in one process share one Page, because their
/// threads wait for a word by its address.
class PeerWords::Page {
public:
    struct Offer {
        std::uint64_t process = 0;
        wire::SharedFile::Offer file;
    };
    struct Contents {
        alignas(64) std::atomic<std::uint32_t> opened{0}, tried{0}, checked{0}, closed{0},
            released{0};
        alignas(64) std::array<std::array<std::array<device::Word, most_ranks>, most_ranks>,
                               all_phases.size()> words{};  ///< by phase, waiter and writer
    };
    static_assert(sizeof(Contents) <= page_bytes);

    Page(wire::SharedFile file, std::shared_ptr<device::Driver> driver, int device)
        : file_(std::move(file)), driver_(std::move(driver)), device_(device) {
        driver_->sharing().register_host(device_, file_.memory());
    }
    ~Page() { driver_->sharing().unregister_host(device_, file_.memory()); }
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;

    static std::shared_ptr<Page> create(const std::shared_ptr<device::Driver>& driver, int device) {
        auto file = wire::SharedFile::create(page_bytes);
        file.reserve(0, page_bytes);
        ::new (file.memory().data()) Contents{};
        auto page = std::make_shared<Page>(std::move(file), driver, device);
        const base::Lock lock(mutex());
        pages()[page->file_.offer().nonce] = page;
        return page;
    }
    static std::shared_ptr<Page> attach(const Offer& offer,
                                        const std::shared_ptr<device::Driver>& driver, int device) {
        if (offer.process != device::own_process())
            return std::make_shared<Page>(wire::SharedFile::attach(offer.file, page_bytes), driver,
                                          device);
        const base::Lock lock(mutex());
        return pages().at(offer.file.nonce).lock();
    }
    Offer offer() const { return {device::own_process(), file_.offer()}; }
    /// Called when all ranks have attached.
    void close() {
        file_.close_file();
        const base::Lock lock(mutex());
        std::erase_if(pages(), [](const auto& page) { return page.second.expired(); });
    }

    Contents& operator*() const {
        return *std::launder(reinterpret_cast<Contents*>(file_.memory().data()));
    }

private:
    /// The pages that this process has created, by their nonces.
    static std::map<std::uint64_t, std::weak_ptr<Page>>& pages() {
        static auto& all = *new std::map<std::uint64_t, std::weak_ptr<Page>>;
        return all;
    }
    static base::Mutex& mutex() {
        static auto& one = *new base::Mutex;
        return one;
    }

    wire::SharedFile file_;
    const std::shared_ptr<device::Driver> driver_;
    const int device_;
};

/// The first rank makes the page.
std::optional<wire::SharingFailure> PeerWords::share() {
    auto failure = wire::share_together([&](const auto& own) { return ranks_.gather(own); },
                                        [&] {
                                            if (ranks_.rank != 0) return Page::Offer();
                                            page_ = Page::create(driver_, device_);
                                            return page_->offer();
                                        },
                                        [&](const std::vector<Page::Offer>& offers) {
                                            if (ranks_.rank != 0)
                                                page_ = Page::attach(offers[0], driver_, device_);
                                        });
    if (!failure && ranks_.rank == 0) page_->close();
    return failure;
}

namespace {

device::Word& word_of(auto& page, Phase phase, int waiter, int writer) {
    return page.words[static_cast<std::size_t>(phase)][static_cast<std::size_t>(waiter)]
                     [static_cast<std::size_t>(writer)];
}

}  // namespace

/// Uses this rank's word for itself, which nothing else uses.
void PeerWords::try_on(device::Stream& stream) {
    auto& word = word_of(**page_, Phase::filled, ranks_.rank, ranks_.rank);
    driver_->write(stream, word, 1);
    driver_->wait(stream, word, 1);
}

void PeerWords::meet(device::Stream& stream, std::optional<Moment> own,
                     std::optional<Moment> others) {
    std::vector<device::WordValue> writes, waits;
    for (int peer = 0; peer < ranks_.ranks; ++peer) {
        if (peer == ranks_.rank) continue;
        if (own) writes.push_back({&word_of(**page_, own->phase, peer, ranks_.rank), own->count});
        if (others)
            waits.push_back({&word_of(**page_, others->phase, ranks_.rank, peer), others->count});
    }
    driver_->write_then_wait(stream, writes, waits);
}

void PeerWords::announce_to(int peer, device::Stream& stream, const Moment& own) {
    driver_->write(stream, word_of(**page_, own.phase, peer, ranks_.rank), own.count);
}

void PeerWords::wait_for(int peer, device::Stream& stream, const Moment& theirs) {
    driver_->wait(stream, word_of(**page_, theirs.phase, ranks_.rank, peer), theirs.count);
}

void PeerWords::release(std::uint32_t count) noexcept {
    (**page_).released = 1;
    for (const auto phase : all_phases)
        for (int peer = 0; peer < ranks_.ranks; ++peer) {
            auto& word = word_of(**page_, phase, ranks_.rank, peer);
            word = count + far;
            word.notify_all();
        }
}

bool PeerWords::was_released() const noexcept {
    return (**page_).released != 0;
}

std::atomic<std::uint32_t>& PeerWords::have_opened() noexcept {
    return (**page_).opened;
}

std::atomic<std::uint32_t>& PeerWords::have_tried() noexcept {
    return (**page_).tried;
}

std::atomic<std::uint32_t>& PeerWords::have_checked() noexcept {
    return (**page_).checked;
}

std::atomic<std::uint32_t>& PeerWords::have_closed() noexcept {
    return (**page_).closed;
}

}  // namespace guozhuang::backends
