"""Guozhuang for PyTorch. It has the names and arguments of horovod.torch, so a Horovod script
runs with only its import changed:

    import guozhuang.torch as hvd

    hvd.init()
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Tensors on a GPU are reduced there. docs/python.md says what is different.
"""
import types

from ..collectives import (Adasum, Average, Max, Min, Product, Sum, barrier, join, poll,
                           synchronize)
from ..errors import Error, UsageError
from ..features import (ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, mpi_built,
                        mpi_enabled, mpi_threads_supported, nccl_built, rocm_built)
from ..handles import Handle
from ..objects import allgather_object, broadcast_object
from ..process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ..session import (cross_rank, cross_size, info, init, is_homogeneous, is_initialized, leave,
                       local_rank, local_size, rank, shrink, shutdown, size, start_timeline,
                       stop_timeline)
from .compression import Compression, Compressor
from .functions import broadcast_optimizer_state, broadcast_parameters
from .operations import (allgather, allgather_async, allreduce, allreduce_, allreduce_async,
                         allreduce_async_, alltoall, alltoall_async, broadcast, broadcast_,
                         broadcast_async, broadcast_async_, grouped_allgather,
                         grouped_allgather_async, grouped_allreduce, grouped_allreduce_,
                         grouped_allreduce_async, grouped_allreduce_async_,
                         grouped_reducescatter, grouped_reducescatter_async, reducescatter,
                         reducescatter_async, sparse_allreduce_async)
from .optimizer import DistributedOptimizer
from .parallel import DistributedDataParallel
from .sync_batch_norm import SyncBatchNorm

HorovodInternalError = Error

__all__ = [name for name, value in globals().items()
           if not name.startswith("_") and not isinstance(value, types.ModuleType)]
