#include "check.h"

int failed_checks;

int check(int holds, const char* what, const char* file, int line) {
    if (!holds) {
        __atomic_fetch_add(&failed_checks, 1, __ATOMIC_RELAXED);
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    }
    return holds;
}

void check_status(GzStatus status, GzStatus expected, const char* text, const char* call,
                  const char* file, int line) {
    const char* said = status == GZ_OK ? "" : gz_last_error()->message;
    if (check(status == expected && strstr(said, text) != NULL, call, file, line)) return;
    fprintf(stderr, "    %s: \"%s\"; expected was %s: \"%s\"\n", gz_status_name(status), said,
            gz_status_name(expected), text);
}

int own_rank(void) {
    int rank = -1;
    OK(gz_rank(&rank));
    return rank;
}

int rank_count(void) {
    int size = -1;
    OK(gz_size(&size));
    return size;
}

GzTensor vector_of(void* data, GzDType dtype, const int64_t* extent) {
    GzTensor tensor = {data, extent, NULL, dtype, 1, {GZ_HOST, 0}};
    return tensor;
}
