// The conformance suite through the C interface: program CASES OUTCOMES.
#include <stdlib.h>
#include <string.h>

#include "case.h"

/// A case as it is run, with what its operation has given.
typedef struct Run {
    Case given;
    const struct Operation* operation;
    GzHandle* handle;  ///< of one that begins, and a later case waits for
    GzResult* result;
    GzBytes* bytes;
    int numbers[2];
} Run;

/// The output of an operation besides its status.
typedef enum Gives { NOTHING, TENSORS, RESULT, BYTES, ONE_NUMBER, TWO_NUMBERS } Gives;

typedef struct Operation {
    const char* name;
    GzStatus (*run)(Run* run);
    Gives gives;
} Operation;

enum { MOST_SETS = 16, MOST_BEGUN = 16 };
static struct {
    char name[16];
    GzProcessSet* set;
} sets[MOST_SETS];
static size_t set_count;

static GzProcessSet* set_of(const Case* c) {
    const char* name = option(c, "set");
    for (size_t i = 0; name != NULL && i < set_count; ++i)
        if (strcmp(sets[i].name, name) == 0) return sets[i].set;
    return NULL;
}

static GzOptions options_of(const Case* c) {
    GzOptions options = GZ_OPTIONS_INIT;
    options.name = option(c, "name");
    options.prescale = number_or(c, "prescale", 1);
    options.postscale = number_or(c, "postscale", 1);
    options.process_set = set_of(c);
    return options;
}

static int begins(const Case* c) {
    return option(c, "begin") != NULL;
}

// --- operations ----------------------------------------------------------------------------------

static GzStatus allreduce(Run* run) {
    const Case* c = &run->given;
    const GzOptions options = options_of(c);
    return begins(c) ? gz_allreduce_async(c->tensors, reduce_op(c), &options, &run->handle)
                     : gz_allreduce(c->tensors, reduce_op(c), &options);
}

static GzStatus grouped_allreduce(Run* run) {
    const Case* c = &run->given;
    const GzOptions options = options_of(c);
    const GzReduceOp op = reduce_op(c);
    return begins(c)
               ? gz_grouped_allreduce_async(c->tensors, c->tensor_count, op, &options, &run->handle)
               : gz_grouped_allreduce(c->tensors, c->tensor_count, op, &options);
}

static GzStatus broadcast(Run* run) {
    const Case* c = &run->given;
    const GzOptions options = options_of(c);
    const int root = (int)number_or(c, "root", 0);
    return begins(c) ? gz_broadcast_async(c->tensors, root, &options, &run->handle)
                     : gz_broadcast(c->tensors, root, &options);
}

static GzStatus all_gather(Run* run) {
    const Case* c = &run->given;
    const GzOptions options = options_of(c);
    return begins(c) ? gz_all_gather_async(c->tensors, &options, &run->handle)
                     : gz_all_gather(c->tensors, &options, &run->result);
}

static GzStatus grouped_all_gather(Run* run) {
    const Case* c = &run->given;
    const GzOptions options = options_of(c);
    const size_t count = c->tensor_count;
    return begins(c) ? gz_grouped_all_gather_async(c->tensors, count, &options, &run->handle)
                     : gz_grouped_all_gather(c->tensors, count, &options, &run->result);
}

static GzStatus all_to_all(Run* run) {
    const Case* c = &run->given;
    const GzOptions options = options_of(c);
    int64_t splits[MOST_RANKS];
    const char* given = option(c, "splits");
    const size_t count = given == NULL ? 0 : numbers(given, splits);
    const int64_t* rows = given == NULL ? NULL : splits;
    return begins(c) ? gz_all_to_all_async(c->tensors, rows, count, &options, &run->handle)
                     : gz_all_to_all(c->tensors, rows, count, &options, &run->result);
}

static GzStatus reduce_scatter(Run* run) {
    const Case* c = &run->given;
    const GzOptions options = options_of(c);
    return begins(c) ? gz_reduce_scatter_async(c->tensors, reduce_op(c), &options, &run->handle)
                     : gz_reduce_scatter(c->tensors, reduce_op(c), &options, &run->result);
}

