#!/bin/sh
# rank1_without_memory.sh COMMAND...: runs it, on rank 1 without shared memory.
[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}" != 1 ] || export GUOZHUANG_SHARED_MEMORY=0
exec "$@"
