"""Memory for gradients, in which they are reduced where they lie."""
import ctypes
import threading

import torch

from .. import _c
from ..handles import free, interruptibly
from ..process_sets import global_process_set

_CACHE_LINE = 64  # with which each tensor begins

_making = threading.Lock()  # the library makes one after the other


class Arena:
    """A GradientArena for tensors on the host: if all ranks are on one, each has mapped those of
    the others. Tensors that are made in it keep it alive. A process set has none: its tensors are
    in torch's own memory, as those on a GPU are."""

    def __init__(self, process_set):
        self._process_set = process_set
        self._pointer, self._address = ctypes.c_void_p(), None

    def zeros(self, kinds):
        """A tensor for each of these, which are triples of a count, a dtype and a device.
        Collective, but ranks may differ in them. After Ctrl-C it can be called again."""
        sizes = [_size_of(*kind) for kind in kinds]
        if self._process_set is global_process_set and self._process_set.size() > 1:
            interruptibly(self._make, sum(map(_rounded, sizes)))
        tensors, begin = [], self._address
        for size, (count, dtype, device) in zip(sizes, kinds):
            if size == 0 or begin is None:
                tensors.append(torch.zeros(count, dtype=dtype, device=device))
                continue
            buffer = (ctypes.c_char * size).from_address(begin)
            buffer.owner = self
            tensors.append(torch.frombuffer(buffer, dtype=dtype))
            begin += _rounded(size)
        return tensors

    def _make(self, size):
        with _making:
            if not self._pointer:
                _c.lib.gz_arena_create(size, None, ctypes.byref(self._pointer))
            if self._address is None:
                self._address = _c.get(_c.lib.gz_arena_allocate, self._pointer, size, _CACHE_LINE,
                                       kind=ctypes.c_void_p)

    def __del__(self):
        if self._pointer:
            free(_c.lib.gz_arena_free, self._pointer)


def _size_of(count, dtype, device):
    """Bytes of host memory."""
    return count * torch.empty(0, dtype=dtype).element_size() if device.type == "cpu" else 0


def _rounded(size):
    return -(-size // _CACHE_LINE) * _CACHE_LINE
