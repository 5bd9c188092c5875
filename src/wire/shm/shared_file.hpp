#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace guozhuang::wire {

/// Memory that processes of one host have mapped. One creates it and gives its `offer()` to the
/// others, which attach; once all have, `close_file()` leaves only the mappings. The memory has no
/// name and cannot be resized, so it can neither be left behind nor shrink under a reader.
/// Creating, attaching and reserving throw Error(unavailable) with the reason. Not thread-safe.
class SharedFile {
public:
    /// Lets another process attach: plain bytes, to be sent as they are.
    struct Offer {
        std::int64_t process = 0;  ///< 0: there is nothing to attach to
        std::int64_t file = 0;
        /// Also written into the file: proves that the file found is the file meant.
        std::uint64_t nonce = 0;
    };

    SharedFile() = default;  ///< of no memory
    static SharedFile create(std::size_t bytes);
    static SharedFile attach(const Offer& offer, std::size_t bytes);
    SharedFile(SharedFile&& other) noexcept { swap(other); }
    SharedFile& operator=(SharedFile&& other) noexcept {
        swap(other);
        return *this;
    }
    ~SharedFile();

    /// Begins at a new page. Valid while this object lives.
    std::span<std::byte> memory() const noexcept { return memory_; }
    /// Allocates the memory of a part, near the calling thread: a lack of memory is an error now
    /// rather than a SIGBUS at the first touch.
    void reserve(std::size_t offset, std::size_t bytes);

    /// Returns the memory of a part to the system; all its bytes are 0 from then on. Keeps it if
    /// that fails.
    void release(std::size_t offset, std::size_t bytes) noexcept;

    /// Turns the reserved memory into huge pages, as far as the kernel can: fewer page faults and
    /// TLB misses for every process that maps it.
    void use_huge_pages() noexcept;
    /// The same for a part that was mapped over pages of this process, at a matching_offset().
    static void use_huge_pages(std::span<std::byte> pages) noexcept;
    /// The first offset, from this one on, at which huge pages of the file can be huge pages of the
    /// process if mapped over these pages.
    static std::size_t matching_offset(std::size_t offset,
                                       std::span<const std::byte> pages) noexcept;

    /// Maps a part over pages of this process, and replaces them. Only while the file is open.
    /// `apart`: later writes stay in this process. Returns an errno, or 0. Safe in a signal
    /// handler.
    int map_over(std::span<std::byte> pages, std::size_t offset, bool apart = false) const noexcept;
    /// Its inode number, as in /proc/self/maps; known even after the file is closed.
    std::uint64_t inode() const noexcept { return inode_; }

    Offer offer() const noexcept;
    void close_file() noexcept;

private:
    SharedFile(int file, std::size_t bytes);
    void map();
    std::uint64_t* nonce() const noexcept;
    void swap(SharedFile& other) noexcept;

    int file_ = -1;
    std::size_t bytes_ = 0;
    std::uint64_t inode_ = 0;
    std::span<std::byte> memory_;
};

/// Throws Error(unavailable): "mmap: Cannot allocate memory".
[[noreturn]] void throw_unavailable(const char* operation, int error);

}  // namespace guozhuang::wire
