// Process sets, memory that ranks share, and plans.
#include "cases.h"
#include "check.h"

/// All ranks but the first, if there are two.
void test_process_sets(void) {
    int ranks[8], sum = own_rank(), number = -1;
    const int size = rank_count(), rank = own_rank(), first = size > 1 ? 1 : 0;
    const GzTensor tensor = {&sum, NULL, NULL, GZ_I32, 0, {GZ_HOST, 0}};
    GzProcessSet* set = NULL;
    GzOptions options = GZ_OPTIONS_INIT;
    for (int i = first; i < size; ++i) ranks[i - first] = i;
    OK(gz_process_set_create(ranks, (size_t)(size - first), &set));
    options.process_set = set;
    OK(gz_process_set_size(set, &number));
    CHECK(number == size - first);
    OK(gz_process_set_contains(set, 0, &number));
    CHECK(number == (size == 1));
    for (int i = 0; i < 8; ++i) ranks[i] = -1;
    OK(gz_process_set_ranks(set, ranks, 7));
    for (int i = first; i < size; ++i) CHECK(ranks[i - first] == i);
    CHECK(ranks[size - first] == -1);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "room for", gz_process_set_ranks(set, ranks, 0));
    if (rank >= first) {
        OK(gz_process_set_rank(set, &number));
        CHECK(number == rank - first);
        OK(gz_allreduce(&tensor, GZ_SUM, &options));
        CHECK(sum == size * (size - 1) / 2);
    } else {
        FAILS(GZ_ERROR_INVALID_ARGUMENT, "not in process set", gz_process_set_rank(set, &number));
        FAILS(GZ_ERROR_INVALID_ARGUMENT, "not in process set", gz_barrier(&options));
    }
    OK(gz_process_set_remove(set));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "", gz_barrier(&options));
    gz_process_set_free(set);
    OK(gz_process_set_size(NULL, &number));
    CHECK(number == size);
    set = NULL;
    ranks[0] = 99;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "rank 99 does not exist",
          gz_process_set_create(ranks, 1, &set));
    CHECK(set == NULL);
}

static void test_arena(void) {
    enum { COUNT = 1000 };
    const int64_t extent = COUNT;
    GzArena* arena = NULL;
    void* memory = NULL;
    size_t bytes = 0;
    int shared = -1;
    OK(gz_arena_create(1 << 16, NULL, &arena));
    OK(gz_arena_bytes(arena, &bytes));
    CHECK(bytes >= 1 << 16);
    OK(gz_arena_is_shared(arena, &shared));
    CHECK(shared == 1);
    OK(gz_arena_allocate(arena, COUNT * sizeof(float), 0, &memory));
    CHECK((uintptr_t)memory % 64 == 0);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "power of two", gz_arena_allocate(arena, 1, 3, &memory));
    FAILS(GZ_ERROR_OUT_OF_MEMORY, "", gz_arena_allocate(arena, 1 << 20, 0, &memory));
    float* gradient = memory;
    const GzTensor tensor = vector_of(gradient, GZ_F32, &extent);
    for (int i = 0; i < COUNT; ++i) gradient[i] = (float)own_rank();
    OK(gz_allreduce(&tensor, GZ_MAX, NULL));
    CHECK(gradient[0] == (float)(rank_count() - 1));
    gz_arena_free(arena);
}

static float pages[1 << 14] __attribute__((aligned(4096)));

void test_memory(void) {
    const int64_t extent = 1 << 14;
    GzSharedMemory* memory = NULL;
    int shared = -1;
    GzNamedTensor named = {"pages", {0}};
    test_arena();
    named.tensor = vector_of(pages, GZ_F32, &extent);
    for (int i = 0; i < extent; ++i) pages[i] = 1;
    OK(gz_share(&named, 1, &memory));
    OK(gz_shared_memory_is_shared(memory, &shared));
    CHECK(shared == 1);
    OK(gz_allreduce(&named.tensor, GZ_SUM, NULL));
    gz_shared_memory_free(memory);
    CHECK(pages[0] == (float)rank_count() && pages[extent - 1] == (float)rank_count());
}

static void reduce_twice(GzPlan* plan, float* numbers) {
    uint64_t joins = 99, joins_before = 98;
    int done = -1;
    size_t bundles = 0;
    const char* name = NULL;
    const GzStream stream = {{GZ_HOST, 0}, NULL};
    OK(gz_plan_joins(plan, &joins_before));
    OK(gz_plan_ready(plan, 1));
    FAILS(GZ_ERROR_DUPLICATE_NAME, "", gz_plan_ready(plan, 1));
    OK(gz_plan_ready(plan, 0));
    while (done != 1) OK(gz_plan_wait_for(plan, NULL, 0, 100, &done));
    CHECK(numbers[0] == (float)rank_count() && numbers[2] == (float)rank_count());
    OK(gz_plan_ready(plan, 0));
    OK(gz_plan_ready(plan, 1));
    OK(gz_plan_wait_streams(plan, &stream, 1));
    CHECK(numbers[0] == (float)(rank_count() * rank_count()));
    OK(gz_plan_joins(plan, &joins));
    CHECK(joins == joins_before);
    OK(gz_plan_size(plan, &bundles));
    OK(gz_plan_name(plan, &name));
    CHECK(bundles == 2 && strcmp(name, "three") == 0);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "bundle", gz_plan_ready(plan, 2));
}

void test_plans(void) {
    float numbers[] = {1, 1, 1};
    int done = -1;
    const size_t counts[] = {1, 2};
    char rank[8];
    GzPlan* plan = NULL;
    GzPlanOptions options = GZ_PLAN_OPTIONS_INIT;
    GzNamedTensor tensors[] = {{"a", {0}}, {"b", {0}}, {"c", {0}}};
    GzAgreement agreement = {"b", "versions", "1"};
    for (int i = 0; i < 3; ++i)
        tensors[i].tensor = (GzTensor){&numbers[i], NULL, NULL, GZ_F32, 0, {GZ_HOST, 0}};
    options.name = "three";
    options.op = GZ_SUM;
    OK(gz_plan_create(tensors, counts, 2, &options, &plan));
    OK(gz_plan_agree(plan, &agreement, 1));
    reduce_twice(plan, numbers);
    if (rank_count() > 1) {
        OK(gz_plan_ready(plan, 1));
        if (own_rank() == 1) OK(gz_plan_discard(plan, "no such image"));
        if (own_rank() != 1) OK(gz_plan_ready(plan, 0));
        if (own_rank() != 1)
            FAILS(GZ_ERROR_DISCARDED, "discarded by rank 1: no such image",
                  gz_plan_wait_for(plan, NULL, 0, INT64_MAX, &done));
        snprintf(rank, sizeof rank, "%d", own_rank());
        agreement.value = rank;
        OK(gz_plan_agree(plan, &agreement, 1));
        OK(gz_plan_ready(plan, 0));
        FAILS(GZ_ERROR_MISMATCH, "versions differ", gz_plan_wait(plan));
    }
    gz_plan_free(plan);
}
