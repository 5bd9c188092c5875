// A reducer's passes against one process, and what fails in between.
#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "check.h"

enum { LAYERS = 3, WIDTH = 4, SAMPLES = 24, STEPS = 5 };

/// A linear model in f64: sum over layers and columns of weight times input, and its trainer.
typedef struct Model {
    double weights[LAYERS][WIDTH];
    double gradients[LAYERS][WIDTH];
    GzParameter parameters[LAYERS];
    int steps;
    int failures;  ///< of the steps to come
} Model;

static const int64_t width = WIDTH;

static void make(Model* model, double start) {
    static const char* const names[] = {"first", "second", "third"};
    memset(model, 0, sizeof *model);
    for (int layer = 0; layer < LAYERS; ++layer) {
        for (int i = 0; i < WIDTH; ++i) model->weights[layer][i] = start * (layer + 1) + i;
        model->parameters[layer].name = names[layer];
        model->parameters[layer].value = vector_of(model->weights[layer], GZ_F64, &width);
        model->parameters[layer].gradient = vector_of(model->gradients[layer], GZ_F64, &width);
    }
}

static double input(int sample, int layer, int i) {
    return ((sample * 7 + layer * 5 + i * 3) % 11 - 5) / 8.0;
}

/// Adds the gradient of the mean squared error over the samples first, first + stride ...; tells
/// the reducer of each layer, the last one first.
static void backward(Model* model, int first, int stride, GzReducer* reducer) {
    const int samples = (SAMPLES - first + stride - 1) / stride;
    double errors[SAMPLES] = {0};
    for (int sample = first; sample < SAMPLES; sample += stride) {
        errors[sample] = -(sample % 5);
        for (int layer = 0; layer < LAYERS; ++layer)
            for (int i = 0; i < WIDTH; ++i)
                errors[sample] += model->weights[layer][i] * input(sample, layer, i);
    }
    for (int layer = LAYERS - 1; layer >= 0; --layer) {
        for (int sample = first; sample < SAMPLES; sample += stride)
            for (int i = 0; i < WIDTH; ++i)
                model->gradients[layer][i] +=
                    2 * errors[sample] * input(sample, layer, i) / samples;
        if (reducer == NULL) continue;
        if (layer == 1)
            OK(gz_reducer_mark_name(reducer, "second"));
        else
            OK(gz_reducer_mark(reducer, (size_t)layer));
    }
}

static int step(void* context) {
    Model* model = context;
    if (model->failures > 0) {
        --model->failures;
        return GZ_ERROR_INVALID_ARGUMENT;  // a number of its own: no call has failed with it
    }
    for (int layer = 0; layer < LAYERS; ++layer)
        for (int i = 0; i < WIDTH; ++i) {
            model->weights[layer][i] -= 0.05 * model->gradients[layer][i];
            model->gradients[layer][i] = 0;
        }
    ++model->steps;
    return 0;
}

static void expect_same(const Model* model, const Model* other) {
    for (int layer = 0; layer < LAYERS; ++layer)
        for (int i = 0; i < WIDTH; ++i)
            CHECK(fabs(model->weights[layer][i] - other->weights[layer][i]) < 1e-12);
}