static GzStatus grouped_reduce_scatter(Run* run) {
    const Case* c = &run->given;
    const GzOptions options = options_of(c);
    const GzReduceOp op = reduce_op(c);
    const size_t count = c->tensor_count;
    return begins(c)
               ? gz_grouped_reduce_scatter_async(c->tensors, count, op, &options, &run->handle)
               : gz_grouped_reduce_scatter(c->tensors, count, op, &options, &run->result);
}

/// To one rank, and from another.
static GzStatus exchange(Run* run) {
    Case* c = &run->given;
    GzOptions options = options_of(c);
    GzTensor received = c->tensors[0];
    const uint16_t tag = (uint16_t)number_or(c, "tag", 0);
    const int to = (int)number_or(c, "to", 0), from = (int)number_or(c, "from", 0);
    options.name = NULL;
    received.data = calloc(1, bytes_of(&received) + 1);
    GzStatus status = gz_send_async(c->tensors, to, tag, &options, &run->handle);
    if (status == GZ_OK) status = gz_recv(&received, from, tag, &options);
    if (status == GZ_OK) status = gz_handle_wait(run->handle);
    free(c->tensors[0].data);
    c->tensors[0] = received;
    return status;
}

static GzStatus broadcast_bytes(Run* run) {
    const GzTensor* tensor = run->given.tensors;
    return gz_broadcast_bytes(tensor->data, bytes_of(tensor),
                              (int)number_or(&run->given, "root", 0), set_of(&run->given),
                              &run->bytes);
}

static GzStatus all_gather_bytes(Run* run) {
    const GzTensor* tensor = run->given.tensors;
    return gz_all_gather_bytes(tensor->data, bytes_of(tensor), set_of(&run->given), &run->bytes);
}

static GzStatus barrier(Run* run) {
    const GzOptions options = options_of(&run->given);
    return begins(&run->given) ? gz_barrier_async(&options, &run->handle) : gz_barrier(&options);
}

static GzStatus join(Run* run) {
    const GzProcessSet* set = set_of(&run->given);
    return begins(&run->given) ? gz_join_async(set, &run->handle) : gz_join(set, run->numbers);
}

// --- training ------------------------------------------------------------------------------------

/// A linear model in f64: the last column of its samples is what the product of the others and the
/// weights should be.
typedef struct Model {
    GzParameter parameters[MOST_TENSORS];
    size_t count;
    double rate;
} Model;

static void make(Model* model, Case* c) {
    static const char* const names[] = {"weight0", "weight1", "weight2"};
    model->count = c->tensor_count - 1;
    model->rate = number_or(c, "rate", 0);
    for (size_t t = 0; t < model->count; ++t) {
        GzParameter* parameter = &model->parameters[t];
        parameter->name = names[t];
        parameter->value = parameter->gradient = c->tensors[t];
        parameter->gradient.data = calloc(1, bytes_of(&c->tensors[t]));
    }
}

static double error_of(const Model* model, const double* sample) {
    double error = 0;
    for (size_t t = 0; t < model->count; ++t)
        for (int64_t i = 0; i < model->parameters[t].value.shape[0]; ++i)
            error += ((const double*)model->parameters[t].value.data)[i] * *sample++;
    return error - *sample;
}

/// Adds the gradient of half the squared error of a sample.
static void backward(Model* model, const double* sample) {
    const double error = error_of(model, sample);
    for (size_t t = 0; t < model->count; ++t)
        for (int64_t i = 0; i < model->parameters[t].value.shape[0]; ++i)
            ((double*)model->parameters[t].gradient.data)[i] += error * *sample++;
}

static int step(void* context) {
    const Model* model = context;
    for (size_t t = 0; t < model->count; ++t) {
        double* gradient = model->parameters[t].gradient.data;
        for (int64_t i = 0; i < model->parameters[t].value.shape[0]; ++i) {
            ((double*)model->parameters[t].value.data)[i] -= model->rate * gradient[i];
            gradient[i] = 0;
        }
    }
    return 0;
}

