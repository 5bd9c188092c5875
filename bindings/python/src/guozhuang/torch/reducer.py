"""The reducer of the C interface."""
import collections
import ctypes

import torch

from .. import _c
from ..handles import WAIT_SLICE_US, InUse, free, interruptibly, wait_in_slices
from ..process_sets import pointer_of
from . import tensors


def make_buffers(layouts, arena):
    """Zeros, for each of these a shape, strides, and a pair of dtype and device. Those of one pair
    lie in one tensor without a gap, the last one first as in bundles, so a path may move
    their bundle as one. Each has a count of its changes of its own."""
    counts, buffers = collections.Counter(), []
    for shape, _, kind in layouts:
        counts[kind] += shape.numel()
    flat = dict(zip(counts, arena.zeros([(count, *kind) for kind, count in counts.items()])))
    for shape, strides, kind in layouts:
        counts[kind] -= shape.numel()
        buffers.append(flat[kind].data.as_strided(shape, strides, counts[kind]))
    return buffers


class Reducer:
    """A GzReducer: reduces gradients in bundles, which are sent as soon as backward is done with
    them."""

    _in_use = None

    def __init__(self, gradients, options, arena, name):
        """Makes their buffers in the arena, but for gradients that are sent sparse. `uses` has a
        number for each, which is not 0 after a reduction if some rank uses it."""
        number_of = {id(parameter): number for number, group in enumerate(options.groups)
                     for parameter in group}
        groups = [number_of.get(id(each.parameter), -1) for each in gradients]
        self._lay_out(gradients, groups, options, arena)
        # Copies of what is not contiguous, for the comparison at the first step.
        values = [each.value.detach().contiguous() for each in gradients]
        buffers = [each.buffer for each in gradients if each.buffer is not None]
        described = (_c.Parameter * len(gradients))(*(
            _c.Parameter(each.name.encode(), tensors.view(value),
                         _c.Tensor() if each.buffer is None else tensors.view(each.buffer))
            for each, value in zip(gradients, values)))
        sizes = {} if options.bundle_bytes is None else dict(
            bundle_bytes=options.bundle_bytes, first_bundle_bytes=options.bundle_bytes)
        reducer_options = _c.ReducerOptions(
            name=name.encode(), op=options.op, gradient_scale=options.predivide_factor,
            process_set=pointer_of(options.process_set), check_values=options.check_values,
            uses=self.uses.data_ptr(), groups=_c.array_of(ctypes.c_int32, groups), **sizes)
        # A tensor on each device with streams.
        self._devices = {each.device: each for each in (*values, *buffers)
                         if tensors.stream(each) is not None}
        self._in_use = InUse((values, buffers, self.uses))
        self._pointer = self._in_use.pointer
        _c.lib.gz_reducer_create(described, len(gradients), ctypes.byref(reducer_options),
                                 ctypes.byref(self._pointer))

    def _lay_out(self, gradients, groups, options, arena):
        """Those of one group come one after the other."""
        for index, gradient in enumerate(gradients):
            gradient.index = index
        dense = [each for each in gradients if options.sparse_as_dense or not each.is_sparse]
        dense.sort(key=lambda gradient: -groups[gradient.index])
        uses = torch.Size([max(1, len(gradients))]), (1,), (torch.float32, torch.device("cpu"))
        self.uses, *buffers = make_buffers(
            [uses, *(each.layout(options.compression) for each in dense)], arena)
        for gradient, buffer in zip(dense, buffers):
            gradient.buffer = buffer

    def _on_stream(self, function, *arguments):
        """Calls a function that enqueues something on the streams that are current now."""
        for tensor in self._devices.values():
            _c.lib.gz_reducer_set_stream(self._pointer, ctypes.byref(tensors.stream(tensor)))
        return function(self._pointer, *arguments)

    def mark(self, index):
        self._on_stream(_c.lib.gz_reducer_mark, index)

    def is_used(self, index):
        return bool(_c.get(_c.lib.gz_reducer_is_used, self._pointer, index))

    @property
    def is_closed(self):
        return bool(_c.get(_c.lib.gz_reducer_is_closed, self._pointer))

    @property
    def is_synchronised(self):
        return bool(_c.get(_c.lib.gz_reducer_is_synchronised, self._pointer))

    def close(self):
        self._on_stream(_c.lib.gz_reducer_close)

    def synchronize(self):
        """After Ctrl-C it can be called again."""
        done = ctypes.c_int()
        wait_in_slices(lambda: self._on_stream(
            _c.lib.gz_reducer_synchronize_for, WAIT_SLICE_US, ctypes.byref(done)) or done.value)

    def leave_out(self):
        """For a batch that was reduced."""
        self._discard(b"")

    def finish(self):
        """Says that the optimizer has stepped with what was reduced."""
        self._on_stream(_c.lib.gz_reducer_finish_pass, None, None, None)

    def discard(self, reason):
        interruptibly(self._discard, reason.encode(errors="backslashreplace"))

    def _discard(self, reason):  # keeps this alive on the thread that goes on after Ctrl-C
        _c.lib.gz_reducer_discard(self._pointer, reason)

    def __del__(self):
        if self._in_use is not None:
            free(_c.lib.gz_reducer_free, self._pointer)
            self._in_use.end()
