"""The operations on tensors. Those that return a new tensor and wait are differentiable, with
Horovod's gradients: allreduce has the same allreduce of the gradients; allgather and broadcast have
the average of the gradients over the ranks, of which each rank takes what belongs to its input;
alltoall sends the gradients back; reducescatter gathers them."""
import functools

import torch

from ..collectives import Average, Collectives, Sum, choose_op
from ..errors import refuse
from ..lacks import once_submitted
from ..process_sets import global_process_set
from . import tensors as adapter
from .compression import Compression

_operations = Collectives(adapter)
allreduce_ = _operations.allreduce_
allreduce_async = _operations.allreduce_async
allreduce_async_ = _operations.allreduce_async_
allgather_async = _operations.allgather_async
alltoall_async = _operations.alltoall_async
broadcast_ = _operations.broadcast_
broadcast_async = _operations.broadcast_async
broadcast_async_ = _operations.broadcast_async_
grouped_allgather_async = _operations.grouped_allgather_async
grouped_allreduce_ = _operations.grouped_allreduce_
grouped_allreduce_async = _operations.grouped_allreduce_async
grouped_allreduce_async_ = _operations.grouped_allreduce_async_
grouped_reducescatter_async = _operations.grouped_reducescatter_async
reducescatter_async = _operations.reducescatter_async


class _Allreduce(torch.autograd.Function):
    """Of one tensor, or of a group."""

    @staticmethod
    def forward(ctx, is_group, name, options, *tensors):
        ctx.is_group, ctx.options = is_group, options
        return tuple(_reduce(is_group, tensors, name, options))

    @staticmethod
    @once_submitted
    def backward(ctx, *gradients):
        return (None, None, None, *_reduce(ctx.is_group, gradients, None, ctx.options))


def _reduce(is_group, tensors, name, options):
    if is_group:
        return _operations.grouped_allreduce(tensors, name=name, **options)
    return [_operations.allreduce(*tensors, name=name, **options)]


@once_submitted
def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """Combines the tensors of all ranks: `op` is Average (the default), Sum, Min, Max, Product or
    Adasum. Averages of integers are truncated. Contributions are multiplied by `prescale_factor`
    before, the result by `postscale_factor`. `compression` is what travels: Compression.none, fp16
    or bf16. Differentiable."""
    options = dict(op=choose_op(average, op), prescale_factor=prescale_factor,
                   postscale_factor=postscale_factor, process_set=process_set)
    compressed, context = compression.compress(tensor)
    return compression.decompress(_Allreduce.apply(False, name, options, compressed)[0], context)


@once_submitted
def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None,
                      prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """allreduce() of several tensors as one operation: a list of results."""
    options = dict(op=choose_op(average, op), prescale_factor=prescale_factor,
                   postscale_factor=postscale_factor, process_set=process_set)
    compressed, contexts = _compress_all(compression, tensors)
    results = _Allreduce.apply(True, name, options, *compressed)
    return list(map(compression.decompress, results, contexts))


def _compress_all(compression, tensors):
    """What is sent for the tensors, and the contexts to make tensors of the results."""
    pairs = list(map(compression.compress, tensors))
    return [sent for sent, _ in pairs], [context for _, context in pairs]


class _Allgather(torch.autograd.Function):
    """Of one tensor, or of a group."""

    @staticmethod
    def forward(ctx, is_group, name, process_set, *tensors):
        ctx.is_group, ctx.process_set = is_group, process_set
        results = (_operations.grouped_allgather(tensors, name, process_set) if is_group
                   else [_operations.allgather(*tensors, name, process_set)])
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        return tuple(results)

    @staticmethod
    @once_submitted
    def backward(ctx, *gradients):
        averages = _reduce(ctx.is_group, gradients, None,
                           dict(op=Average, process_set=ctx.process_set))
        rows = torch.tensor([ctx.rows])
        rank = ctx.process_set.rank()
        before = _operations.allgather(rows, process_set=ctx.process_set)[:rank].sum(dim=0)
        mine = [average.narrow(0, int(begin), count)
                for average, begin, count in zip(averages, before, ctx.rows)]
        return (None, None, None, *mine)


@once_submitted
def allgather(tensor, name=None, process_set=global_process_set):
    """The tensors of all ranks, one below the other along the first dimension, in which they may
    differ. Differentiable."""
    return _Allgather.apply(False, name, process_set, tensor)[0]