static GzStatus train_with(GzReducer* reducer, Model* model, const Case* c) {
    const GzTensor* samples = &c->tensors[model->count];
    const int passes = (int)(number_or(c, "steps", 1) * number_or(c, "passes", 1));
    const int64_t rows = samples->shape[0];
    GzStatus status = GZ_OK;
    for (int64_t row = 0; row < rows && status == GZ_OK; ++row) {
        backward(model, (const double*)samples->data + row * samples->shape[1]);
        if ((row + 1) % (rows / passes) != 0) continue;
        for (size_t t = model->count; option(c, "hooks") != NULL && t-- > 0 && status == GZ_OK;)
            status = gz_reducer_mark(reducer, t);
        if (option(c, "discard") != NULL) return gz_reducer_discard(reducer, option(c, "discard"));
        if (status == GZ_OK) status = gz_reducer_finish_pass(reducer, step, model, NULL);
    }
    return status;
}

static GzStatus train(Run* run) {
    Case* c = &run->given;
    Model model;
    GzReducer* reducer = NULL;
    GzStatus status = GZ_OK;
    int ranks[MOST_RANKS] = {0};
    GzReducerOptions options = GZ_REDUCER_OPTIONS_INIT;
    options.op = reduce_op(c);
    options.backward_passes_per_step = (int32_t)number_or(c, "passes", 1);
    options.process_set = set_of(c);
    make(&model, c);
    if (set_of(c) != NULL) status = gz_process_set_ranks(set_of(c), ranks, MOST_RANKS);
    if (status == GZ_OK && option(c, "unequal") == NULL)
        status = gz_broadcast_parameters(model.parameters, model.count, ranks[0], set_of(c));
    if (status == GZ_OK)
        status = gz_reducer_create(model.parameters, model.count, &options, &reducer);
    if (status == GZ_OK) status = train_with(reducer, &model, c);
    gz_reducer_free(reducer);
    for (size_t t = 0; t < model.count; ++t) free(model.parameters[t].gradient.data);
    free_tensor(&c->tensors[--c->tensor_count]);
    return status;
}

// --- the session ---------------------------------------------------------------------------------

static GzStatus rank(Run* run) {
    const GzProcessSet* set = set_of(&run->given);
    const GzStatus status = gz_process_set_rank(set, &run->numbers[0]);
    return status != GZ_OK ? status : gz_process_set_size(set, &run->numbers[1]);
}

static GzStatus create_set(Run* run) {
    int64_t given[MOST_RANKS];
    int ranks[MOST_RANKS];
    const size_t count = numbers(option(&run->given, "ranks"), given);
    for (size_t i = 0; i < count; ++i) ranks[i] = (int)given[i];
    GzProcessSet* set = NULL;
    const GzStatus status = gz_process_set_create(ranks, count, &set);
    if (status != GZ_OK) return status;
    snprintf(sets[set_count].name, sizeof sets->name, "%s", option(&run->given, "set"));
    sets[set_count++].set = set;
    return GZ_OK;
}

static GzStatus remove_set(Run* run) {
    return gz_process_set_remove(set_of(&run->given));
}

static GzStatus init(Run* run) {
    (void)run;
    return gz_init(NULL);
}

static GzStatus end(Run* run) {
    (void)run;
    return gz_shutdown();
}

// --- cases ---------------------------------------------------------------------------------------

static const Operation operations[] = {
    {"allreduce", allreduce, TENSORS},
    {"grouped_allreduce", grouped_allreduce, TENSORS},
    {"broadcast", broadcast, TENSORS},
    {"all_gather", all_gather, RESULT},
    {"grouped_all_gather", grouped_all_gather, RESULT},
    {"all_to_all", all_to_all, RESULT},
    {"reduce_scatter", reduce_scatter, RESULT},
    {"grouped_reduce_scatter", grouped_reduce_scatter, RESULT},
    {"exchange", exchange, TENSORS},
    {"broadcast_bytes", broadcast_bytes, BYTES},
    {"all_gather_bytes", all_gather_bytes, BYTES},
    {"barrier", barrier, NOTHING},
    {"join", join, ONE_NUMBER},
    {"train", train, TENSORS},
    {"rank", rank, TWO_NUMBERS},
    {"create_set", create_set, NOTHING},
    {"remove_set", remove_set, NOTHING},
    {"init", init, NOTHING},
    {"shutdown", end, NOTHING},
};

static const Operation* operation_of(const Case* c) {
    for (size_t i = 0; i < sizeof operations / sizeof *operations; ++i)
        if (strcmp(operations[i].name, c->operation) == 0) return &operations[i];
    return NULL;
}

