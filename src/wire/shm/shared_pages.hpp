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

/// Memory that this process already has, moved into a SharedFile without changing its addresses:
/// the whole pages of each range. When this object ends, or at make_private(), the pages become
/// private again and keep their contents, except where somebody has mapped something else
/// meanwhile. Children of fork() see the contents; their own writes stay with them. Nobody may
/// write to the memory while it is moved, in either direction. Not thread-safe.
class SharedPages {
public:
    /// Moves a portion at a time, so that little memory exists twice. Throws Error(unavailable),
    /// and changes nothing, if it cannot: too little memory, or not ordinary memory (from a file,
    /// already shared, a stack).
    explicit SharedPages(std::span<const std::span<std::byte>> memory);
    SharedPages(const SharedPages&) = delete;
    SharedPages& operator=(const SharedPages&) = delete;
    ~SharedPages();

    SharedFile& file() noexcept { return file_; }
    const std::vector<Regions::Range>& ranges() const noexcept { return ranges_; }
    /// Returns what it could not do, if anything.
    std::string make_private() noexcept { return put_back(false); }

private:
    void move(std::span<std::byte> portion, std::uint64_t offset);
    std::string put_back(bool release) noexcept;
    SharedFile file_;
    std::vector<Regions::Range> ranges_;  ///< those that have been moved
    base::ForkChildHandler fork_child_handler_;
};

/// The whole pages within ranges of memory, ascending, with neighbours joined.
std::vector<std::span<std::byte>> whole_pages(std::span<const std::span<std::byte>> memory);

}  // namespace guozhuang::wire
