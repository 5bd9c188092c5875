// Trains a small multilayer perceptron. Usage: train [FILE FOR THE LOSSES]
#include "model.h"

#include <stdio.h>

enum { BATCH = 48, STEPS = 1500, TESTS = 20 };

int main(int argc, char** argv) {
    FILE* log = argc > 1 ? fopen(argv[1], "w") : NULL;
    Model model = model_create(7);
    for (int step = 0; step < STEPS; ++step) {
        const Batch batch = {step * BATCH, 1, BATCH};
        double loss = model_backward(&model, &batch, NULL, NULL);
        model_step(&model, 0.2F);
        if (log != NULL) fprintf(log, "%.8f\n", loss);
    }
    int correct = 0;
    for (int test = 0; test < TESTS; ++test) {
        const Batch batch = {(STEPS + test) * BATCH, 1, BATCH};
        correct += model_count_correct(&model, &batch);
    }
    printf("accuracy=%.3f\n", (double)correct / (TESTS * BATCH));
    model_free(&model);
    return log != NULL && fclose(log) != 0;
}
