// Trains a small multilayer perceptron. Usage: train [FILE FOR THE LOSSES]
#include "model.h"

#include <guozhuang.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 48, STEPS = 1500, TESTS = 20 };

static void must(GzStatus status) {
    if (status == GZ_OK) return;
    fprintf(stderr, "%s\n", gz_last_error()->message);
    gz_leave(gz_last_error()->message);
    exit(1);
}

static void layer_done(int layer, void* reducer) {
    must(gz_reducer_mark(reducer, (size_t)layer));
}

static int step_model(void* model) {
    model_step(model, 0.2F);
    return 0;
}

int main(int argc, char** argv) {
    int rank = 0, size = 0;
    must(gz_init(NULL));
    must(gz_rank(&rank));
    must(gz_size(&size));
    FILE* log = argc > 1 && rank == 0 ? fopen(argv[1], "w") : NULL;
    Model model = model_create(7);
    GzParameter parameters[LAYERS];
    for (int i = 0; i < LAYERS; ++i) {
        const Layer* layer = &model.layers[i];
        const GzTensor tensor = {.shape = &layer->count, .dimensions = 1, .dtype = GZ_F32};
        parameters[i] = (GzParameter){layer->name, tensor, tensor};
        parameters[i].value.data = model.parameters + layer->offset;
        parameters[i].gradient.data = model.gradients + layer->offset;
    }
    must(gz_broadcast_parameters(parameters, LAYERS, 0, NULL));
    GzReducer* reducer = NULL;
    must(gz_reducer_create(parameters, LAYERS, NULL, &reducer));
    for (int step = 0; step < STEPS; ++step) {
        const Batch batch = {step * BATCH + rank, size, BATCH / size};
        double loss = model_backward(&model, &batch, layer_done, reducer);
        must(gz_reducer_finish_pass(reducer, step_model, &model, NULL));
        must(gz_allreduce(&(GzTensor){.data = &loss, .dtype = GZ_F64}, GZ_AVERAGE, NULL));
        if (log != NULL) fprintf(log, "%.8f\n", loss);
    }
    gz_reducer_free(reducer);
    int correct = 0;
    for (int test = 0; test < TESTS; ++test) {
        const Batch batch = {(STEPS + test) * BATCH + rank, size, BATCH / size};
        correct += model_count_correct(&model, &batch);
    }
    must(gz_allreduce(&(GzTensor){.data = &correct, .dtype = GZ_I32}, GZ_SUM, NULL));
    if (rank == 0) printf("accuracy=%.3f ranks=%d\n", (double)correct / (TESTS * BATCH), size);
    model_free(&model);
    must(gz_shutdown());
    return log != NULL && fclose(log) != 0;
}
