"""numpy's arrays as the library sees them, and what it gives as arrays."""
import functools

import numpy

from . import _c
from .errors import refuse

DTYPES = {
    "uint8": _c.U8, "int8": _c.I8, "int16": _c.I16, "int32": _c.I32, "int64": _c.I64,
    "bool": _c.BOOLEAN, "float16": _c.F16, "bfloat16": _c.BF16, "float32": _c.F32,
    "float64": _c.F64, "uint16": _c.U16, "uint32": _c.U32, "uint64": _c.U64,
}


def as_input(values):
    """Values that an operation only reads, contiguous and in the processor's order of bytes."""
    array = numpy.asarray(values)
    return numpy.asarray(array, array.dtype.newbyteorder("="), order="C")


def copy(values):
    """A contiguous copy, for the result of an operation that works in place."""
    array = numpy.asarray(values)
    return numpy.array(array, array.dtype.newbyteorder("="), order="C")


def in_place(array):
    """What an operation that works in place is given for `array`, whose elements are to change: the
    array, or a contiguous copy that put_back() copies back."""
    if not isinstance(array, numpy.ndarray):
        refuse(f"only a numpy array can be changed in place, not {type(array).__name__}")
    if not array.flags.writeable:
        refuse("the array is read-only, so it cannot be changed in place")
    return as_input(array)


def is_integer(array):
    return array.dtype.kind in "iu"


def scaled(array, factor):
    """A copy times a number; integers are truncated."""
    if factor == 1:
        return array.copy()
    multiple = numpy.multiply(array, factor, dtype=numpy.float64)
    return numpy.asarray(multiple).astype(array.dtype)  # of no dimensions it is no array


def put_back(array, worked_on):
    if array is not worked_on:
        array[...] = worked_on
    return array


@functools.lru_cache(maxsize=None)
def _number_of(dtype):
    if dtype.name not in DTYPES:
        refuse(f"arrays of {dtype} cannot be sent; these dtypes can: {', '.join(DTYPES)}")
    return DTYPES[dtype.name]


def view(array):
    """The library's view of a contiguous array, which must outlive it."""
    address, _ = array.__array_interface__["data"]
    return _c.make_tensor(address, array.shape, _number_of(array.dtype))


def stream(_):
    """The stream that produces the array: none, since it is in host memory."""
    return None


def from_result(result, index, like):
    """A tensor of a result as an array, of the dtype of the array that was given."""
    tensor = result.tensor(index)
    shape = _c.shape_of(tensor)
    if 0 in shape:
        return numpy.empty(shape, like.dtype)
    return numpy.frombuffer(result.buffer(tensor, like.itemsize), like.dtype).reshape(shape)


def integers(values):
    """A list of integers as an array, for splits that are received."""
    return numpy.array(values, numpy.int32)
