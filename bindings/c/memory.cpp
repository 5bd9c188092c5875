#include <guozhuang/arena.hpp>
#include <guozhuang/plan.hpp>
#include <utility>

#include "border.hpp"

struct GzArena {
    guozhuang::GradientArena arena;
};
struct GzSharedMemory {
    guozhuang::SharedMemory memory;
};
struct GzPlan {
    guozhuang::Plan plan;
};

using namespace guozhuang::c;  // NOLINT(google-build-using-namespace)
namespace gz = guozhuang;

namespace {

constexpr std::size_t cache_line = 64;

std::vector<std::vector<gz::NamedTensor>> bundles_of(const GzNamedTensor* tensors,
                                                     std::span<const std::size_t> counts) {
    std::vector<std::vector<gz::NamedTensor>> bundles;
    for (const auto count : counts) {
        bundles.push_back(named_tensors_of(tensors, count));
        if (count > 0) tensors += count;
    }
    return bundles;
}

std::vector<gz::StreamRef> streams_of(const GzStream* streams, std::size_t count) {
    std::vector<gz::StreamRef> list;
    for (const auto& stream : list_of(streams, count, "the streams"))
        list.push_back(*stream_of(&stream));
    return list;
}

gz::Plan* plan_of(GzPlan* plan) {
    return &required(plan, "the plan").plan;
}

}  // namespace

GzStatus gz_arena_create(size_t bytes, const GzDevice* device, GzArena** arena) {
    return create(arena, [&] {
        return device == nullptr ? new GzArena{gz::GradientArena(bytes)}
                                 : new GzArena{gz::GradientArena(bytes, device_of(*device))};
    });
}
GzStatus gz_arena_allocate(GzArena* arena, size_t bytes, size_t alignment, void** memory) {
    return put(memory, [&] {
        auto& from = required(arena, "the arena").arena;
        if ((alignment & (alignment - 1)) != 0)
            refuse("an alignment of " + std::to_string(alignment) + ", which is no power of two");
        return from.allocate(bytes, alignment == 0 ? cache_line : alignment);
    });
}
GzStatus gz_arena_bytes(const GzArena* arena, size_t* bytes) {
    return put(bytes, [&] { return required(arena, "the arena").arena.bytes(); });
}
GzStatus gz_arena_is_shared(const GzArena* arena, int* shared) {
    return put(shared, [&] { return required(arena, "the arena").arena.is_shared() ? 1 : 0; });
}
void gz_arena_free(GzArena* arena) {
    delete arena;
}

GzStatus gz_share(const GzNamedTensor* tensors, size_t count, GzSharedMemory** memory) {
    return create(memory,
                  [&] { return new GzSharedMemory{gz::share(named_tensors_of(tensors, count))}; });
}
GzStatus gz_shared_memory_is_shared(const GzSharedMemory* memory, int* shared) {
    return put(shared, [&] { return required(memory, "the memory").memory.is_shared() ? 1 : 0; });
}
void gz_shared_memory_free(GzSharedMemory* memory) {
    delete memory;
}

GzStatus gz_plan_create(const GzNamedTensor* tensors, const size_t* bundle_counts, size_t bundles,
                        const GzPlanOptions* options, GzPlan** plan) {
    return create(plan, [&] {
        const auto given = options_or(options, GzPlanOptions GZ_PLAN_OPTIONS_INIT);
        return new GzPlan{
            gz::Plan(bundles_of(tensors, list_of(bundle_counts, bundles, "the bundles' counts")),
                     {.name = text_of(given.name),
                      .op = reduce_op_of(given.op),
                      .prescale = given.prescale,
                      .postscale = given.postscale,
                      .stream = stream_of(given.stream),
                      .process_set = set_of(given.process_set)})};
    });
}
GzStatus gz_plan_ready(GzPlan* plan, size_t bundle) {
    return guarded([&] { plan_of(plan)->ready(bundle); });
}
GzStatus gz_plan_ready_streams(GzPlan* plan, size_t bundle, const GzStream* streams, size_t count) {
    return guarded([&] { plan_of(plan)->ready(bundle, {.streams = streams_of(streams, count)}); });
}
GzStatus gz_plan_wait(GzPlan* plan) {
    return guarded([&] { plan_of(plan)->wait(); });
}
GzStatus gz_plan_wait_streams(GzPlan* plan, const GzStream* streams, size_t count) {
    return guarded([&] { plan_of(plan)->wait(streams_of(streams, count)); });
}
GzStatus gz_plan_wait_for(GzPlan* plan, const GzStream* streams, size_t count, int64_t limit_us,
                          int* done) {
    return put(done, [&] {
        const auto limit = limit_of(limit_us);
        return plan_of(plan)->wait_for(limit, streams_of(streams, count)) ? 1 : 0;
    });
}
GzStatus gz_plan_agree(GzPlan* plan, const GzAgreement* agreements, size_t count) {
    return guarded([&] {
        std::vector<gz::Agreement> list;
        for (const auto& [tensor, what, value] : list_of(agreements, count, "the agreements"))
            list.push_back({text_of(tensor), required_text(what), required_text(value)});
        plan_of(plan)->agree(std::move(list));
    });
}
GzStatus gz_plan_discard(GzPlan* plan, const char* reason) {
    return guarded([&] { plan_of(plan)->discard(text_of(reason)); });
}
GzStatus gz_plan_joins(const GzPlan* plan, uint64_t* joins) {
    return put(joins, [&] { return required(plan, "the plan").plan.joins(); });
}
GzStatus gz_plan_size(const GzPlan* plan, size_t* bundles) {
    return put(bundles, [&] { return required(plan, "the plan").plan.size(); });
}
GzStatus gz_plan_name(const GzPlan* plan, const char** name) {
    return put(name, [&] { return required(plan, "the plan").plan.name().c_str(); });
}
void gz_plan_free(GzPlan* plan) {
    delete plan;
}