/// Two passes for each step, of which the first reduces nothing. SAMPLES is a multiple of all
/// numbers of ranks.
static void train_in_two_passes(int uses_pause) {
    Model model, alone;
    int stepped = -1;
    float uses[LAYERS];
    int32_t groups[LAYERS] = {0};  // all in one
    GzReducer* reducer = NULL;
    GzReducerOptions options = GZ_REDUCER_OPTIONS_INIT;
    make(&model, 0.25);
    make(&alone, 0.25);
    options.backward_passes_per_step = uses_pause ? 1 : 2;
    options.gradient_scale = 0.5;
    options.first_bundle_bytes = options.bundle_bytes = 1;  // a bundle for each layer
    if (uses_pause) options.uses = uses;
    if (uses_pause) options.groups = groups;
    OK(gz_reducer_create(model.parameters, LAYERS, &options, &reducer));
    for (int i = 0; i < STEPS; ++i) {
        int done = -1, closed = -1, synchronised = -1, used = -1;
        if (uses_pause) OK(gz_reducer_pause(reducer));
        backward(&model, own_rank(), rank_count(), reducer);
        if (uses_pause) {
            OK(gz_reducer_resume(reducer));
        } else {
            OK(gz_reducer_finish_pass(reducer, step, &model, &stepped));
            CHECK(stepped == 0);
        }
        backward(&model, own_rank(), rank_count(), reducer);
        if (uses_pause) OK(gz_reducer_close(reducer));
        OK(gz_reducer_is_closed(reducer, &closed));
        CHECK(closed == uses_pause);
        while (done != 1) OK(gz_reducer_synchronize_for(reducer, 50, &done));
        OK(gz_reducer_is_used(reducer, LAYERS - 1, &used));
        OK(gz_reducer_is_synchronised(reducer, &synchronised));
        CHECK(synchronised == 1 && used == 1 && (!uses_pause || uses[0] > 0));
        OK(gz_reducer_synchronize(reducer));  // has nothing left to do
        OK(gz_reducer_finish_pass(reducer, step, &model, &stepped));
        CHECK(stepped == 1);
        backward(&alone, 0, 1, NULL);
        step(&alone);
    }
    CHECK(model.steps == STEPS && fabs(model.weights[0][1] - 1.25) > 0.01);
    expect_same(&model, &alone);
    OK(gz_check_consistent(model.parameters, LAYERS, NULL, NULL));
    gz_reducer_free(reducer);
}

void test_training(void) {
    train_in_two_passes(0);
    train_in_two_passes(1);
}

static int step_with_error(void* unused) {
    float value = 1;
    const GzTensor tensor = {&value, NULL, NULL, GZ_F32, 0, {GZ_HOST, 0}};
    (void)unused;
    return gz_broadcast(&tensor, 31, NULL);
}

static void test_failing_steps(Model* model, GzReducer* reducer) {
    int stepped = 99;
    const int steps = model->steps;
    backward(model, own_rank(), rank_count(), reducer);
    model->failures = 1;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "root 31", step_with_error(NULL));  // and is done with
    FAILS(GZ_ERROR_CALLBACK, "returned 1", gz_reducer_finish_pass(reducer, step, model, &stepped));
    CHECK(model->steps == steps && stepped == 99);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "root 31",
          gz_reducer_finish_pass(reducer, step_with_error, NULL, &stepped));
    OK(gz_reducer_finish_pass(reducer, step, model, NULL));  // only steps
    CHECK(model->steps == steps + 1);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "called twice",
          gz_reducer_finish_pass(reducer, step, model, NULL));
}

static void test_discarded_batches(Model* model, GzReducer* reducer) {
    const int is_last = own_rank() == rank_count() - 1, steps = model->steps;
    char text[64];
    snprintf(text, sizeof text, "discarded by rank %d: bad image", rank_count() - 1);
    backward(model, own_rank(), rank_count(), reducer);
    if (is_last)
        OK(gz_reducer_discard(reducer, "bad image"));
    else
        FAILS(GZ_ERROR_DISCARDED, text, gz_reducer_finish_pass(reducer, step, model, NULL));
    CHECK(model->steps == steps);
    if (!is_last) CHECK(gz_last_error()->rank_count == 1);
    if (!is_last) CHECK(gz_last_error()->ranks[0] == rank_count() - 1);
}

void test_failing_batches(void) {
    Model model;
    GzReducer *reducer = NULL, *other = NULL;
    GzReducerOptions options = GZ_REDUCER_OPTIONS_INIT;
    make(&model, 1);
    options.name = "failing";
    OK(gz_reducer_create(model.parameters, LAYERS, &options, &reducer));
    FAILS(GZ_ERROR_DUPLICATE_NAME, "failing",
          gz_reducer_create(model.parameters, LAYERS, &options, &other));
    CHECK(other == NULL);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no parameter has a gradient",
          gz_reducer_create(&(GzParameter){"w", model.parameters[0].value, {0}}, 1, NULL, &other));
    test_failing_steps(&model, reducer);
    test_discarded_batches(&model, reducer);
    backward(&model, own_rank(), rank_count(), reducer);  // all go on
    OK(gz_reducer_finish_pass(reducer, step, &model, NULL));
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "", gz_reducer_mark(reducer, 77));
    OK(gz_reducer_discard(reducer, "the hook has failed"));
    gz_reducer_free(reducer);
    make(&model, own_rank() == 0 ? 2 : 1);
    if (rank_count() == 1) return;
    FAILS(GZ_ERROR_MISMATCH, "'first'", gz_check_consistent(model.parameters, LAYERS, NULL, NULL));
    OK(gz_reducer_create(model.parameters, LAYERS, NULL, &reducer));
    FAILS(GZ_ERROR_MISMATCH, "values (broadcast_parameters makes them the same; ",
          gz_reducer_finish_pass(reducer, step, &model, NULL));
    gz_reducer_free(reducer);
}

