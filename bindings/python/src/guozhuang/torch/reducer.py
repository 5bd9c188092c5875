"""The reducer of the C interface."""
import ctypes

from .. import _c
from ..errors import Error
from ..handles import WAIT_SLICE_US, free, interruptibly, outlive_interpreter, wait_in_slices
from ..process_sets import pointer_of
from . import tensors


class Reducer:
    """A GzReducer: reduces the buffers of some parameters' gradients, in bundles that are sent as
    soon as backward is done with them."""

    def __init__(self, name, gradients, op, scale, bundle_bytes, process_set):
        """`bundle_bytes` None: the library's."""
        self._pointer, self._is_pending, self._is_reduced = ctypes.c_void_p(), False, False
        # Copies of what is not contiguous, for the comparison at the first step.
        self._values = [gradient.parameter.detach().contiguous() for gradient in gradients]
        self._buffers = [gradient.buffer for gradient in gradients]
        described = list(map(self._describe, gradients, self._values))
        sizes = {} if bundle_bytes is None else dict(
            bundle_bytes=bundle_bytes, first_bundle_bytes=bundle_bytes)
        stream = tensors.stream(self._buffers[0])
        options = _c.ReducerOptions(
            name=name.encode(), op=op, gradient_scale=scale, process_set=pointer_of(process_set),
            stream=None if stream is None else ctypes.pointer(stream), **sizes)
        _c.lib.gz_reducer_create((_c.Parameter * len(described))(*described), len(described),
                                 ctypes.byref(options), ctypes.byref(self._pointer))
        outlive_interpreter(self)

    @staticmethod
    def _describe(gradient, value):
        return _c.Parameter(gradient.name.encode(), tensors.view(value),
                            tensors.view(gradient.buffer))

    def mark(self, index):
        if self._is_reduced:  # and was not stepped with, which parts ranks if others did
            self._is_reduced = False
            self._discard(b"")
        self._is_pending = True
        _c.lib.gz_reducer_mark(self._pointer, index)

    def send(self):
        """Sends all that was marked, of which a part waits for what may follow."""
        if self._is_pending:
            _c.get(_c.lib.gz_reducer_synchronize_for, self._pointer, 0)

    def synchronize(self):
        """Waits for what was marked since the last time. After Ctrl-C it can be called again."""
        if not self._is_pending:
            return
        try:
            wait_in_slices(
                lambda: _c.get(_c.lib.gz_reducer_synchronize_for, self._pointer, WAIT_SLICE_US))
        except Error:
            self._is_pending = False
            raise
        self._is_pending, self._is_reduced = False, True

    def finish(self):
        """Says that the optimizer has stepped with what was reduced."""
        if self._is_reduced:
            _c.get(_c.lib.gz_reducer_finish_pass, self._pointer, None, None)
        self._is_reduced = False

    def discard(self, reason):
        self._is_pending, self._is_reduced = False, False
        interruptibly(self._discard, reason.encode(errors="backslashreplace"))

    def _discard(self, reason):  # keeps this alive on the thread that goes on after Ctrl-C
        _c.lib.gz_reducer_discard(self._pointer, reason)

    def __del__(self):
        free(_c.lib.gz_reducer_free, self._pointer)
