"""The reducer of the C interface."""
import ctypes

import torch

from .. import _c
from ..handles import WAIT_SLICE_US, InUse, free, interruptibly, wait_in_slices
from ..process_sets import pointer_of
from . import tensors


def make_buffers(layouts, arena):
    """Zeros, for each of these a shape, strides, a dtype and a device. Those of one dtype and
    device lie in one tensor without a gap, the last one first as in bundles, so a path may move
    their bundle as one. Each has a count of its changes of its own."""
    buffers, by_kind = [None] * len(layouts), {}
    for index, (shape, _, *kind) in reversed([*enumerate(layouts)]):
        by_kind.setdefault(tuple(kind), []).append((index, shape.numel()))
    kinds = [(sum(count for _, count in alike), *kind) for kind, alike in by_kind.items()]
    for flat, alike in zip(arena.zeros(kinds), by_kind.values()):
        begin = 0
        for index, count in alike:
            buffers[index] = flat.data.as_strided(*layouts[index][:2], begin)
            begin += count
    return buffers


class Reducer:
    """A GzReducer: reduces the buffers of gradients, in bundles that are sent as soon as backward
    is done with them."""

    _in_use = None

    def __init__(self, parameters, uses, groups, process_set, **options):
        """`parameters` are triples of a name, the value, and the buffer of the gradient: None for a
        gradient that the caller reduces. `uses` is a tensor of a float for each, one at least, and
        `groups` are their numbers. Options are those of the library."""
        self.uses = uses
        # Copies of what is not contiguous, for the comparison at the first step.
        values = [value.detach().contiguous() for _, value, _ in parameters]
        buffers = [buffer for *_, buffer in parameters if buffer is not None]
        described = (_c.Parameter * len(parameters))(*(
            _c.Parameter(name.encode(), tensors.view(value),
                         _c.Tensor() if buffer is None else tensors.view(buffer))
            for (name, _, buffer), value in zip(parameters, values)))
        options = _c.ReducerOptions(
            process_set=pointer_of(process_set), uses=uses.data_ptr(),
            groups=_c.array_of(ctypes.c_int32, groups), **options)
        # A tensor on each device with streams.
        self._devices = {each.device: each for each in (*values, *buffers)
                         if tensors.stream(each) is not None}
        self._in_use = InUse((values, buffers, uses))
        self._pointer = self._in_use.pointer
        _c.lib.gz_reducer_create(described, len(parameters), ctypes.byref(options),
                                 ctypes.byref(self._pointer))

    def _follow_stream(self):
        """What is enqueued next is on the stream that is current now."""
        for buffer in self._devices.values():
            _c.lib.gz_reducer_set_stream(self._pointer, ctypes.byref(tensors.stream(buffer)))

    def mark(self, index):
        self._follow_stream()
        _c.lib.gz_reducer_mark(self._pointer, index)

    def is_used(self, index):
        return bool(_c.get(_c.lib.gz_reducer_is_used, self._pointer, index))

    @property
    def is_closed(self):
        return bool(_c.get(_c.lib.gz_reducer_is_closed, self._pointer))

    @property
    def is_synchronised(self):
        return bool(_c.get(_c.lib.gz_reducer_is_synchronised, self._pointer))

    def close(self):
        self._follow_stream()
        _c.lib.gz_reducer_close(self._pointer)

    def synchronize(self):
        """After Ctrl-C it can be called again."""
        wait_in_slices(self._try)

    def _try(self):
        self._follow_stream()
        return _c.get(_c.lib.gz_reducer_synchronize_for, self._pointer, WAIT_SLICE_US)

    def leave_out(self):
        """For a batch that was reduced."""
        self._discard(b"")

    def finish(self):
        """Says that the optimizer has stepped with what was reduced."""
        self._follow_stream()
        _c.lib.gz_reducer_finish_pass(self._pointer, None, None, None)

    def discard(self, reason):
        interruptibly(self._discard, reason.encode(errors="backslashreplace"))

    def _discard(self, reason):  # keeps this alive on the thread that goes on after Ctrl-C
        _c.lib.gz_reducer_discard(self._pointer, reason)

    def __del__(self):
        if self._in_use is not None:
            free(_c.lib.gz_reducer_free, self._pointer)
            self._in_use.end()