@once_submitted
def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """allgather() of several tensors as one operation: a list of results."""
    return list(_Allgather.apply(True, name, process_set, *tensors))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.is_root = process_set.ranks[process_set.rank()] == root_rank
        ctx.process_set = process_set
        return _operations.broadcast(tensor, root_rank, name, process_set)

    @staticmethod
    @once_submitted
    def backward(ctx, gradient):
        average = _operations.allreduce(gradient, op=Average, process_set=ctx.process_set)
        return average if ctx.is_root else torch.zeros_like(average), None, None, None


@once_submitted
def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """The tensor of the rank `root_rank`, on all ranks. Differentiable."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        if splits is None:
            splits = _equal_splits(tensor, process_set)
        output, received = _operations.alltoall(tensor, splits, name, process_set)
        ctx.received, ctx.process_set = received.tolist(), process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    @once_submitted
    def backward(ctx, gradient, _):
        back, _ = _operations.alltoall(gradient, ctx.received, process_set=ctx.process_set)
        return back, None, None, None


def _equal_splits(tensor, process_set):
    """None if there are none, which the library refuses, as it does what is no tensor."""
    shape, size = getattr(tensor, "shape", ()), process_set.size()
    rows = shape[0] if shape else 0
    return [rows // size] * size if rows % size == 0 else None


@once_submitted
def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Sends `splits[r]` rows of the first dimension to rank r; without splits equal parts. Returns
    what has come from all ranks, in their order; with splits a pair of that and an int32 tensor of
    how many rows came from each. Differentiable."""
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


class _Reducescatter(torch.autograd.Function):
    """Of one tensor, or of a group."""

    @staticmethod
    def forward(ctx, is_group, name, options, *tensors):
        ctx.options = options
        if is_group:
            return tuple(_operations.grouped_reducescatter(tensors, name, **options))
        return (_operations.reducescatter(*tensors, name, **options),)

    @staticmethod
    @once_submitted
    def backward(ctx, *gradients):
        process_set = ctx.options["process_set"]
        scale = process_set.size() if ctx.options["op"] == Sum else 1
        scale *= ctx.options["prescale_factor"] * ctx.options["postscale_factor"]
        gathered = _operations.grouped_allgather(gradients, process_set=process_set)
        return (None, None, None, *(each * scale for each in gathered))


@once_submitted
def reducescatter(tensor, name=None, compression=Compression.none, op=Average,
                  process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0):
    """Combines the tensors of all ranks, each of which gets its part of the first dimension; the
    first ranks get one row more where it does not divide evenly. Differentiable."""
    compressed, context = compression.compress(tensor)
    options = dict(op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                   process_set=process_set)
    result, = _Reducescatter.apply(False, name, options, compressed)
    return compression.decompress(result, context)


@once_submitted
def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0,
                          postscale_factor=1.0):
    """reducescatter() of several tensors as one operation: a list of results."""
    options = dict(op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                   process_set=process_set)
    compressed, contexts = _compress_all(compression, tensors)
    results = _Reducescatter.apply(True, name, options, *compressed)
    return list(map(compression.decompress, results, contexts))


def scaled(sparse, factor):
    """A coalesced sparse tensor times a number; one without elements keeps its sparse dimensions,
    which it loses by `*`."""
    return torch.sparse_coo_tensor(sparse.indices(), sparse.values() * factor,
                                   sparse.shape).coalesce()


@once_submitted
def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Adds up (op=Sum) or averages (op=Average) sparse tensors, whose indices may differ. An
    average is that of the ranks that have not joined. Returns a function that waits for the result,
    a sparse tensor: a handle for synchronize()."""
    if op not in (Sum, Average):
        refuse("sparse_allreduce_async: op must be Sum or Average")
    coalesced = tensor.detach().coalesce()
    ones = torch.ones(1, dtype=torch.uint8, device=tensor.device)  # a group is on one device
    parts = [coalesced.indices().t(), coalesced.values(), ones]
    handle = grouped_allgather_async(parts, name, process_set)

    @functools.lru_cache(maxsize=None)
    def result():
        indices, values, ranks = handle.wait()
        total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
        return scaled(total, 1 / len(ranks)) if op == Average else total

    return result
