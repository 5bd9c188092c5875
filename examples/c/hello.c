#include <guozhuang.h>
#include <stdio.h>

int main(void) {
    int rank = 0, size = 0;
    if (gz_init(NULL) != GZ_OK || gz_rank(&rank) != GZ_OK || gz_size(&size) != GZ_OK) {
        fprintf(stderr, "%s\n", gz_last_error()->message);
        return 1;
    }
    int sum = rank + 1;
    const GzTensor tensor = {.data = &sum, .dtype = GZ_I32};  // no shape: one element
    if (gz_allreduce(&tensor, GZ_SUM, NULL) != GZ_OK) {
        gz_leave(gz_last_error()->message);  // the other ranks get the reason
        return 1;
    }
    printf("rank %d of %d: 1 + ... + %d = %d\n", rank, size, size, sum);
    return gz_shutdown() != GZ_OK;
}
