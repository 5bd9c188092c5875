"""The operations, on whatever a module like arrays.py makes tensors of: an object with as_input,
copy, in_place, put_back, is_integer, scaled, view, stream, from_result and integers."""
import ctypes
import functools
import operator

from . import _c
from .errors import UsageError, make, refuse
from .handles import Handle, submit
from .lacks import once_submitted
from .process_sets import global_process_set, pointer_of
from .results import result_of

Sum, Average, Min, Max, Product, Adasum = (
    _c.SUM, _c.AVERAGE, _c.MIN, _c.MAX, _c.PRODUCT, _c.ADASUM)

_ALLREDUCE = _c.lib.gz_allreduce_async
_ALL_GATHER = _c.lib.gz_all_gather_async
_ALL_TO_ALL = _c.lib.gz_all_to_all_async
_BROADCAST = _c.lib.gz_broadcast_async
_REDUCE_SCATTER = _c.lib.gz_reduce_scatter_async
_GROUPED_ALLREDUCE = _c.lib.gz_grouped_allreduce_async
_GROUPED_ALL_GATHER = _c.lib.gz_grouped_all_gather_async
_GROUPED_REDUCE_SCATTER = _c.lib.gz_grouped_reduce_scatter_async
_GROUPED = (_GROUPED_ALLREDUCE, _GROUPED_ALL_GATHER, _GROUPED_REDUCE_SCATTER)


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


def _each(make_one, tensors, function, name):
    """What that makes of each tensor. An unfit one is refused by the operation, its name, and its
    number in a group."""
    made = []
    try:
        made.extend(map(make_one, tensors))  # keeps those before the unfit one
    except UsageError as problem:
        operation = function.__name__[len("gz_"):-len("_async")].replace("grouped_", "")
        what = operation if name is None else f"{operation} '{name}'"
        if function in _GROUPED:
            what += f": tensor {len(made)} of the group"
        raise make(problem.code, f"{what}: {problem}", "" if name is None else str(name),
                   operation) from None
    return made


def _blocking(asynchronous):
    """The form of a method that waits, and returns the result."""

    @functools.wraps(asynchronous)
    def operation(self, *arguments, **options):
        return asynchronous(self._waiting, *arguments, **options).wait()

    operation.__name__ = asynchronous.__name__.replace("_async", "")
    operation.__doc__ = asynchronous.__doc__.replace("_async", "")
    return once_submitted(operation)


