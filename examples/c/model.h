#ifndef MODEL_H
#define MODEL_H

/// A small multilayer perceptron that knows nothing of Guozhuang. As trainers in C do, it has all
/// parameters in one buffer and all gradients in another, layer by layer.
#include <stddef.h>
#include <stdint.h>

enum { INPUTS = 16, WIDTH = 32, CLASSES = 4, LAYERS = 3, MOST_SAMPLES = 48 };

typedef struct Layer {
    const char* name;
    int inputs, outputs;
    size_t offset;  ///< of its parameters in the buffers: weights by output, then biases
    int64_t count;  ///< of its parameters
} Layer;

typedef struct Model {
    Layer layers[LAYERS];
    size_t count;
    float* parameters;
    float* gradients;
} Model;

/// Some of the samples that there are: first, first + stride ...; at most MOST_SAMPLES.
typedef struct Batch {
    int first, stride, count;
} Batch;

Model model_create(uint32_t seed);
void model_free(Model* model);

/// The mean loss of the batch, whose gradients it leaves in the buffer. Calls `done` (may be NULL)
/// for each layer, the last one first, as soon as its gradients are complete.
double model_backward(Model* model, const Batch* batch, void (*done)(int layer, void* context),
                      void* context);
/// A step of gradient descent.
void model_step(Model* model, float rate);
/// How many samples of the batch it gets right.
int model_count_correct(const Model* model, const Batch* batch);

#endif
