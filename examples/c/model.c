#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 4 * CHANNELS, HEAD = CHANNELS / HEADS, PERIOD = 3 };
enum { TOKEN_EMBEDDING, POSITION_EMBEDDING, BLOCK, LAST_NORM = TENSORS - 2 };
/// The tensors of a block: a weight, and the bias behind it.
enum { NORM1 = 0, QKV = 2, PROJECTION = 4, NORM2 = 6, UP = 8, DOWN = 10 };

typedef float Rows[LENGTH * CHANNELS];  ///< one for each token

typedef struct BlockActivations {
    Rows input, norm1;
    float qkv[LENGTH * 3 * CHANNELS];  ///< for each token its query, key and value, of all heads
    float attention[HEADS][LENGTH][LENGTH];
    Rows mixed, middle, norm2;
    float hidden[LENGTH * HIDDEN], active[LENGTH * HIDDEN];
} BlockActivations;

/// Values of one sample that forward saves for backward.
typedef struct Activations {
    int tokens[LENGTH + 1];
    BlockActivations blocks[BLOCKS];
    Rows output, norm;
    float scores[LENGTH][VOCABULARY];
    Rows delta;  ///< of the loss by what flows between the layers
} Activations;

/// A weight and the bias behind it, and their gradients.
typedef struct Weights {
    const float *weight, *bias;
    float *weight_gradient, *bias_gradient;
} Weights;

static float* value_of(const Model* model, int tensor) {
    return model->parameters + model->tensors[tensor].offset;
}
static float* gradient_of(const Model* model, int tensor) {
    return model->gradients + model->tensors[tensor].offset;
}
static Weights weights_of(const Model* model, int tensor) {
    return (Weights){value_of(model, tensor), value_of(model, tensor + 1),
                     gradient_of(model, tensor), gradient_of(model, tensor + 1)};
}

/// From -1 to 1; the next number of a series.
static float draw(uint32_t* state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1u << 23) - 1;
}

/// Tokens that repeat after a period: what is behind the first of them can be known.
static void draw_tokens(int sample, int* tokens) {
    uint32_t state = (uint32_t)sample * 2654435761u + 12345u;
    for (int i = 0; i <= LENGTH; ++i)
        tokens[i] = i < PERIOD ? (int)((draw(&state) + 1) / 2 * VOCABULARY) : tokens[i - PERIOD];
}

static void add_tensor(Model* model, int index, int layer, const char* name, int64_t rows,
                       int64_t columns) {
    Tensor* tensor = &model->tensors[index];
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    tensor->layer = layer;
    tensor->dimensions = columns == 0 ? 1 : 2;
    tensor->shape[0] = rows;
    tensor->shape[1] = columns;
    tensor->offset = model->count;
    model->count += (size_t)(columns == 0 ? rows : rows * columns);
}

static void add_block(Model* model, int block) {
    static const struct {
        const char* name;
        int rows, columns;
    } parts[] = {{"ln_1", CHANNELS, 0},
                 {"attn.c_attn", 3 * CHANNELS, CHANNELS},
                 {"attn.c_proj", CHANNELS, CHANNELS},
                 {"ln_2", CHANNELS, 0},
                 {"mlp.c_fc", HIDDEN, CHANNELS},
                 {"mlp.c_proj", CHANNELS, HIDDEN}};
    for (int i = 0; i < BLOCK_TENSORS; ++i) {
        char name[32];
        const int is_bias = i % 2;
        snprintf(name, sizeof name, "h.%d.%s.%s", block, parts[i / 2].name,
                 is_bias ? "bias" : "weight");
        add_tensor(model, BLOCK + block * BLOCK_TENSORS + i, block + 1, name, parts[i / 2].rows,
                   is_bias ? 0 : parts[i / 2].columns);
    }
}

static float* zeros(size_t count) {
    float* memory = calloc(count, sizeof *memory);
    if (memory == NULL) abort();
    return memory;
}

static void draw_parameters(Model* model, uint32_t seed) {
    for (int i = 0; i < TENSORS; ++i) {
        const Tensor* tensor = &model->tensors[i];
        const int is_norm = tensor->dimensions == 1 && strstr(tensor->name, "weight") != NULL;
        float* values = model->parameters + tensor->offset;
        if (is_norm)
            for (int64_t k = 0; k < tensor->shape[0]; ++k) values[k] = 1;
        if (tensor->dimensions == 2)
            for (int64_t k = 0; k < tensor->shape[0] * tensor->shape[1]; ++k)
                values[k] = 0.2F * draw(&seed);
    }
}

