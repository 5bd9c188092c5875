"""The operations, on whatever a module like arrays.py makes tensors of: an object with as_input,
copy, in_place, put_back, view, stream, from_result and integers."""
import ctypes
import functools
import operator

from . import _c
from .errors import refuse
from .handles import WAIT_SLICE_US, Handle, submit
from .process_sets import global_process_set, pointer_of
from .results import Result

Sum, Average, Min, Max, Product, Adasum = (
    _c.SUM, _c.AVERAGE, _c.MIN, _c.MAX, _c.PRODUCT, _c.ADASUM)


def synchronize(handle):
    """Waits for an operation that was submitted by a function ..._async, and returns its result.
    Raises the operation's error. Can be interrupted by Ctrl-C; the operation then goes on."""
    if callable(handle):  # of a sparse allreduce
        return handle()
    return _handle(handle).wait()


def poll(handle):
    """Whether synchronize() would return at once. Does not wait."""
    return _handle(handle).done()


def _handle(handle):
    if not isinstance(handle, Handle):
        refuse(f"{handle!r} is no handle of an operation")
    return handle


def choose_op(average, op):
    """The reduction that Horovod's two arguments mean."""
    if average is None:
        op = Average if op is None else op
        return op if isinstance(op, int) else refuse(f"op must be Sum, Average ..., not {op!r}")
    if op is not None:
        refuse("give op, or average, which is the old way, but not both")
    return Average if average else Sum


def _rank_of(root_rank):
    """A root as C takes it, where larger numbers would become others."""
    try:
        return max(-1, min(operator.index(root_rank), (1 << 31) - 1))
    except TypeError:
        return refuse(f"root_rank must be a rank, not {root_rank!r}")


def _integers_of(splits):
    """Splits as a list: they may come as a list, an array, a tensor, or not at all."""
    try:
        return [] if splits is None else [operator.index(rows) for rows in splits]
    except TypeError:
        return refuse(f"splits must be integers, not {splits!r}")


def _blocking(asynchronous):
    """The form of a method that waits, and returns the result."""

    @functools.wraps(asynchronous)
    def operation(self, *arguments, **options):
        return asynchronous(self._waiting, *arguments, **options).wait()

    operation.__name__ = asynchronous.__name__.replace("_async", "")
    operation.__doc__ = asynchronous.__doc__.replace("_async", "")
    return operation


