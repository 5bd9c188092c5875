"""The reducer of the C interface."""
import ctypes

import torch

from .. import _c
from ..errors import Error
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
    """A GzReducer: reduces the buffers of some parameters' gradients, in bundles that are sent as
    soon as backward is done with them."""

    _in_use = None

    def __init__(self, name, parameters, op, scale, bundle_bytes, process_set, check_values=True):
        """`parameters` are triples of a name, the value, and the buffer of the gradient.
        `bundle_bytes` None: the library's."""
        self._is_pending, self._is_reduced = False, False
        self._failure = None  # of send()
        names, values, self._buffers = zip(*parameters)
        # Copies of what is not contiguous, for the comparison at the first step.
        self._values = [value.detach().contiguous() for value in values]
        described = [_c.Parameter(*each) for each in zip(
            (name.encode() for name in names), map(tensors.view, self._values),
            map(tensors.view, self._buffers))]
        sizes = {} if bundle_bytes is None else dict(
            bundle_bytes=bundle_bytes, first_bundle_bytes=bundle_bytes)
        stream = tensors.stream(self._buffers[0])
        options = _c.ReducerOptions(
            name=name.encode(), op=op, gradient_scale=scale, process_set=pointer_of(process_set),
            check_values=check_values,
            stream=None if stream is None else ctypes.pointer(stream), **sizes)
        # A buffer on each device with streams, and the one that is current there.
        self._devices = {each.device: each for each in self._buffers
                         if tensors.stream(each) is not None}
        self._streams = {}
        self._in_use = InUse((self._values, self._buffers))
        self._pointer = self._in_use.pointer
        _c.lib.gz_reducer_create((_c.Parameter * len(described))(*described), len(described),
                                 ctypes.byref(options), ctypes.byref(self._pointer))

    def _follow_stream(self):
        """What is enqueued next is on the stream that is current now."""
        for device, buffer in self._devices.items():
            stream = tensors.stream(buffer)
            if self._streams.get(device, "none yet") != stream.native:
                _c.lib.gz_reducer_set_stream(self._pointer, ctypes.byref(stream))
                self._streams[device] = stream.native

    def mark(self, index):
        self._is_pending = True
        self._follow_stream()
        _c.lib.gz_reducer_mark(self._pointer, index)

    def send(self):
        """Sends all that was marked, of which a part waits for what may follow. What goes wrong,
        synchronize() raises."""
        if self._is_pending:
            self._follow_stream()
            try:
                _c.get(_c.lib.gz_reducer_synchronize_for, self._pointer, 0)
            except Error as failure:
                self._failure = failure

    def synchronize(self):
        """Waits for what was marked since the last time. After Ctrl-C it can be called again."""
        if not self._is_pending:
            return
        try:
            wait_in_slices(self._try)
        except Error:
            self._is_pending = False
            raise
        self._is_pending, self._is_reduced = False, True

    def _try(self):
        if self._failure is not None:
            raise self._failure
        self._follow_stream()
        return _c.get(_c.lib.gz_reducer_synchronize_for, self._pointer, WAIT_SLICE_US)

    def leave_out(self):
        """Goes before the next batch. If this rank has not stepped with what was reduced, it has
        parted from ranks that did, which the next reduction finds."""
        if self._is_reduced:
            self._is_reduced = False
            self._discard(b"")

    def finish(self):
        """Says that the optimizer has stepped with what was reduced."""
        if self._is_reduced:
            self._follow_stream()
            _c.get(_c.lib.gz_reducer_finish_pass, self._pointer, None, None)
        self._is_reduced = False

    def discard(self, reason):
        self._is_pending, self._is_reduced = False, False
        interruptibly(self._discard, reason.encode(errors="backslashreplace"))

    def _discard(self, reason):  # keeps this alive on the thread that goes on after Ctrl-C
        _c.lib.gz_reducer_discard(self._pointer, reason)

    def __del__(self):
        if self._in_use is not None:
            free(_c.lib.gz_reducer_free, self._pointer)
            self._in_use.end()
