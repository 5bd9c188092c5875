// Trains a small GPT-2. Usage: train [FILE FOR THE LOSSES]
#include "model.h"

#include <stdio.h>

enum { BATCH = 24, STEPS = 200 };

int main(int argc, char** argv) {
    FILE* log = argc > 1 ? fopen(argv[1], "w") : NULL;
    Model model = model_create(7);
    for (int step = 0; step < STEPS; ++step) {
        const Batch batch = {step * BATCH, 1, BATCH};
        double loss = model_backward(&model, &batch, NULL, NULL);
        model_step(&model, 0.01F);
        if (log != NULL) fprintf(log, "%.8f\n", loss);
    }
    const Batch test = {STEPS * BATCH, 1, BATCH};
    double accuracy = model_accuracy(&model, &test);
    printf("accuracy=%.3f\n", accuracy);
    model_free(&model);
    return log != NULL && fclose(log) != 0;
}
