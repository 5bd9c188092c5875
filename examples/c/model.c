#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/// The activations of a batch, layer by layer; those of layer 0 are its inputs.
typedef struct Activations {
    float values[LAYERS + 1][MOST_SAMPLES][WIDTH];
    int labels[MOST_SAMPLES];
} Activations;

/// From -1 to 1; the next number of a series.
static float draw(uint32_t* state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1u << 23) - 1;
}

/// The label says which of four sums of products of the inputs is the greatest.
static int draw_sample(int index, float* inputs) {
    uint32_t state = (uint32_t)index * 2654435761u + 12345u;
    float greatest = -INFINITY;
    int label = 0;
    for (int i = 0; i < INPUTS; ++i) inputs[i] = draw(&state);
    for (int class = 0; class < CLASSES; ++class) {
        const float* own = inputs + class * (INPUTS / CLASSES);
        const float score = own[0] + own[1] + own[2] * own[3];
        if (score > greatest) {
            greatest = score;
            label = class;
        }
    }
    return label;
}

Model model_create(uint32_t seed) {
    static const char* const names[LAYERS] = {"first", "second", "last"};
    Model model = {.count = 0};
    for (int i = 0; i < LAYERS; ++i) {
        const int inputs = i == 0 ? INPUTS : WIDTH, outputs = i + 1 == LAYERS ? CLASSES : WIDTH;
        model.layers[i] =
            (Layer){names[i], inputs, outputs, model.count, (int64_t)outputs * (inputs + 1)};
        model.count += (size_t)model.layers[i].count;
    }
    model.parameters = calloc(model.count, sizeof(float));
    model.gradients = calloc(model.count, sizeof(float));
    if (model.parameters == NULL || model.gradients == NULL) abort();
    for (int i = 0; i < LAYERS; ++i) {
        const Layer* layer = &model.layers[i];
        for (int weight = 0; weight < layer->outputs * layer->inputs; ++weight)
            model.parameters[layer->offset + (size_t)weight] =
                draw(&seed) * sqrtf(3 / (float)layer->inputs);
    }
    return model;
}

void model_free(Model* model) {
    free(model->parameters);
    free(model->gradients);
}

static void layer_forward(const Model* model, int index, const float* inputs, float* outputs) {
    const Layer* layer = &model->layers[index];
    const float* weights = model->parameters + layer->offset;
    const float* biases = weights + layer->outputs * layer->inputs;
    for (int o = 0; o < layer->outputs; ++o) {
        float sum = biases[o];
        for (int i = 0; i < layer->inputs; ++i) sum += weights[o * layer->inputs + i] * inputs[i];
        outputs[o] = index + 1 == LAYERS ? sum : tanhf(sum);
    }
}

static void forward(const Model* model, const Batch* batch, Activations* all) {
    for (int n = 0; n < batch->count; ++n) {
        all->labels[n] = draw_sample(batch->first + n * batch->stride, all->values[0][n]);
        for (int i = 0; i < LAYERS; ++i)
            layer_forward(model, i, all->values[i][n], all->values[i + 1][n]);
    }
}

/// Turns scores into their part in the gradient of the mean loss; returns that of the loss.
static double softmax(float* scores, int label, int count) {
    float sum = 0, greatest = scores[0];
    for (int i = 1; i < CLASSES; ++i) greatest = fmaxf(greatest, scores[i]);
    for (int i = 0; i < CLASSES; ++i) sum += scores[i] = expf(scores[i] - greatest);
    const double loss = -log(scores[label] / sum);
    for (int i = 0; i < CLASSES; ++i)
        scores[i] = (scores[i] / sum - (i == label ? 1.0F : 0.0F)) / (float)count;
    return loss / count;
}

/// Adds a sample's part in the gradients of a layer. `deltas` are those of its outputs; those of
/// its inputs take the inputs' memory.
static void layer_backward(Model* model, const Layer* layer, float* inputs, const float* deltas) {
    const float* weights = model->parameters + layer->offset;
    float* gradients = model->gradients + layer->offset;
    for (int o = 0; o < layer->outputs; ++o) {
        for (int i = 0; i < layer->inputs; ++i)
            gradients[o * layer->inputs + i] += deltas[o] * inputs[i];
        gradients[layer->outputs * layer->inputs + o] += deltas[o];
    }
    for (int i = 0; i < layer->inputs; ++i) {
        float sum = 0;
        for (int o = 0; o < layer->outputs; ++o) sum += deltas[o] * weights[o * layer->inputs + i];
        inputs[i] = sum * (1 - inputs[i] * inputs[i]);
    }
}

double model_backward(Model* model, const Batch* batch, void (*done)(int layer, void* context),
                      void* context) {
    Activations all;
    double loss = 0;
    forward(model, batch, &all);
    memset(model->gradients, 0, model->count * sizeof(float));
    for (int n = 0; n < batch->count; ++n)
        loss += softmax(all.values[LAYERS][n], all.labels[n], batch->count);
    for (int i = LAYERS - 1; i >= 0; --i) {
        for (int n = 0; n < batch->count; ++n)
            layer_backward(model, &model->layers[i], all.values[i][n], all.values[i + 1][n]);
        if (done != NULL) done(i, context);
    }
    return loss;
}

void model_step(Model* model, float rate) {
    for (size_t i = 0; i < model->count; ++i) model->parameters[i] -= rate * model->gradients[i];
}

int model_count_correct(const Model* model, const Batch* batch) {
    Activations all;
    int correct = 0;
    forward(model, batch, &all);
    for (int n = 0; n < batch->count; ++n) {
        const float* scores = all.values[LAYERS][n];
        int best = 0;
        for (int i = 1; i < CLASSES; ++i)
            if (scores[i] > scores[best]) best = i;
        correct += best == all.labels[n];
    }
    return correct;
}
