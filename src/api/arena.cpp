#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <guozhuang/arena.hpp>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/joint_region.hpp"
#include "api/process_set_state.hpp"
#include "api/requests.hpp"
#include "base/keep_for_ever.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "wire/shared_pages.hpp"

namespace guozhuang {
namespace {

constexpr std::size_t cache_line = 64;

struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
};

}  // namespace

struct GradientArena::State {
    State(std::size_t bytes, Session* session);

    wire::SharedFile file;
    std::unique_ptr<std::byte, Free> own;  ///< if it is private
    std::optional<base::InChildren> in_children;
    std::optional<api::JointRegion> region;
    std::span<std::byte> memory;
    std::optional<std::pmr::monotonic_buffer_resource> allocator;
};

GradientArena::State::State(std::size_t bytes, Session* session) {
    const auto whole = std::max((bytes + cache_line - 1) / cache_line * cache_line, cache_line);
    if (whole < bytes) throw std::bad_alloc();
    region.emplace(session, "GradientArena", [&] {
        file = wire::SharedFile::create(whole);
        file.reserve(0, whole);
        file.use_huge_pages();
        return api::JointRegion::Part{.file = &file, .ranges = {{file.memory(), 0}}};
    });
    if (region->is_open()) {
        in_children.emplace([this] { file.map_over(file.memory(), 0, true); });
        memory = file.memory();
    } else {
        file = {};
        own.reset(static_cast<std::byte*>(std::aligned_alloc(cache_line, whole)));
        if (!own) throw std::bad_alloc();
        memory = {own.get(), whole};
        std::ranges::fill(memory, std::byte{0});
    }
    allocator.emplace(memory.data(), memory.size(), std::pmr::null_memory_resource());
}

GradientArena::GradientArena(std::size_t bytes, Session* session) : state_(std::make_unique<State>(bytes, session)) {}
GradientArena::~GradientArena() {
    if (!state_->region->release(state_->memory)) base::keep_for_ever(std::move(state_->own));
}

std::size_t GradientArena::bytes() const noexcept {
    return state_->memory.size();
}

bool GradientArena::is_shared() const noexcept {
    return state_->region->is_open();
}

void* GradientArena::do_allocate(std::size_t bytes, std::size_t alignment) {
    return state_->allocator->allocate(bytes, std::max(alignment, cache_line));
}

void GradientArena::do_deallocate(void*, std::size_t, std::size_t) {}

bool GradientArena::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
    return this == &other;
}

struct SharedMemory::State {
    ~State() {
        region.reset();
        if (!problem.empty()) base::log_warning(problem);
    }
    std::optional<wire::SharedPages> pages;
    std::string problem;  ///< of the end of the sharing
    std::optional<api::JointRegion> region;
};

SharedMemory::SharedMemory() noexcept = default;
SharedMemory::SharedMemory(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
SharedMemory::SharedMemory(SharedMemory&&) noexcept = default;
SharedMemory& SharedMemory::operator=(SharedMemory&&) noexcept = default;
SharedMemory::~SharedMemory() = default;

bool SharedMemory::is_shared() const noexcept {
    return state_ && state_->region->is_open();
}

SharedMemory share(std::span<const TensorView> tensors, Session* session) {
    const auto& regions = *api::runtime_of(session)->transport().regions();
    std::vector<std::span<std::byte>> memory;
    for (const auto& tensor : tensors) {
        api::check_tensor(tensor, "share", "");
        if (regions.place(tensor.memory()).bytes < tensor.bytes()) memory.push_back(tensor.memory());  // else it is in an arena
    }
    auto state = std::make_unique<SharedMemory::State>();
    state->region.emplace(session, "shared memory", [&] {
        auto& pages = state->pages.emplace(memory);
        return api::JointRegion::Part{.file = &pages.file(), .ranges = pages.ranges(), .retreat = [&pages, &problem = state->problem] {
                                          problem = pages.make_private();
                                      }};
    });
    if (!state->region->is_open()) state->pages.reset();
    return SharedMemory(std::move(state));
}

}  // namespace guozhuang