/// Waits for a case that has begun.
static GzStatus finish(Run* run) {
    if (run->operation->gives == RESULT) return gz_handle_take(run->handle, &run->result);
    if (run->operation->gives == ONE_NUMBER) return gz_handle_last_rank(run->handle, run->numbers);
    return gz_handle_wait(run->handle);
}

static void write_result(FILE* file, const GzResult* result) {
    size_t count = 0, ranks = 0;
    const int64_t* rows = NULL;
    gz_result_count(result, &count);
    for (size_t i = 0; i < count; ++i) {
        GzTensor tensor;
        gz_result_tensor(result, i, &tensor);
        write_tensor(file, &tensor);
        gz_result_rows(result, i, &rows, &ranks);
        fprintf(file, " rows=%lld", (long long)rows[0]);
        for (size_t r = 1; r < ranks; ++r) fprintf(file, ",%lld", (long long)rows[r]);
    }
}

static void write_bytes(FILE* file, const GzBytes* bytes) {
    size_t count = 0, length = 0;
    gz_bytes_count(bytes, &count);
    for (size_t i = 0; i < count; ++i) {
        const void* data = NULL;
        gz_bytes_get(bytes, i, &data, &length);
        const int64_t extent = (int64_t)length;
        write_tensor(file, &(GzTensor){(void*)data, &extent, NULL, GZ_U8, 1, {GZ_HOST, 0}});
    }
}

static void write_outcome(FILE* file, const Run* run) {
    const Gives gives = run->operation->gives;
    fputs("ok", file);
    for (size_t t = 0; gives == TENSORS && t < run->given.tensor_count; ++t)
        write_tensor(file, &run->given.tensors[t]);
    if (gives == RESULT) write_result(file, run->result);
    if (gives == BYTES) write_bytes(file, run->bytes);
    if (gives == ONE_NUMBER || gives == TWO_NUMBERS) fprintf(file, " %d", run->numbers[0]);
    if (gives == TWO_NUMBERS) fprintf(file, " %d", run->numbers[1]);
    fputc('\n', file);
}

static void free_run(Run* run) {
    gz_handle_free(run->handle);
    gz_result_free(run->result);
    gz_bytes_free(run->bytes);
    free_case(&run->given);
}

static Run begun[MOST_BEGUN];  ///< those without an operation are free

static Run* free_slot(void) {
    Run* run = begun;
    while (run->operation != NULL) ++run;
    return run;
}

enum { CANNOT = -1 };  ///< the status of an operation that this program does not know

static GzStatus start(Run* run) {
    run->operation = operation_of(&run->given);
    return run->operation == NULL ? CANNOT : run->operation->run(run);
}

/// Goes on with the case that has begun under the name of this one.
static GzStatus wait_for_begun(Run* run) {
    for (Run* other = begun; other < begun + MOST_BEGUN; ++other) {
        if (other->operation == NULL ||
            strcmp(option(&other->given, "name"), option(&run->given, "name")) != 0)
            continue;
        free_case(&run->given);
        *run = *other;
        other->operation = NULL;
        return finish(run);
    }
    return CANNOT;
}

static void run_line(FILE* outcomes, const char* line) {
    Run run = {.handle = NULL};
    fprintf(outcomes, "%d ", read_case(&run.given, line));
    const int waits = strcmp(run.given.operation, "wait") == 0;
    const GzStatus status = waits ? wait_for_begun(&run) : start(&run);
    if (status == CANNOT) {
        fputs("cannot\n", outcomes);
    } else if (status != GZ_OK) {
        write_error(outcomes, gz_last_error());
    } else if (!waits && begins(&run.given)) {
        fputs("ok\n", outcomes);
        *free_slot() = run;
        return;
    } else {
        write_outcome(outcomes, &run);
    }
    free_run(&run);
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    FILE* cases = fopen(argv[1], "r");
    FILE* outcomes = fopen(argv[2], "w");
    if (cases == NULL || outcomes == NULL) return 2;
    char* line = NULL;
    for (size_t room = 0; getline(&line, &room, cases) > 0;) {
        run_line(outcomes, line);
        fflush(outcomes);
    }
    free(line);
    for (size_t i = 0; i < set_count; ++i) gz_process_set_free(sets[i].set);
    fclose(cases);
    return fclose(outcomes) != 0;
}