Model model_create(uint32_t seed) {
    Model model = {.count = 0};
    add_tensor(&model, TOKEN_EMBEDDING, 0, "wte.weight", VOCABULARY, CHANNELS);
    add_tensor(&model, POSITION_EMBEDDING, 0, "wpe.weight", LENGTH, CHANNELS);
    for (int block = 0; block < BLOCKS; ++block) add_block(&model, block);
    add_tensor(&model, LAST_NORM, LAYERS - 1, "ln_f.weight", CHANNELS, 0);
    add_tensor(&model, LAST_NORM + 1, LAYERS - 1, "ln_f.bias", CHANNELS, 0);
    model.parameters = zeros(model.count);
    model.gradients = zeros(model.count);
    model.means = zeros(model.count);
    model.squares = zeros(model.count);
    model.activations = calloc(MOST_SAMPLES, sizeof *model.activations);
    if (model.activations == NULL) abort();
    draw_parameters(&model, seed);
    return model;
}

void model_free(Model* model) {
    free(model->parameters);
    free(model->gradients);
    free(model->means);
    free(model->squares);
    free(model->activations);
}

// --- The parts of a layer: forward, and backward, which adds to gradients and to `in_delta`. -----

static void linear(Weights by, int inputs, int outputs, const float* in, float* out) {
    for (int t = 0; t < LENGTH; ++t, in += inputs)
        for (int o = 0; o < outputs; ++o) {
            float sum = by.bias[o];
            for (int i = 0; i < inputs; ++i) sum += by.weight[o * inputs + i] * in[i];
            *out++ = sum;
        }
}

static void linear_backward(Weights by, int inputs, int outputs, const float* in,
                            const float* delta, float* in_delta) {
    for (int t = 0; t < LENGTH; ++t, in += inputs, in_delta += inputs)
        for (int o = 0; o < outputs; ++o, ++delta) {
            by.bias_gradient[o] += *delta;
            for (int i = 0; i < inputs; ++i) {
                by.weight_gradient[o * inputs + i] += *delta * in[i];
                in_delta[i] += *delta * by.weight[o * inputs + i];
            }
        }
}

/// The mean of the channels, and one by their deviation.
static void moments(const float* in, float* mean, float* scale) {
    float sum = 0, squares = 0;
    for (int c = 0; c < CHANNELS; ++c) sum += in[c];
    *mean = sum / CHANNELS;
    for (int c = 0; c < CHANNELS; ++c) squares += (in[c] - *mean) * (in[c] - *mean);
    *scale = 1 / sqrtf(squares / CHANNELS + 1e-5F);
}

static void norm(Weights by, const float* in, float* out) {
    float mean, scale;
    for (int t = 0; t < LENGTH; ++t, in += CHANNELS, out += CHANNELS) {
        moments(in, &mean, &scale);
        for (int c = 0; c < CHANNELS; ++c)
            out[c] = (in[c] - mean) * scale * by.weight[c] + by.bias[c];
    }
}

static void norm_backward(Weights by, const float* in, const float* delta, float* in_delta) {
    float mean, scale;
    for (int t = 0; t < LENGTH; ++t, in += CHANNELS, delta += CHANNELS, in_delta += CHANNELS) {
        float sum = 0, product = 0;
        moments(in, &mean, &scale);
        for (int c = 0; c < CHANNELS; ++c) {
            const float normed = (in[c] - mean) * scale, scaled = delta[c] * by.weight[c];
            by.weight_gradient[c] += delta[c] * normed;
            by.bias_gradient[c] += delta[c];
            sum += scaled / CHANNELS;
            product += scaled * normed / CHANNELS;
        }
        for (int c = 0; c < CHANNELS; ++c) {
            const float normed = (in[c] - mean) * scale, scaled = delta[c] * by.weight[c];
            in_delta[c] += scale * (scaled - sum - normed * product);
        }
    }
}

/// Turns the first `count` scores into probabilities.
static void softmax(float* scores, int count) {
    float sum = 0, greatest = scores[0];
    for (int i = 1; i < count; ++i) greatest = fmaxf(greatest, scores[i]);
    for (int i = 0; i < count; ++i) sum += scores[i] = expf(scores[i] - greatest);
    for (int i = 0; i < count; ++i) scores[i] /= sum;
}

