#include "case.h"

#include <stdlib.h>
#include <string.h>

/// By GzDType.
static const struct {
    const char* name;
    size_t bytes;
} dtypes[] = {{"", 0},    {"u8", 1},   {"i8", 1},  {"i16", 2}, {"i32", 4}, {"i64", 8}, {"bool", 1},
              {"f16", 2}, {"bf16", 2}, {"f32", 4}, {"f64", 8}, {"u16", 2}, {"u32", 4}, {"u64", 8}};
static const char* const reduce_ops[] = {"sum", "average", "min", "max", "product", "adasum"};

size_t bytes_of(const GzTensor* tensor) {
    size_t bytes = dtypes[tensor->dtype].bytes;
    for (int i = 0; i < tensor->dimensions; ++i) bytes *= (size_t)tensor->shape[i];
    return bytes;
}

/// `i16:2x1:01000200`; a dot is no extents, or no bytes.
static void read_tensor(Case* c, char* word) {
    GzTensor* tensor = &c->tensors[c->tensor_count++];
    char* extents = strchr(word, ':') + 1;
    const char* hex = strchr(extents, ':') + 1;
    extents[-1] = '\0';
    int64_t* shape = *extents == '.' ? NULL : malloc(MOST_EXTENTS * sizeof *shape);
    tensor->shape = shape;
    for (tensor->dtype = GZ_U8; strcmp(dtypes[tensor->dtype].name, word) != 0;) ++tensor->dtype;
    for (char* at = extents; *at != '.' && *at != ':'; at += *at == 'x')
        shape[tensor->dimensions++] = strtoll(at, &at, 10);
    const size_t bytes = bytes_of(tensor);
    unsigned char* data = malloc(bytes + 1);
    tensor->data = data;
    for (size_t i = 0; i < bytes; ++i) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], '\0'};
        data[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
}

int read_case(Case* c, const char* line) {
    memset(c, 0, sizeof *c);
    c->line = strdup(line);
    const int number = atoi(strtok(c->line, " \n"));
    c->operation = strtok(NULL, " \n");
    for (char* word; (word = strtok(NULL, " \n")) != NULL;) {
        if (strchr(word, '=') == NULL && strchr(word, ':') != NULL)
            read_tensor(c, word);
        else
            c->options[c->option_count++] = word;
    }
    return number;
}

void free_tensor(GzTensor* tensor) {
    free((int64_t*)tensor->shape);
    free(tensor->data);
}

void free_case(Case* c) {
    for (size_t i = 0; i < c->tensor_count; ++i) free_tensor(&c->tensors[i]);
    free(c->line);
}

const char* option(const Case* c, const char* key) {
    const size_t length = strlen(key);
    for (size_t i = 0; i < c->option_count; ++i) {
        const char* rest = c->options[i] + length;
        if (strncmp(c->options[i], key, length) != 0) continue;
        if (*rest == '=') return rest + 1;
        if (*rest == '\0') return rest;
    }
    return NULL;
}

double number_or(const Case* c, const char* key, double otherwise) {
    const char* value = option(c, key);
    return value == NULL ? otherwise : atof(value);
}

size_t numbers(const char* text, int64_t* values) {
    size_t count = 0;
    for (char* end; *text != '\0'; text = *end == ',' ? end + 1 : end)
        values[count++] = strtoll(text, &end, 10);
    return count;
}

GzReduceOp reduce_op(const Case* c) {
    GzReduceOp op = GZ_SUM;
    while (strcmp(reduce_ops[op], option(c, "op")) != 0) ++op;
    return op;
}

void write_tensor(FILE* file, const GzTensor* tensor) {
    fprintf(file, " %s:%s", dtypes[tensor->dtype].name, tensor->dimensions == 0 ? "." : "");
    for (int i = 0; i < tensor->dimensions; ++i)
        fprintf(file, "%s%lld", i > 0 ? "x" : "", (long long)tensor->shape[i]);
    fputs(bytes_of(tensor) == 0 ? ":." : ":", file);
    for (size_t i = 0; i < bytes_of(tensor); ++i)
        fprintf(file, "%02x", ((const unsigned char*)tensor->data)[i]);
}

static const char* or_dot(const char* text) {
    return text[0] == '\0' ? "." : text;
}

void write_error(FILE* file, const GzError* error) {
    fprintf(file, "error %s|%s|%s|%s", gz_status_name(error->status), or_dot(error->operation),
            or_dot(error->tensor), error->rank_count == 0 ? "." : "");
    for (size_t i = 0; i < error->rank_count; ++i)
        fprintf(file, "%s%d", i > 0 ? "," : "", error->ranks[i]);
    fprintf(file, "|%s\n", error->message);
}
