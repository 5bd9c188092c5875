#include "wire/shm/shared_pages.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <guozhuang/error.hpp>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.hpp"

namespace guozhuang::wire {
namespace {

std::uintptr_t address_of(const std::byte* byte) noexcept {
    return reinterpret_cast<std::uintptr_t>(byte);
}

/// One line of /proc/self/maps.
struct Mapping {
    std::uintptr_t begin = 0, end = 0;
    std::uint64_t offset = 0, inode = 0;
    std::string access, name;

    bool is_ordinary() const {
        return access == "rw-p" && inode == 0 &&
               (name.empty() || name == "[heap]" || name.starts_with("[anon"));
    }
};

/// By address; none if they cannot be read.
std::vector<Mapping> all_mappings() {
    std::vector<Mapping> all;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::istringstream words(line);
        Mapping mapping;
        std::string device;
        char dash = 0;
        words >> std::hex >> mapping.begin >> dash >> mapping.end >> mapping.access >>
            mapping.offset >> device >> std::dec >> mapping.inode;
        std::getline(words >> std::ws, mapping.name);
        all.push_back(std::move(mapping));
    }
    return all;
}

/// Whether every page of the memory is in a mapping for which `is_right` holds.
template <class IsRight>
bool all_of(const std::vector<Mapping>& mappings, std::span<const std::byte> memory,
            IsRight&& is_right) {
    auto next = address_of(memory.data());
    const auto end = next + memory.size();
    for (auto mapping = std::ranges::upper_bound(mappings, next, {}, &Mapping::end);
         mapping != mappings.end(); ++mapping) {
        if (mapping->begin > next || !is_right(*mapping)) return false;
        next = mapping->end;
        if (next >= end) return true;
    }
    return false;
}

/// Bytes moved at a time, in either direction; this much memory exists twice meanwhile.
constexpr std::size_t portion_bytes = std::size_t{16} << 20;

/// Calls visit(portion) for one portion after another, up to the first error, which it returns.
template <class Visit>
int for_each_portion(std::span<std::byte> pages, Visit&& visit) {
    for (; !pages.empty(); pages = pages.subspan(std::min(portion_bytes, pages.size())))
        if (const int error = visit(pages.first(std::min(portion_bytes, pages.size()))); error != 0)
            return error;
    return 0;
}

/// A private copy replaces the pages: threads that read them meanwhile see the same bytes. Returns
/// an errno, or 0.
int put_copy_over(std::span<std::byte> pages) noexcept {
    void* const copy = mmap(nullptr, pages.size(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (copy == MAP_FAILED) return errno;
    std::memcpy(copy, pages.data(), pages.size());
    // UCX replaces libc's mremap() by one that drops the last argument. MPI's caches of registered
    // memory hear of madvise(), which leaves the bytes in the file.
    madvise(pages.data(), pages.size(), MADV_DONTNEED);
    if (syscall(SYS_mremap, copy, pages.size(), pages.size(), MREMAP_MAYMOVE | MREMAP_FIXED,
                pages.data()) != -1)
        return 0;
    const int error = errno;
    munmap(copy, pages.size());
    return error;
}

}  // namespace

std::vector<std::span<std::byte>> whole_pages(std::span<const std::span<std::byte>> memory) {
    std::vector<std::span<std::byte>> ranges(memory.begin(), memory.end());
    std::ranges::sort(ranges, {}, [](const auto& range) { return address_of(range.data()); });
    std::vector<std::span<std::byte>> joined;
    for (const auto& range : ranges) {
        if (!joined.empty() && joined.back().data() + joined.back().size() == range.data())
            joined.back() = {joined.back().data(), joined.back().size() + range.size()};
        else
            joined.push_back(range);
    }
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::vector<std::span<std::byte>> pages;
    for (const auto& range : joined) {
        const auto before = (page - address_of(range.data()) % page) % page;
        if (range.size() < before + page) continue;
        pages.push_back(range.subspan(before, (range.size() - before) / page * page));
    }
    return pages;
}

SharedPages::SharedPages(std::span<const std::span<std::byte>> memory)
    : fork_child_handler_([this] {
          for (const auto& [pages, offset] : ranges_) file_.map_over(pages, offset, true);
      }) {
    const auto pages = whole_pages(memory);
    std::size_t bytes = 0;
    for (const auto& range : pages)
        bytes = SharedFile::matching_offset(bytes, range) + range.size();
    const auto mappings = all_mappings();
    if (mappings.empty()) throw_unavailable("/proc/self/maps", errno);
    for (const auto& range : pages)
        if (!all_of(mappings, range, [](const Mapping& mapping) { return mapping.is_ordinary(); }))
            throw Error(ErrorCode::unavailable,
                        "it is not ordinary memory: a file's, shared already, or a stack");
    file_ = SharedFile::create(bytes);
    ranges_.reserve(pages.size());
    std::uint64_t offset = 0;
    try {
        for (const auto& range : pages) {
            offset = SharedFile::matching_offset(offset, range);
            ranges_.push_back({range.first(0), offset});
            for_each_portion(range, [&](std::span<std::byte> portion) {
                move(portion, offset);
                offset += portion.size();
                return 0;
            });
            SharedFile::use_huge_pages(range);
        }
    } catch (...) {
        put_back(true);
        throw;
    }
}

/// The portion that follows the last range, into the file.
void SharedPages::move(std::span<std::byte> portion, std::uint64_t offset) {
    file_.reserve(offset, portion.size());
    std::memcpy(file_.memory().data() + offset, portion.data(), portion.size());
    auto& moved = ranges_.back().memory;
    moved = {moved.data(), moved.size() + portion.size()};  // a child that is made now must know
    if (const int error = file_.map_over(portion, offset); error != 0) {
        moved = moved.first(moved.size() - portion.size());
        throw_unavailable("mmap", error);
    }
}

SharedPages::~SharedPages() {
    if (base::is_forked()) return;
    if (const auto problem = make_private(); !problem.empty()) base::log_warning(problem);
}

/// `release`: frees the file's memory of each portion as soon as it is private again; no other
/// process may still see it.
std::string SharedPages::put_back(bool release) noexcept try {
    std::string problem;
    const auto mappings = ranges_.empty() ? std::vector<Mapping>() : all_mappings();
    const auto is_ours = [&](const Mapping& mapping) {
        return mapping.inode == file_.inode() && mapping.name.starts_with("/memfd:");
    };
    for (; !ranges_.empty(); ranges_.pop_back()) {
        const auto [memory, offset] = ranges_.back();
        if (memory.empty()) continue;
        // The memory must not have been freed before; if it has, it is left alone.
        const bool is_there = mappings.empty() || all_of(mappings, memory, is_ours);
        const auto put_portion_back = [&, start = memory.data(),
                                       first = offset](std::span<std::byte> portion) {
            const int error = put_copy_over(portion);
            if (!release || error != 0) return error;
            auto& left = ranges_.back();  // a child that is made now must know
            left.memory = left.memory.subspan(portion.size());
            left.offset += portion.size();
            file_.release(first + static_cast<std::size_t>(portion.data() - start), portion.size());
            return 0;
        };
        const int error = is_there ? for_each_portion(memory, put_portion_back) : 0;
        if (is_there && error == 0) continue;
        problem = fmt::format("{} bytes at {} that were shared {}", memory.size(),
                              static_cast<const void*>(memory.data()),
                              is_there ? fmt::format("stay so: {}", std::strerror(error))
                                       : "are left alone: something else is mapped there now");
    }
    return problem;
} catch (const std::exception& error) {
    return error.what();
}

}  // namespace guozhuang::wire