static void test_bytes(void) {
    const int size = rank_count(), rank = own_rank();
    const char text[] = "0123456789";
    GzBytes* bytes = NULL;
    const void* data = NULL;
    size_t count = 0;
    OK(gz_broadcast_bytes(text, rank == 0 ? 5 : 0, 0, NULL, &bytes));
    OK(gz_bytes_get(bytes, 0, &data, &count));
    CHECK(count == 5 && memcmp(data, text, 5) == 0);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "byte strings", gz_bytes_get(bytes, 1, &data, &count));
    gz_bytes_free(bytes);
    FAILS(GZ_ERROR_OUT_OF_MEMORY, "so long a list",
          gz_all_gather_bytes(text, SIZE_MAX, NULL, &bytes));
    OK(gz_all_gather_bytes(text, (size_t)rank, NULL, &bytes));
    OK(gz_bytes_count(bytes, &count));
    CHECK(count == (size_t)size);
    OK(gz_bytes_get(bytes, (size_t)size - 1, &data, &count));
    CHECK(count == (size_t)size - 1 && memcmp(data, text, count) == 0);
    gz_bytes_free(bytes);
}

static void test_sampler(void) {
    enum { ALL = 1000 };
    int seen[ALL] = {0};
    GzSampler* sampler = NULL;
    const size_t* indices = NULL;
    size_t count = 0, first = 0;
    const int64_t extent = ALL;
    const GzTensor counts = vector_of(seen, GZ_I32, &extent);
    GzSamplerOptions options = GZ_SAMPLER_OPTIONS_INIT;
    options.tail = GZ_UNEVEN;
    options.seed = 3;
    OK(gz_sampler_create(ALL, &options, &sampler));
    OK(gz_sampler_indices(sampler, &indices, &count));
    first = indices[0];
    for (size_t i = 0; i < count; ++i) ++seen[indices[i]];
    OK(gz_allreduce(&counts, GZ_SUM, NULL));
    for (int i = 0; i < ALL; ++i) CHECK(seen[i] == 1);
    OK(gz_sampler_set_epoch(sampler, 1));
    OK(gz_sampler_indices(sampler, &indices, &count));
    CHECK(indices[0] != first);
    gz_sampler_free(sampler);
    options.tail = 3;
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "no tail 3", gz_sampler_create(ALL, &options, &sampler));
}

void test_helpers(void) {
    Model model;
    size_t steps = 0;
    double norm = 0, metrics[2] = {own_rank(), 5};
    const char* const keys[] = {"rank", "five"};
    const char* const twice[] = {"five", "five"};
    float velocity = (float)own_rank();
    const GzNamedTensor state = {"velocity", {&velocity, NULL, NULL, GZ_F32, 0, {GZ_HOST, 0}}};
    test_bytes();
    test_sampler();
    make(&model, 1);
    model.gradients[0][0] = 3;
    model.gradients[2][3] = 4;
    OK(gz_clip_by_global_norm(model.parameters, LAYERS, 1, NULL, &norm));
    CHECK(norm == 5 && fabs(model.gradients[0][0] - 0.6) < 1e-12);
    OK(gz_scale_learning_rate(0.5, NULL, &norm));
    CHECK(norm == 0.5 * rank_count());
    OK(gz_steps_per_epoch(100, 7, NULL, &steps));
    CHECK(steps == (99 / (7 * (size_t)rank_count())) + 1);
    OK(gz_average_metrics(keys, metrics, 2, NULL));
    CHECK(metrics[0] == (rank_count() - 1) / 2.0 && metrics[1] == 5);
    FAILS(GZ_ERROR_INVALID_ARGUMENT, "given twice", gz_average_metrics(twice, metrics, 2, NULL));
    OK(gz_broadcast_optimizer_state(&state, 1, rank_count() - 1, NULL));
    CHECK(velocity == (float)(rank_count() - 1));
}