class Collectives:
    """The operations on one kind of tensors. Every rank of the job, or of the process set, submits
    the same; operations without a name are matched by their order.

    Those ending in _ work in place. Those with _async in their name return a handle for
    synchronize() and poll(); the others return the result.
    """

    def __init__(self, arrays, waits=False):
        self._arrays, self._waits = arrays, waits
        self._waiting = self if waits else Collectives(arrays, waits=True)

    def _submit(self, function, tensors, arguments, finish, name, process_set, scales=(1.0, 1.0),
                output=None, splits=()):
        """`arguments` are those behind the tensors; a single tensor goes without a count."""
        stream = self._arrays.stream(tensors[0]) if tensors else None
        into = None if output is None else _each(self._arrays.view, [output], function, name)[0]
        options = _c.make_options(name, pointer_of(process_set), stream, *scales, into, splits)
        views = _each(self._arrays.view, tensors, function, name)
        if function in _GROUPED:
            views = ((_c.Tensor * len(views))(*views), len(views))
        else:
            views = (ctypes.byref(*views),)
        owners = tensors if output is None else [*tensors, output]
        return submit(function, *views, *arguments, ctypes.byref(options), owners=owners,
                      finish=finish, waits=self._waits)

    def _scaled(self, tensors, op, scales, process_set):
        """Integers have no factors in the library: those of Horovod multiply here, and truncate.
        Returns what is sent, the op and the factors to send with it, and the factor of the results,
        None where it is the library's."""
        if scales == (1, 1) or not any(map(self._arrays.is_integer, tensors)):
            return tensors, op, scales, None
        before, after = scales
        if op == Average and after != 1:  # truncated once
            op, after = Sum, after / process_set.size()
        return [self._arrays.scaled(each, before) for each in tensors], op, (1.0, 1.0), after

    # --- allreduce --------------------------------------------------------------------------------

    def _allreduce(self, function, worked_on, finish, name, op, scales, process_set):
        sent, op, scales, factor = self._scaled(worked_on, op, scales, process_set)
        if factor is None:
            return self._submit(function, sent, (op,), finish, name, process_set, scales)

        def scale_and_finish(operation):
            for tensor, total in zip(worked_on, sent):
                self._arrays.put_back(tensor, self._arrays.scaled(total, factor))
            return finish(operation)

        return self._submit(function, sent, (op,), scale_and_finish, name, process_set, scales)

    def allreduce_async(self, tensor, average=None, name=None, op=None, prescale_factor=1.0,
                        postscale_factor=1.0, process_set=global_process_set):
        """Combines the tensors of all ranks: `op` is Average (the default), Sum, Min, Max, Product
        or Adasum. Contributions are multiplied by `prescale_factor` before, results by
        `postscale_factor`. Averages and multiples of integers are truncated."""
        outputs = _each(self._arrays.copy, [tensor], _ALLREDUCE, name)
        return self._allreduce(_ALLREDUCE, outputs, lambda _: outputs[0], name,
                               choose_op(average, op), (prescale_factor, postscale_factor),
                               process_set)

    def allreduce_async_(self, tensor, average=None, name=None, op=None, prescale_factor=1.0,
                         postscale_factor=1.0, process_set=global_process_set):
        """allreduce_async(), in place."""
        worked_on = _each(self._arrays.in_place, [tensor], _ALLREDUCE, name)
        return self._allreduce(
            _ALLREDUCE, worked_on, lambda _: self._arrays.put_back(tensor, *worked_on), name,
            choose_op(average, op), (prescale_factor, postscale_factor), process_set)

    def grouped_allreduce_async(self, tensors, average=None, name=None, op=None,
                                prescale_factor=1.0, postscale_factor=1.0,
                                process_set=global_process_set):
        """allreduce_async() of several tensors as one operation. Gives a list of results."""
        outputs = _each(self._arrays.copy, tensors, _GROUPED_ALLREDUCE, name)
        return self._allreduce(
            _GROUPED_ALLREDUCE, outputs, lambda _: outputs, name, choose_op(average, op),
            (prescale_factor, postscale_factor), process_set)

    def grouped_allreduce_async_(self, tensors, average=None, name=None, op=None,
                                 prescale_factor=1.0, postscale_factor=1.0,
                                 process_set=global_process_set):
        """grouped_allreduce_async(), in place."""
        tensors = list(tensors)
        worked_on = _each(self._arrays.in_place, tensors, _GROUPED_ALLREDUCE, name)
        return self._allreduce(
            _GROUPED_ALLREDUCE, worked_on,
            lambda _: list(map(self._arrays.put_back, tensors, worked_on)), name,
            choose_op(average, op), (prescale_factor, postscale_factor), process_set)

    # --- broadcast --------------------------------------------------------------------------------

    def _broadcast(self, worked_on, finish, root_rank, name, process_set):
        return self._submit(_BROADCAST, worked_on, (_rank_of(root_rank),), finish, name,
                            process_set)

    def broadcast_async(self, tensor, root_rank, name=None, process_set=global_process_set):
        """The tensor of the rank `root_rank`, on all ranks."""
        outputs = _each(self._arrays.copy, [tensor], _BROADCAST, name)
        return self._broadcast(outputs, lambda _: outputs[0], root_rank, name, process_set)

    def broadcast_async_(self, tensor, root_rank, name=None, process_set=global_process_set):
        """broadcast_async(), in place."""
        worked_on = _each(self._arrays.in_place, [tensor], _BROADCAST, name)
        return self._broadcast(worked_on, lambda _: self._arrays.put_back(tensor, *worked_on),
                               root_rank, name, process_set)

    # --- with a result whose size the operation finds ---------------------------------------------

    def _results(self, tensors, factor=None):
        """Makes arrays of what an operation gives for each of the tensors, times the factor."""

        def finish(operation):
            result = result_of(operation)
            made = [self._arrays.from_result(result, index, like)
                    for index, like in enumerate(tensors)]
            return made if factor is None else [self._arrays.scaled(each, factor) for each in made]

        return finish

    def _check_output(self, output, function, name):
        """An output is written as it lies."""
        def address(array):
            return self._arrays.view(array).data

        def check(array):
            if address(self._arrays.in_place(array)) != address(array):
                refuse("the output must be contiguous, and in the processor's order of bytes")

        if output is not None:
            _each(check, [output], function, name)

    def allgather_async(self, tensor, name=None, process_set=global_process_set, output=None):
        """The tensors of all ranks, one below the other along the first dimension, in which they
        may differ. They go into `output`, if there is one, of which `tensor` may be this rank's own
        rows."""
        inputs = _each(self._arrays.as_input, [tensor], _ALL_GATHER, name)
        self._check_output(output, _ALL_GATHER, name)
        make = self._results(inputs)
        return self._submit(_ALL_GATHER, inputs, (),
                            lambda done: make(done)[0] if output is None else output, name,
                            process_set, output=output)

    def grouped_allgather_async(self, tensors, name=None, process_set=global_process_set):
        """allgather_async() of several tensors as one operation. Gives a list of results."""
        inputs = _each(self._arrays.as_input, tensors, _GROUPED_ALL_GATHER, name)
        return self._submit(_GROUPED_ALL_GATHER, inputs, (), self._results(inputs), name,
                            process_set)

    def _reducescatter(self, function, tensors, name, op, process_set, scales, output=None,
                       splits=()):
        """Gives a list of results, for one tensor its result."""
        inputs = _each(self._arrays.as_input, tensors, function, name)
        sent, op, scales, factor = self._scaled(inputs, choose_op(None, op), scales, process_set)
        make = self._results(inputs, factor)

        def finish(operation):
            if output is None:
                made = make(operation)
                return made[0] if function is _REDUCE_SCATTER else made
            if factor is not None and operation.result is None:
                operation.result = output  # it is scaled once, though this may be called again
                self._arrays.put_back(output, self._arrays.scaled(output, factor))
            return output

        return self._submit(function, sent, (op,), finish, name, process_set, scales, output,
                            splits)

    def reducescatter_async(self, tensor, name=None, op=Average, process_set=global_process_set,
                            prescale_factor=1.0, postscale_factor=1.0, output=None, splits=None):
        """Combines the tensors of all ranks, each of which gets its part of the first dimension:
        rank r gets `splits[r]` rows or, without splits, an equal part, the first ranks one row more
        where it does not divide evenly. It goes into `output`, if there is one, which may be this
        rank's own rows of `tensor`."""
        self._check_output(output, _REDUCE_SCATTER, name)
        return self._reducescatter(_REDUCE_SCATTER, [tensor], name, op, process_set,
                                   (prescale_factor, postscale_factor), output,
                                   _integers_of(splits))

    def grouped_reducescatter_async(self, tensors, name=None, op=Average,
                                    process_set=global_process_set, prescale_factor=1.0,
                                    postscale_factor=1.0):
        """reducescatter_async() of several tensors as one operation. Gives a list of results."""
        return self._reducescatter(_GROUPED_REDUCE_SCATTER, tensors, name, op, process_set,
                                   (prescale_factor, postscale_factor))

    def alltoall_async(self, tensor, splits=None, name=None, process_set=global_process_set):
        """Sends `splits[r]` rows of the first dimension to rank r; without splits equal parts.
        Gives what has come from all ranks, in their order; with splits a pair of that and how many
        rows came from each."""
        inputs = _each(self._arrays.as_input, [tensor], _ALL_TO_ALL, name)
        rows = _integers_of(splits)

        def finish(operation):
            result = result_of(operation)
            output = self._arrays.from_result(result, 0, inputs[0])
            return output if splits is None else (output, self._arrays.integers(result.rows(0)))

        return self._submit(_ALL_TO_ALL, inputs,
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


@once_submitted
def barrier(process_set=global_process_set):
    """Returns when every rank has called it."""
    options = _c.make_options(None, pointer_of(process_set))
    submit(_c.lib.gz_barrier_async, ctypes.byref(options), owners=None, finish=lambda _: None,
           waits=True).wait()


@once_submitted
def join(device=-1, process_set=global_process_set):
    """For a rank that has no more data: it contributes neutrally to what the others do, until all
    ranks have joined. Returns the rank that was the last to join, whose state is the newest.
    `device` is Horovod's, and not needed."""
    handle = submit(_c.lib.gz_join_async, pointer_of(process_set), owners=None,
                    finish=lambda joined: _c.get(_c.lib.gz_handle_last_rank, joined.pointer))
    process_set.joins += 1
    return handle.wait()
