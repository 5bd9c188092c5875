#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "wire/shm/regions.hpp"
#include "wire/shm/shared_file.hpp"

namespace guozhuang::wire {

/// Memory that this process already has, moved into a SharedFile without changing its addresses: of
/// each range the whole pages. They are private again after the end of this object, or
/// make_private(), with what they hold then; unless somebody has mapped something else there
/// meanwhile, which stays. Children of fork() see what they hold, and what they write there stays
/// with them.
/// Nobody may write to the memory while it is moved, in either direction. Not thread-safe.
class SharedPages {
public:
    /// Moves a portion at a time: little memory is there twice. Throws Error(unavailable) if it
    /// cannot be done, and has changed nothing then: no memory for it, or not ordinary memory (of a
    /// file, shared already, a stack).
    explicit SharedPages(std::span<const std::span<std::byte>> memory);
    SharedPages(const SharedPages&) = delete;
    SharedPages& operator=(const SharedPages&) = delete;
    ~SharedPages();

    SharedFile& file() noexcept { return file_; }
    const std::vector<Regions::Range>& ranges() const noexcept { return ranges_; }
    /// Says what it could not do, if anything.
    std::string make_private() noexcept { return put_back(false); }

private:
    void move(std::span<std::byte> portion, std::uint64_t offset);
    std::string put_back(bool release) noexcept;
    SharedFile file_;
    std::vector<Regions::Range> ranges_;  ///< those that have been moved
    base::ForkChildHandler fork_child_handler_;
};

/// The whole pages within ranges of memory, those of neighbours joined; ascending.
std::vector<std::span<std::byte>> whole_pages(std::span<const std::span<std::byte>> memory);

}  // namespace guozhuang::wire
