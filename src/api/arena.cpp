#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <fmt/format.h>
#include <guozhuang/arena.hpp>
#include <guozhuang/error.hpp>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/joint_region.hpp"
#include "api/process_set_state.hpp"
#include "api/requests.hpp"
#include "base/error_text.hpp"
#include "base/keep_for_ever.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "device/owned_memory.hpp"
#include "wire/shm/shared_pages.hpp"

namespace guozhuang {
namespace {

constexpr std::size_t cache_line = 64;

/// Runs `act`, which all ranks do together. A rank that runs out of memory in it ends the job,
/// because it cannot begin again alone.
template <class Act>
void together(Session* session, std::string_view what, const Act& act) try {
    act();
} catch (const std::bad_alloc&) {
    ProcessSet(session).end_job_without_memory(what);
}

}  // namespace

struct GradientArena::State {
    struct Free {
        void operator()(std::byte* pointer) const noexcept { std::free(pointer); }
    };

    State(std::size_t bytes, Device device, Session* session);
    void share(std::size_t bytes, Session* session);
    void allocate_on_device(std::size_t bytes, Device device, Session* session);

    wire::SharedFile file;
    std::unique_ptr<std::byte, Free> own;  ///< null if the memory is shared, or on a device
    std::shared_ptr<void> on_device;
    std::optional<base::ForkChildHandler> fork_child_handler;
    std::optional<api::JointRegion> region;
    std::span<std::byte> memory;
    std::optional<std::pmr::monotonic_buffer_resource> allocator;
};

GradientArena::State::State(std::size_t bytes, Device device, Session* session) {
    const auto whole = std::max((bytes + cache_line - 1) / cache_line * cache_line, cache_line);
    if (whole < bytes) throw std::bad_alloc();
    if (device.kind == DeviceKind::host)
        share(whole, session);
    else
        allocate_on_device(whole, device, session);
    allocator.emplace(memory.data(), memory.size(), std::pmr::null_memory_resource());
}

/// Keeps the memory to this rank if ranks cannot share it.
void GradientArena::State::share(std::size_t bytes, Session* session) {
    together(session, "GradientArena", [&] {
        region.emplace(session, "GradientArena", [&] {
            file = wire::SharedFile::create(bytes);
            file.reserve(0, bytes);
            file.use_huge_pages();
            return api::JointRegion::LocalRegion{.file = &file, .ranges = {{file.memory(), 0}}};
        });
        if (region->is_open()) {
            fork_child_handler.emplace([this] { file.map_over(file.memory(), 0, true); });
            memory = file.memory();
        } else {
            file = {};
            own.reset(static_cast<std::byte*>(std::aligned_alloc(cache_line, bytes)));
            if (!own) throw std::bad_alloc();
            memory = {own.get(), bytes};
            std::ranges::fill(memory, std::byte{0});
        }
    });
}

void GradientArena::State::allocate_on_device(std::size_t bytes, Device device,
                                              Session* session) try {
    region.emplace(session);
    const auto set = api::runtime_of(session)->world();
    const auto driver = set->driver_of(device.kind);
    auto allocated = device::allocate_owned(driver, device.index, bytes);
    const auto stream = driver->make_stream(device.index);
    driver->fill(*stream, allocated.memory, std::array<std::byte, 1>{});
    set->wait_for(*stream->record());
    memory = allocated.memory;
    on_device = std::move(allocated.owner);
} catch (const Error& error) {
    throw Error(error.code(), fmt::format("GradientArena: {}", error.what()));
}

GradientArena::GradientArena(std::size_t bytes, Session* session)
    : GradientArena(bytes, Device{}, session) {}
GradientArena::GradientArena(std::size_t bytes, Device device, Session* session)
    : state_(std::make_unique<State>(bytes, device, session)) {}
GradientArena::~GradientArena() {
    if (!state_->region->release(state_->memory)) base::keep_for_ever(std::move(state_));
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
    std::size_t bytes = 0;  ///< that this rank shares
    std::string problem;    ///< that came up when the sharing ended
    std::optional<api::JointRegion> region;
};

SharedMemory::SharedMemory() noexcept = default;
SharedMemory::SharedMemory(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
SharedMemory::SharedMemory(SharedMemory&&) noexcept = default;
SharedMemory& SharedMemory::operator=(SharedMemory&&) noexcept = default;
SharedMemory::~SharedMemory() = default;

bool SharedMemory::is_shared() const noexcept {
    return state_ && state_->region->is_open() && state_->bytes > 0;
}

namespace {

/// The work of share() on this rank.
struct Choice {
    std::vector<std::span<std::byte>> memory;  ///< to be shared
    /// Bytes of all tensors, and of those among them that are shared already.
    std::size_t bytes = 0, already_shared = 0;
};

/// Throws Error(invalid_argument) for a tensor that is only partly shared.
Choice choose_memory(std::span<const NamedTensor> tensors, const wire::Regions& regions) {
    for (const auto& [name, tensor] : tensors) api::check_tensor(tensor, "share", name);
    const auto last = api::same_memory(tensors, "share", "");
    Choice choice;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (last[i] != i) continue;
        const auto memory = tensors[i].tensor.memory();
        choice.bytes += memory.size();
        const auto pages = wire::whole_pages({&memory, 1});
        const auto shared_of = [&](std::span<const std::byte> bytes) {
            return static_cast<std::size_t>(regions.locate(bytes).bytes);
        };
        const auto shared = pages.empty() ? 0 : shared_of(pages.front());
        if (shared_of(memory) == memory.size() || (shared != 0 && shared == pages.front().size())) {
            choice.already_shared += shared_of(memory);
        } else if (shared == 0) {
            choice.memory.push_back(memory);
        } else {
            throw Error(ErrorCode::invalid_argument,
                        fmt::format("share: of the {} bytes of {}, {} lie in an arena or another "
                                    "registration; share it whole, in one call",
                                    memory.size(), base::quote(tensors[i].name), shared),
                        {.tensor = tensors[i].name, .operation = "share"});
        }
    }
    return choice;
}

void warn_if_useless(const Choice& choice, std::size_t newly_shared) {
    const auto shared = choice.already_shared + newly_shared;
    if (2 * shared >= choice.bytes) return;
    base::log_warning(fmt::format(
        "shared memory: of {} bytes only {} are in whole pages of their own, and so can be shared; "
        "the rest is reduced as other "
        "memory is. A GradientArena, or one buffer for all tensors, could be shared wholly",
        choice.bytes, shared));
}

}  // namespace

SharedMemory share(std::span<const NamedTensor> tensors, Session* session) {
    const auto runtime = api::runtime_of(session);
    Choice choice;
    std::exception_ptr problem;  // fails on all ranks, in the JointRegion
    try {
        choice = choose_memory(tensors, *runtime->transport().regions());
    } catch (...) {
        problem = std::current_exception();
    }
    auto state = std::make_unique<SharedMemory::State>();
    together(session, "share", [&] {
        state->region.emplace(session, "shared memory", [&] {
            if (problem) std::rethrow_exception(problem);
            auto& pages = state->pages.emplace(choice.memory);
            for (const auto& range : pages.ranges()) state->bytes += range.memory.size();
            return api::JointRegion::LocalRegion{
                .file = &pages.file(),
                .ranges = pages.ranges(),
                .unshare = [&pages, &left = state->problem] { left = pages.make_private(); }};
        });
        if (problem) std::rethrow_exception(problem);
        if (!state->region->is_open())
            state->pages.reset();
        else if (runtime->transport().rank() == 0)
            warn_if_useless(choice, state->bytes);
    });
    return SharedMemory(std::move(state));
}

SharedMemory share(std::span<const TensorView> tensors, Session* session) {
    std::vector<NamedTensor> named;
    for (const auto& tensor : tensors)
        named.push_back({fmt::format("tensor {}", named.size()), tensor});
    return share(std::span<const NamedTensor>(named), session);
}

}  // namespace guozhuang
