#ifndef MODEL_H
#define MODEL_H

/// A small GPT-2 that knows nothing of Guozhuang: token and position embeddings, blocks of
/// attention and multilayer perceptron, and scores by the token embeddings again. As trainers in C
/// do, it has all parameters in one buffer and all gradients in another, and works layer by layer.
#include <stddef.h>
#include <stdint.h>

enum {
    VOCABULARY = 16,
    LENGTH = 12,  ///< of a sequence
    CHANNELS = 24,
    HEADS = 2,
    BLOCKS = 2,
    LAYERS = BLOCKS + 2,  ///< the embeddings, the blocks and the last normalisation
    BLOCK_TENSORS = 12,
    TENSORS = 4 + BLOCKS * BLOCK_TENSORS,
    MOST_SAMPLES = 24
};

typedef struct Tensor {
    char name[32];  ///< as in GPT-2: "h.0.attn.c_attn.weight"
    int layer;
    int64_t shape[2];
    int dimensions;
    size_t offset;  ///< in the buffers
} Tensor;

typedef struct Model {
    Tensor tensors[TENSORS];  ///< layer by layer
    size_t count;             ///< of all parameters
    float* parameters;
    float* gradients;
    float *means, *squares;  ///< what Adam keeps
    int steps;
    struct Activations* activations;  ///< of each sample
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
/// A step of Adam.
void model_step(Model* model, float rate);
/// The part of the tokens that can be known which it gets right.
double model_accuracy(Model* model, const Batch* batch);

#endif
