#include <guozhuang.h>
#include <stdio.h>
#include <stdlib.h>

/// A user's program in C: sums rank + 1 over the ranks, of which there should be as many as its
/// argument says, or one.
int main(int argc, char** argv) {
    const int ranks = argc > 1 ? atoi(argv[1]) : 1;
    int rank = -1, size = -1;
    if (gz_init(NULL) != GZ_OK || gz_rank(&rank) != GZ_OK || gz_size(&size) != GZ_OK) {
        fprintf(stderr, "%s\n", gz_last_error()->message);
        return EXIT_FAILURE;
    }
    float sum = (float)(rank + 1);
    const GzTensor tensor = {.data = &sum, .dtype = GZ_F32};
    const int is_right = gz_allreduce(&tensor, GZ_SUM, NULL) == GZ_OK && size == ranks &&
                         sum == (float)(ranks * (ranks + 1) / 2);
    return gz_shutdown() == GZ_OK && is_right ? EXIT_SUCCESS : EXIT_FAILURE;
}
