// An offer of shared memory: the input chooses the file that it leads to, what the memory begins
// with, and the offer's nonce.
#include "wire/shm/host_memory.hpp"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz/fuzz.hpp"

namespace guozhuang::fuzz {

using wire::HostMemory;

namespace {

constexpr int ranks = 2;
constexpr std::size_t header_bytes = sizeof(std::uint64_t);  // the nonce

/// The memory that is meant, and files that are not.
struct Files {
    HostMemory memory = HostMemory::create(ranks);
    HostMemory larger = HostMemory::create(2 * ranks);
    std::int64_t unsealed = memfd_create("guozhuang-host-memory", MFD_CLOEXEC);
    std::int64_t foreign = memfd_create("foreign", MFD_CLOEXEC);
    std::int64_t all[5] = {memory.offer().file, larger.offer().file, unsealed, foreign, 1'000'000};
};

}  // namespace

void decode(Input input) {
    static Files files;
    const auto chosen = choice(input) % std::size(files.all);
    const auto header = take(input, header_bytes);
    if (pwrite(static_cast<int>(files.all[0]), header.data(), header.size(), 0) < 0) return;
    HostMemory::Offer offer{.process = getpid(), .file = files.all[chosen]};
    const auto nonce = take(input, sizeof offer.nonce);
    std::memcpy(&offer.nonce, nonce.data(), nonce.size());
    if (refused({ErrorCode::unavailable}, [&] { HostMemory::attach(offer, ranks); })) return;
    require(chosen == 0 && files.memory.offer().nonce == offer.nonce,
            "what is attached to is what was offered");
}

std::vector<Seed> seeds() {
    std::vector<Seed> all;
    for (const auto file : {0, 1, 2, 3, 4}) {
        const std::uint64_t words[] = {12345, 12345};
        Seed seed{static_cast<std::byte>(file)};
        const auto bytes = std::as_bytes(std::span(words));
        seed.insert(seed.end(), bytes.begin(), bytes.end());
        all.push_back(std::move(seed));
    }
    return all;
}

}  // namespace guozhuang::fuzz
