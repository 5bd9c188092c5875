#ifndef GUOZHUANG_TESTS_CASE_H
#define GUOZHUANG_TESTS_CASE_H

/// The lines of the conformance suite for the program in C, read and written (README.md).
#include <guozhuang.h>

#include <stdio.h>

enum { MOST_WORDS = 32, MOST_TENSORS = 4, MOST_EXTENTS = 4, MOST_RANKS = 8 };

/// One line.
typedef struct Case {
    char* line;  ///< cut into words, which are the others' texts
    const char* operation;
    const char* options[MOST_WORDS];  ///< key=value, or a key alone
    size_t option_count;
    GzTensor tensors[MOST_TENSORS];
    size_t tensor_count;
} Case;

/// Cuts the line. Returns its number.
int read_case(Case* c, const char* line);
void free_case(Case* c);
void free_tensor(GzTensor* tensor);
/// The value of an option, "" of a key alone; NULL if the case does not have it.
const char* option(const Case* c, const char* key);
double number_or(const Case* c, const char* key, double otherwise);
/// The numbers of a list with commas. Returns how many.
size_t numbers(const char* text, int64_t* values);
GzReduceOp reduce_op(const Case* c);
size_t bytes_of(const GzTensor* tensor);

void write_tensor(FILE* file, const GzTensor* tensor);
void write_error(FILE* file, const GzError* error);

#endif
