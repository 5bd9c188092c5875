#ifndef GUOZHUANG_TESTS_CHECK_H
#define GUOZHUANG_TESTS_CHECK_H

/// Helpers of the C interface's test programs. A check that fails is printed and counted, and the
/// test goes on, so that ranks stay together.
#include <guozhuang.h>

#include <stdio.h>
#include <string.h>

extern int failed_checks;

/// Whether the condition holds.
#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
/// The call must succeed.
#define OK(call) check_status((call), GZ_OK, "", #call, __FILE__, __LINE__)
/// The call must fail with that status, and a text that contains `text`.
#define FAILS(expected, text, call) \
    check_status((call), (expected), (text), #call, __FILE__, __LINE__)

int check(int holds, const char* what, const char* file, int line);
void check_status(GzStatus status, GzStatus expected, const char* text, const char* call,
                  const char* file, int line);

int own_rank(void);
int rank_count(void);

GzTensor vector_of(void* data, GzDType dtype, const int64_t* extent);

#endif
