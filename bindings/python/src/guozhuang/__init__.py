"""Guozhuang: data-parallel training with MPI-based collectives.

    import guozhuang
    import numpy

    guozhuang.init()
    total = guozhuang.allreduce(numpy.arange(3.0), op=guozhuang.Sum)
    print(guozhuang.rank(), guozhuang.size(), total)

and `mpirun -np 2 python program.py`. Operations here are on numpy's arrays, and whatever
numpy.asarray() takes; guozhuang.torch has them, and what training needs, for PyTorch. Both have the
names and arguments of Horovod.

Errors are guozhuang.Error, a RuntimeError; those that are found in the call itself, before anything
is sent, are ValueErrors too. Any thread may call anything.
"""
import types

from . import _c, arrays, collectives
from .collectives import (Adasum, Average, Max, Min, Product, Sum, barrier, join, poll,
                          synchronize)
from .errors import Error, UsageError
from .features import (ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, mpi_built,
                       mpi_enabled, mpi_threads_supported, nccl_built, rocm_built)
from .handles import Handle
from .horovod import as_horovod
from .objects import allgather_object, broadcast_object
from .process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from .session import (cross_rank, cross_size, info, init, is_homogeneous, is_initialized, leave,
                      local_rank, local_size, rank, shrink, shutdown, size, start_timeline,
                      stop_timeline)

__version__ = _c.lib.gz_version().decode()

_operations = collectives.Collectives(arrays)
allgather = _operations.allgather
allgather_async = _operations.allgather_async
allreduce = _operations.allreduce
allreduce_ = _operations.allreduce_
allreduce_async = _operations.allreduce_async
allreduce_async_ = _operations.allreduce_async_
alltoall = _operations.alltoall
alltoall_async = _operations.alltoall_async
broadcast = _operations.broadcast
broadcast_ = _operations.broadcast_
broadcast_async = _operations.broadcast_async
broadcast_async_ = _operations.broadcast_async_
grouped_allgather = _operations.grouped_allgather
grouped_allgather_async = _operations.grouped_allgather_async
grouped_allreduce = _operations.grouped_allreduce
grouped_allreduce_ = _operations.grouped_allreduce_
grouped_allreduce_async = _operations.grouped_allreduce_async
grouped_allreduce_async_ = _operations.grouped_allreduce_async_
grouped_reducescatter = _operations.grouped_reducescatter
grouped_reducescatter_async = _operations.grouped_reducescatter_async
reducescatter = _operations.reducescatter
reducescatter_async = _operations.reducescatter_async

__all__ = [name for name, value in globals().items()
           if not name.startswith("_") and not isinstance(value, types.ModuleType)]