class Collectives:
    """The operations on one kind of tensors. Every rank of the job, or of the process set, submits
    the same; operations without a name are matched by their order.

    Those ending in _ work in place. Those with _async in their name return a handle for
    synchronize() and poll(); the others return the result.
    """

    def __init__(self, arrays, wait_first_us=0):
        self._arrays, self._wait_first_us = arrays, wait_first_us
        self._waiting = self if wait_first_us else Collectives(arrays, WAIT_SLICE_US)

    def _submit(self, function, tensors, arguments, finish, name, process_set, scales=(1.0, 1.0),
                output=None, splits=()):
        """`arguments` are those behind the tensors; a single tensor goes without a count."""
        stream = self._arrays.stream(tensors[0]) if tensors else None
        options = _c.make_options(name, pointer_of(process_set), self._wait_first_us, stream,
                                  *scales, None if output is None else self._arrays.view(output),
                                  splits)
        if function in _GROUPED:
            count = len(tensors)
            views = ((_c.Tensor * count)(*map(self._arrays.view, tensors)), count)
        else:
            views = (ctypes.byref(self._arrays.view(*tensors)),)
        return submit(function, *views, *arguments, ctypes.byref(options),
                      owners=(tensors, output), finish=finish)

    # --- allreduce --------------------------------------------------------------------------------

    def _allreduce(self, worked_on, finish, name, op, scales, process_set):
        return self._submit(_c.lib.gz_allreduce_async, [worked_on], (op,), finish, name,
                            process_set, scales)

    def _grouped_allreduce(self, worked_on, finish, name, op, scales, process_set):
        return self._submit(_c.lib.gz_grouped_allreduce_async, worked_on, (op,), finish, name,
                            process_set, scales)

    def allreduce_async(self, tensor, average=None, name=None, op=None, prescale_factor=1.0,
                        postscale_factor=1.0, process_set=global_process_set):
        """Combines the tensors of all ranks: `op` is Average (the default), Sum, Min, Max, Product
        or Adasum. Averages of integers are truncated. Contributions are multiplied by
        `prescale_factor` before, results by `postscale_factor`."""
        output = self._arrays.copy(tensor)
        return self._allreduce(output, lambda _: output, name, choose_op(average, op),
                               (prescale_factor, postscale_factor), process_set)

    def allreduce_async_(self, tensor, average=None, name=None, op=None, prescale_factor=1.0,
                         postscale_factor=1.0, process_set=global_process_set):
        """allreduce_async(), in place."""
        worked_on = self._arrays.in_place(tensor)
        return self._allreduce(
            worked_on, lambda _: self._arrays.put_back(tensor, worked_on), name,
            choose_op(average, op), (prescale_factor, postscale_factor), process_set)

    def grouped_allreduce_async(self, tensors, average=None, name=None, op=None,
                                prescale_factor=1.0, postscale_factor=1.0,
                                process_set=global_process_set):
        """allreduce_async() of several tensors as one operation. Gives a list of results."""
        outputs = [self._arrays.copy(tensor) for tensor in tensors]
        return self._grouped_allreduce(
            outputs, lambda _: outputs, name, choose_op(average, op),
            (prescale_factor, postscale_factor), process_set)

    def grouped_allreduce_async_(self, tensors, average=None, name=None, op=None,
                                 prescale_factor=1.0, postscale_factor=1.0,
                                 process_set=global_process_set):
        """grouped_allreduce_async(), in place."""
        tensors = list(tensors)
        worked_on = [self._arrays.in_place(tensor) for tensor in tensors]
        return self._grouped_allreduce(
            worked_on, lambda _: list(map(self._arrays.put_back, tensors, worked_on)), name,
            choose_op(average, op), (prescale_factor, postscale_factor), process_set)

    # --- broadcast --------------------------------------------------------------------------------

    def _broadcast(self, worked_on, finish, root_rank, name, process_set):
        return self._submit(_c.lib.gz_broadcast_async, [worked_on], (_rank_of(root_rank),), finish,
                            name, process_set)

    def broadcast_async(self, tensor, root_rank, name=None, process_set=global_process_set):
        """The tensor of the rank `root_rank`, on all ranks."""
        output = self._arrays.copy(tensor)
        return self._broadcast(output, lambda _: output, root_rank, name, process_set)

    def broadcast_async_(self, tensor, root_rank, name=None, process_set=global_process_set):
        """broadcast_async(), in place."""
        worked_on = self._arrays.in_place(tensor)
        return self._broadcast(worked_on, lambda _: self._arrays.put_back(tensor, worked_on),
                               root_rank, name, process_set)

    # --- with a result whose size the operation finds ---------------------------------------------

    def _results(self, tensors):
        """Makes arrays of what an operation gives for each of the tensors."""

        def finish(pointer):
            result = Result(pointer)
            return [self._arrays.from_result(result, index, like)
                    for index, like in enumerate(tensors)]

        return finish

    def _result(self, inputs, output):
        """The same for one tensor; nothing is to be made of an output that the caller gave."""
        finish = self._results(inputs)
        return lambda pointer: finish(pointer)[0] if output is None else output

    def _output_of(self, output):
        """An output is written as it lies."""
        address = lambda array: self._arrays.view(array).data
        if output is not None and address(self._arrays.in_place(output)) != address(output):
            refuse("the output must be contiguous, and in the processor's order of bytes")
        return output

    def allgather_async(self, tensor, name=None, process_set=global_process_set, output=None):
        """The tensors of all ranks, one below the other along the first dimension, in which they
        may differ. They go into `output`, if there is one, of which `tensor` may be this rank's own
        rows."""
        inputs, output = [self._arrays.as_input(tensor)], self._output_of(output)
        return self._submit(_c.lib.gz_all_gather_async, inputs, (), self._result(inputs, output),
                            name, process_set, output=output)

    def grouped_allgather_async(self, tensors, name=None, process_set=global_process_set):
        """allgather_async() of several tensors as one operation. Gives a list of results."""
        inputs = [self._arrays.as_input(tensor) for tensor in tensors]
        return self._submit(_c.lib.gz_grouped_all_gather_async, inputs, (), self._results(inputs),
                            name, process_set)

    def reducescatter_async(self, tensor, name=None, op=Average, process_set=global_process_set,
                            prescale_factor=1.0, postscale_factor=1.0, output=None, splits=None):
        """Combines the tensors of all ranks, each of which gets its part of the first dimension:
        rank r gets `splits[r]` rows or, without splits, an equal part, the first ranks one row more
        where it does not divide evenly. It goes into `output`, if there is one, which may be this
        rank's own rows of `tensor`."""
        inputs, output = [self._arrays.as_input(tensor)], self._output_of(output)
        return self._submit(
            _c.lib.gz_reduce_scatter_async, inputs, (choose_op(None, op),),
            self._result(inputs, output), name, process_set, (prescale_factor, postscale_factor),
            output, _integers_of(splits))

    def grouped_reducescatter_async(self, tensors, name=None, op=Average,
                                    process_set=global_process_set, prescale_factor=1.0,
                                    postscale_factor=1.0):
        """reducescatter_async() of several tensors as one operation. Gives a list of results."""
        inputs = [self._arrays.as_input(tensor) for tensor in tensors]
        return self._submit(
            _c.lib.gz_grouped_reduce_scatter_async, inputs, (choose_op(None, op),),
            self._results(inputs), name, process_set, (prescale_factor, postscale_factor))

    def alltoall_async(self, tensor, splits=None, name=None, process_set=global_process_set):
        """Sends `splits[r]` rows of the first dimension to rank r; without splits equal parts.
        Gives what has come from all ranks, in their order; with splits a pair of that and how many
        rows came from each."""
        inputs = [self._arrays.as_input(tensor)]
        rows = _integers_of(splits)

        def finish(pointer):
            result = Result(pointer)
            output = self._arrays.from_result(result, 0, inputs[0])
            return output if splits is None else (output, self._arrays.integers(result.rows(0)))

        return self._submit(_c.lib.gz_all_to_all_async, inputs,
                            (_c.array_of(ctypes.c_int64, rows), len(rows)), finish, name,
                            process_set)

    allreduce = _blocking(allreduce_async)
    allreduce_ = _blocking(allreduce_async_)
    grouped_allreduce = _blocking(grouped_allreduce_async)
    grouped_allreduce_ = _blocking(grouped_allreduce_async_)
    broadcast = _blocking(broadcast_async)
    broadcast_ = _blocking(broadcast_async_)
    allgather = _blocking(allgather_async)
    grouped_allgather = _blocking(grouped_allgather_async)
    reducescatter = _blocking(reducescatter_async)
    grouped_reducescatter = _blocking(grouped_reducescatter_async)
    alltoall = _blocking(alltoall_async)


_GROUPED = (_c.lib.gz_grouped_allreduce_async, _c.lib.gz_grouped_all_gather_async,
            _c.lib.gz_grouped_reduce_scatter_async)


def barrier(process_set=global_process_set):
    """Returns when every rank has called it."""
    options = _c.make_options(None, pointer_of(process_set), WAIT_SLICE_US)
    submit(_c.lib.gz_barrier_async, ctypes.byref(options), owners=None,
           finish=lambda _: None).wait()


def join(device=-1, process_set=global_process_set):
    """For a rank that has no more data: it contributes neutrally to what the others do, until all
    ranks have joined. Returns the rank that was the last to join, whose state is the newest.
    `device` is Horovod's, and not needed."""
    handle = submit(_c.lib.gz_join_async, pointer_of(process_set), owners=None,
                    finish=lambda pointer: _c.get(_c.lib.gz_handle_last_rank, pointer))
    process_set.joins += 1
    return handle.wait()