static float dot(const float* a, const float* b, int count) {
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

static void add_scaled(float* to, float factor, const float* from, int count) {
    for (int i = 0; i < count; ++i) to[i] += factor * from[i];
}

/// The slice of a token's query (0), key (1) or value (2) that belongs to `head`.
static float* part_of(float* qkv, int token, int which, int head) {
    return qkv + (token * 3 + which) * CHANNELS + head * HEAD;
}

/// Each token mixes the values of those before it and its own.
static void mix_values(BlockActivations* block, int head) {
    memset(block->mixed, 0, head == 0 ? sizeof block->mixed : 0);
    for (int t = 0; t < LENGTH; ++t) {
        float* weights = block->attention[head][t];
        for (int s = 0; s <= t; ++s)
            weights[s] =
                dot(part_of(block->qkv, t, 0, head), part_of(block->qkv, s, 1, head), HEAD) /
                sqrtf(HEAD);
        softmax(weights, t + 1);
        for (int s = 0; s <= t; ++s)
            add_scaled(block->mixed + t * CHANNELS + head * HEAD, weights[s],
                       part_of(block->qkv, s, 2, head), HEAD);
    }
}

static void mix_values_backward(BlockActivations* block, int head, const float* delta,
                                float* qkv_delta) {
    for (int t = 0; t < LENGTH; ++t) {
        const float *weights = block->attention[head][t], *own = delta + t * CHANNELS + head * HEAD;
        float by_weight[LENGTH], sum = 0;
        for (int s = 0; s <= t; ++s) {
            by_weight[s] = dot(own, part_of(block->qkv, s, 2, head), HEAD);
            sum += weights[s] * by_weight[s];
            add_scaled(part_of(qkv_delta, s, 2, head), weights[s], own, HEAD);
        }
        for (int s = 0; s <= t; ++s) {
            const float by_score = weights[s] * (by_weight[s] - sum) / sqrtf(HEAD);
            add_scaled(part_of(qkv_delta, t, 0, head), by_score, part_of(block->qkv, s, 1, head),
                       HEAD);
            add_scaled(part_of(qkv_delta, s, 1, head), by_score, part_of(block->qkv, t, 0, head),
                       HEAD);
        }
    }
}

/// GELU in its form with tanh, and its derivative.
static float gelu(float x, float* derivative) {
    const float inner = 0.79788456F * (x + 0.044715F * x * x * x), bent = tanhf(inner);
    *derivative = 0.5F * (1 + bent) +
                  0.5F * x * (1 - bent * bent) * 0.79788456F * (1 + 3 * 0.044715F * x * x);
    return 0.5F * x * (1 + bent);
}

// --- Layers --------------------------------------------------------------------------------------

static void block_forward(const Model* model, int index, BlockActivations* block, float* output) {
    const int first = BLOCK + index * BLOCK_TENSORS;
    float unused;
    norm(weights_of(model, first + NORM1), block->input, block->norm1);
    linear(weights_of(model, first + QKV), CHANNELS, 3 * CHANNELS, block->norm1, block->qkv);
    for (int head = 0; head < HEADS; ++head) mix_values(block, head);
    linear(weights_of(model, first + PROJECTION), CHANNELS, CHANNELS, block->mixed, block->middle);
    add_scaled(block->middle, 1, block->input, LENGTH * CHANNELS);
    norm(weights_of(model, first + NORM2), block->middle, block->norm2);
    linear(weights_of(model, first + UP), CHANNELS, HIDDEN, block->norm2, block->hidden);
    for (int i = 0; i < LENGTH * HIDDEN; ++i) block->active[i] = gelu(block->hidden[i], &unused);
    linear(weights_of(model, first + DOWN), HIDDEN, CHANNELS, block->active, output);
    add_scaled(output, 1, block->middle, LENGTH * CHANNELS);
}

/// `delta` is of the block's output, and then of its input.
static void block_backward(const Model* model, int index, BlockActivations* block, float* delta) {
    const int first = BLOCK + index * BLOCK_TENSORS;
    float active[LENGTH * HIDDEN] = {0}, qkv[LENGTH * 3 * CHANNELS] = {0}, derivative;
    Rows norm2 = {0}, mixed = {0}, norm1 = {0};
    linear_backward(weights_of(model, first + DOWN), HIDDEN, CHANNELS, block->active, delta,
                    active);
    for (int i = 0; i < LENGTH * HIDDEN; ++i) {
        gelu(block->hidden[i], &derivative);
        active[i] *= derivative;
    }
    linear_backward(weights_of(model, first + UP), CHANNELS, HIDDEN, block->norm2, active, norm2);
    norm_backward(weights_of(model, first + NORM2), block->middle, norm2, delta);
    linear_backward(weights_of(model, first + PROJECTION), CHANNELS, CHANNELS, block->mixed, delta,
                    mixed);
    for (int head = 0; head < HEADS; ++head) mix_values_backward(block, head, mixed, qkv);
    linear_backward(weights_of(model, first + QKV), CHANNELS, 3 * CHANNELS, block->norm1, qkv,
                    norm1);
    norm_backward(weights_of(model, first + NORM1), block->input, norm1, delta);
}

static void embed(const Model* model, Activations* sample) {
    const float* tokens = value_of(model, TOKEN_EMBEDDING);
    memcpy(sample->blocks[0].input, value_of(model, POSITION_EMBEDDING), sizeof(Rows));
    for (int t = 0; t < LENGTH; ++t)
        add_scaled(sample->blocks[0].input + t * CHANNELS, 1, tokens + sample->tokens[t] * CHANNELS,
                   CHANNELS);
}
static void embed_backward(const Model* model, Activations* sample) {
    float* tokens = gradient_of(model, TOKEN_EMBEDDING);
    add_scaled(gradient_of(model, POSITION_EMBEDDING), 1, sample->delta, LENGTH * CHANNELS);
    for (int t = 0; t < LENGTH; ++t)
        add_scaled(tokens + sample->tokens[t] * CHANNELS, 1, sample->delta + t * CHANNELS,
                   CHANNELS);
}

static void forward(Model* model, const Batch* batch) {
    const float* embedding = value_of(model, TOKEN_EMBEDDING);
    for (int n = 0; n < batch->count; ++n) {
        Activations* sample = &model->activations[n];
        draw_tokens(batch->first + n * batch->stride, sample->tokens);
        embed(model, sample);
        for (int i = 0; i < BLOCKS; ++i)
            block_forward(model, i, &sample->blocks[i],
                          i + 1 < BLOCKS ? sample->blocks[i + 1].input : sample->output);
        norm(weights_of(model, LAST_NORM), sample->output, sample->norm);
        for (int t = 0; t < LENGTH; ++t)
            for (int v = 0; v < VOCABULARY; ++v)
                sample->scores[t][v] =
                    dot(sample->norm + t * CHANNELS, embedding + v * CHANNELS, CHANNELS);
    }
}

/// The sample's part in the mean loss; leaves that in the gradients of the last layer.
static double last_backward(const Model* model, Activations* sample, int tokens) {
    const float* embedding = value_of(model, TOKEN_EMBEDDING);
    float* gradient = gradient_of(model, TOKEN_EMBEDDING);
    Rows delta = {0};
    double loss = 0;
    for (int t = 0; t < LENGTH; ++t) {
        softmax(sample->scores[t], VOCABULARY);
        for (int v = 0; v < VOCABULARY; ++v) {
            const int is_next = v == sample->tokens[t + 1];
            const float probability = sample->scores[t][v];
            const float by_score = (probability - (float)is_next) / (float)tokens;
            if (is_next) loss -= log(probability) / tokens;
            add_scaled(delta + t * CHANNELS, by_score, embedding + v * CHANNELS, CHANNELS);
            add_scaled(gradient + v * CHANNELS, by_score, sample->norm + t * CHANNELS, CHANNELS);
        }
    }
    memset(sample->delta, 0, sizeof sample->delta);
    norm_backward(weights_of(model, LAST_NORM), sample->output, delta, sample->delta);
    return loss;
}

double model_backward(Model* model, const Batch* batch, void (*done)(int layer, void* context),
                      void* context) {
    double loss = 0;
    forward(model, batch);
    memset(model->gradients, 0, model->count * sizeof(float));
    for (int layer = LAYERS - 1; layer >= 0; --layer) {
        for (int n = 0; n < batch->count; ++n) {
            Activations* sample = &model->activations[n];
            if (layer == LAYERS - 1)
                loss += last_backward(model, sample, batch->count * LENGTH);
            else if (layer > 0)
                block_backward(model, layer - 1, &sample->blocks[layer - 1], sample->delta);
            else
                embed_backward(model, sample);
        }
        if (done != NULL) done(layer, context);
    }
    return loss;
}

void model_step(Model* model, float rate) {
    ++model->steps;
    const float mean_scale = 1 / (1 - powf(0.9F, (float)model->steps));
    const float square_scale = 1 / (1 - powf(0.99F, (float)model->steps));
    for (size_t i = 0; i < model->count; ++i) {
        const float gradient = model->gradients[i];
        model->means[i] = 0.9F * model->means[i] + 0.1F * gradient;
        model->squares[i] = 0.99F * model->squares[i] + 0.01F * gradient * gradient;
        model->parameters[i] -=
            rate * model->means[i] * mean_scale / (sqrtf(model->squares[i] * square_scale) + 1e-4F);
    }
}

double model_accuracy(Model* model, const Batch* batch) {
    int right = 0;
    forward(model, batch);
    for (int n = 0; n < batch->count; ++n) {
        const Activations* sample = &model->activations[n];
        for (int t = PERIOD - 1; t < LENGTH; ++t) {
            int best = 0;
            for (int v = 1; v < VOCABULARY; ++v)
                if (sample->scores[t][v] > sample->scores[t][best]) best = v;
            right += best == sample->tokens[t + 1];
        }
    }
    return (double)right / (batch->count * (LENGTH - PERIOD + 1));
}
