// Trains a small GPT-2. Usage: train [FILE FOR THE LOSSES]
#include "model.h"

#include <guozhuang.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 24, STEPS = 200 };

static void must(GzStatus status) {
    if (status == GZ_OK) return;
    fprintf(stderr, "%s\n", gz_last_error()->message);
    gz_leave(gz_last_error()->message);
    exit(1);
}

typedef struct Trainer {
    Model model;
    GzReducer* reducer;
} Trainer;

static void layer_done(int layer, void* context) {
    const Trainer* trainer = context;
    for (size_t i = 0; i < TENSORS; ++i)
        if (trainer->model.tensors[i].layer == layer) must(gz_reducer_mark(trainer->reducer, i));
}

static int step_model(void* model) {
    model_step(model, 0.01F);
    return 0;
}

static GzReducer* reducer_of(const Model* model) {
    GzParameter parameters[TENSORS];
    GzReducer* reducer = NULL;
    for (int i = 0; i < TENSORS; ++i) {
        const Tensor* tensor = &model->tensors[i];
        const GzTensor any = {
            .shape = tensor->shape, .dimensions = tensor->dimensions, .dtype = GZ_F32};
        parameters[i] = (GzParameter){tensor->name, any, any};
        parameters[i].value.data = model->parameters + tensor->offset;
        parameters[i].gradient.data = model->gradients + tensor->offset;
    }
    must(gz_broadcast_parameters(parameters, TENSORS, 0, NULL));
    must(gz_reducer_create(parameters, TENSORS, NULL, &reducer));
    return reducer;
}

int main(int argc, char** argv) {
    int rank = 0, size = 0;
    must(gz_init(NULL));
    must(gz_rank(&rank));
    must(gz_size(&size));
    FILE* log = argc > 1 && rank == 0 ? fopen(argv[1], "w") : NULL;
    Trainer trainer = {.model = model_create(7)};
    Model* model = &trainer.model;
    trainer.reducer = reducer_of(model);
    for (int step = 0; step < STEPS; ++step) {
        const Batch batch = {step * BATCH + rank, size, BATCH / size};
        double loss = model_backward(model, &batch, layer_done, &trainer);
        must(gz_reducer_finish_pass(trainer.reducer, step_model, model, NULL));
        must(gz_allreduce(&(GzTensor){.data = &loss, .dtype = GZ_F64}, GZ_AVERAGE, NULL));
        if (log != NULL) fprintf(log, "%.8f\n", loss);
    }
    gz_reducer_free(trainer.reducer);
    const Batch test = {STEPS * BATCH + rank, size, BATCH / size};
    double accuracy = model_accuracy(model, &test);
    must(gz_allreduce(&(GzTensor){.data = &accuracy, .dtype = GZ_F64}, GZ_AVERAGE, NULL));
    if (rank == 0) printf("accuracy=%.3f ranks=%d\n", accuracy, size);
    model_free(model);
    must(gz_shutdown());
    return log != NULL && fclose(log) != 0;
}
