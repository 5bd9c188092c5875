"""Results whose size only the operation knows, in the library's memory."""
import ctypes
import math

from . import _c
from .handles import free


def result_of(operation):
    """The Result of an InUse that is complete, which is taken once."""
    if operation.result is None:
        operation.result = Result()
    operation.result.take(operation.pointer)
    return operation.result


class Result:
    """The result of an operation that is complete; its memory goes with it."""

    _pointer = None

    def __init__(self):
        self._pointer = ctypes.c_void_p()

    def take(self, handle):
        if not self._pointer:
            _c.lib.gz_handle_take(handle, ctypes.byref(self._pointer))

    def __del__(self):
        free(_c.lib.gz_result_free, self._pointer)

    def tensor(self, index):
        """The library's view of a tensor, valid as long as this result."""
        tensor = _c.Tensor()
        _c.lib.gz_result_tensor(self._pointer, index, ctypes.byref(tensor))
        return tensor

    def buffer(self, tensor, element_bytes):
        """The memory of such a tensor on the host, as a buffer that keeps this result."""
        count = math.prod(_c.shape_of(tensor))
        buffer = (ctypes.c_char * (count * element_bytes)).from_address(tensor.data or 0)
        buffer.owner = self
        return buffer

    def rows(self, index):
        """How many rows came from each rank."""
        rows, count = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_size_t()
        _c.lib.gz_result_rows(self._pointer, index, ctypes.byref(rows), ctypes.byref(count))
        return rows[:count.value]
