"""guozhuang.h as ctypes sees it: the structs, numbers and functions that the package uses, and the
library that has them. tests/bindings/python/mirror.py compares this file with the header."""
import ctypes
from ctypes import (POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t,
                    c_void_p)
from pathlib import Path

from . import errors

LIBRARY = "libguozhuang_c.so.0"

U8, I8, I16, I32, I64, BOOLEAN, F16, BF16, F32, F64, U16, U32, U64 = range(1, 14)
SUM, AVERAGE, MIN, MAX, PRODUCT, ADASUM = range(6)
HOST, CUDA = range(2)


class Device(Structure):
    _fields_ = [("kind", c_int32), ("index", c_int32)]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("dtype", c_int32),
        ("dimensions", c_int32),
        ("device", Device),
    ]


class Parameter(Structure):
    _fields_ = [("name", c_char_p), ("value", Tensor), ("gradient", Tensor)]


class Stream(Structure):
    _fields_ = [("device", Device), ("native", c_void_p)]


class KeepAlive(Structure):
    _fields_ = [("release", c_void_p), ("owner", c_void_p)]


class Options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("prescale", c_double),
        ("postscale", c_double),
        ("stream", POINTER(Stream)),
        ("outputs", POINTER(Tensor)),
        ("output_count", c_size_t),
        ("process_set", c_void_p),
        ("keep_alive", KeepAlive),
        ("timeout_ms", c_int64),
        ("splits", POINTER(c_int64)),
        ("split_count", c_size_t),
    ]


class InitOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("mpi_communicator", c_void_p),
        ("mpi_communicator_bytes", c_size_t),
        ("time_to_shrink_ms", c_int64),
    ]

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(InitOptions), **fields)


class ReducerOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("op", c_int32),
        ("backward_passes_per_step", c_int32),
        ("gradient_scale", c_double),
        ("bundle_bytes", c_size_t),
        ("first_bundle_bytes", c_size_t),
        ("stream", POINTER(Stream)),
        ("process_set", c_void_p),
        ("check_values", c_int32),
        ("memory", c_int32),
        ("uses", c_void_p),
        ("groups", POINTER(c_int32)),
    ]

    def __init__(self, **fields):
        defaults = dict(op=AVERAGE, backward_passes_per_step=1, gradient_scale=1.0,
                        bundle_bytes=25 << 20, first_bundle_bytes=1 << 20, check_values=1)
        super().__init__(size=ctypes.sizeof(ReducerOptions), **{**defaults, **fields})


class Error(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("status", c_int32),
        ("message", c_char_p),
        ("tensor", c_char_p),
        ("operation", c_char_p),
        ("ranks", POINTER(c_int)),
        ("rank_count", c_size_t),
    ]


_OPTIONS_BYTES = ctypes.sizeof(Options)
_TENSORS = (POINTER(Tensor), c_size_t)
_OPTIONS, _HANDLE = POINTER(Options), POINTER(c_void_p)
_INT = POINTER(c_int)

# Those that return a GzStatus, and what they take.
STATUS_FUNCTIONS = {
    "gz_init": (POINTER(InitOptions),),
    "gz_shrink": (),
    "gz_shutdown": (),
    "gz_leave": (c_char_p,),
    "gz_rank": (_INT,),
    "gz_size": (_INT,),
    "gz_local_rank": (_INT,),
    "gz_local_size": (_INT,),
    "gz_cross_rank": (_INT,),
    "gz_cross_size": (_INT,),
    "gz_is_homogeneous": (_INT,),
    "gz_process_set_create": (_INT, c_size_t, _HANDLE),
    "gz_process_set_remove": (c_void_p,),
    "gz_process_set_rank": (c_void_p, _INT),
    "gz_process_set_size": (c_void_p, _INT),
    "gz_process_set_contains": (c_void_p, c_int, _INT),
    "gz_allreduce_async": (_TENSORS[0], c_int32, _OPTIONS, _HANDLE),
    "gz_grouped_allreduce_async": (*_TENSORS, c_int32, _OPTIONS, _HANDLE),
    "gz_broadcast_async": (_TENSORS[0], c_int, _OPTIONS, _HANDLE),
    "gz_barrier_async": (_OPTIONS, _HANDLE),
    "gz_join_async": (c_void_p, _HANDLE),
    "gz_all_gather_async": (_TENSORS[0], _OPTIONS, _HANDLE),
    "gz_all_to_all_async": (_TENSORS[0], POINTER(c_int64), c_size_t, _OPTIONS, _HANDLE),
    "gz_reduce_scatter_async": (_TENSORS[0], c_int32, _OPTIONS, _HANDLE),
    "gz_grouped_all_gather_async": (*_TENSORS, _OPTIONS, _HANDLE),
    "gz_grouped_reduce_scatter_async": (*_TENSORS, c_int32, _OPTIONS, _HANDLE),
    "gz_handle_wait_for": (c_void_p, c_int64, _INT),
    "gz_handle_wait_stream_for": (c_void_p, POINTER(Stream), c_int64, _INT),
    "gz_handle_test": (c_void_p, _INT),
    "gz_handle_take": (c_void_p, _HANDLE),
    "gz_handle_last_rank": (c_void_p, _INT),
    "gz_result_tensor": (c_void_p, c_size_t, POINTER(Tensor)),
    "gz_result_rows": (c_void_p, c_size_t, POINTER(POINTER(c_int64)), POINTER(c_size_t)),
    "gz_arena_create": (c_size_t, POINTER(Device), _HANDLE),
    "gz_arena_allocate": (c_void_p, c_size_t, c_size_t, _HANDLE),
    "gz_reducer_create": (POINTER(Parameter), c_size_t, POINTER(ReducerOptions), _HANDLE),
    "gz_reducer_mark": (c_void_p, c_size_t),
    "gz_reducer_set_stream": (c_void_p, POINTER(Stream)),
    "gz_reducer_close": (c_void_p,),
    "gz_reducer_is_used": (c_void_p, c_size_t, _INT),
    "gz_reducer_is_closed": (c_void_p, _INT),
    "gz_reducer_is_synchronised": (c_void_p, _INT),
    "gz_reducer_synchronize_for": (c_void_p, c_int64, _INT),
    "gz_reducer_finish_pass": (c_void_p, c_void_p, c_void_p, _INT),
    "gz_reducer_discard": (c_void_p, c_char_p),
    "gz_start_timeline": (c_char_p, _INT),
    "gz_stop_timeline": (),
    "gz_info_create": (_HANDLE,),
    "gz_info_count": (c_void_p, POINTER(c_size_t)),
    "gz_info_get": (c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_char_p)),
}

# The others: what they return, and what they take.
OTHER_FUNCTIONS = {
    "gz_last_error": (POINTER(Error),),
    "gz_status_name": (c_char_p, c_int32),
    "gz_version": (c_char_p,),
    "gz_is_initialized": (c_int,),
    "gz_process_set_free": (None, c_void_p),
    "gz_wait_first": (None, c_int64),
    "gz_handle_free": (None, c_void_p),
    "gz_result_free": (None, c_void_p),
    "gz_arena_free": (None, c_void_p),
    "gz_reducer_free": (None, c_void_p),
    "gz_info_free": (None, c_void_p),
}


def _load():
    """The library beside the package, as a wheel has it; else the one that the loader finds."""
    beside = Path(__file__).parent / "lib" / LIBRARY
    try:
        return ctypes.CDLL(str(beside) if beside.exists() else LIBRARY)
    except OSError as error:
        raise ImportError(
            f"guozhuang: {error}; install the package with its library (pip install "
            "./bindings/python), or put the folder of the library into LD_LIBRARY_PATH") from error


def _raise_failure(status, function, arguments):
    if status != 0:
        error = lib.gz_last_error().contents
        raise errors.make(
            lib.gz_status_name(error.status).decode(), error.message.decode(errors="replace"),
            error.tensor.decode(errors="replace"), error.operation.decode(),
            error.ranks[:error.rank_count])
    return status


def _find(name):
    try:
        return getattr(lib, name)
    except AttributeError:
        lib.gz_version.restype = c_char_p
        raise ImportError(
            f"guozhuang: {lib._name} of version {lib.gz_version().decode()} is older than the "
            f"package: it lacks {name}") from None


lib = _load()
for _name, _arguments in STATUS_FUNCTIONS.items():
    _function = _find(_name)
    _function.restype, _function.argtypes = c_int32, _arguments
    _function.errcheck = _raise_failure
for _name, (_result, *_arguments) in OTHER_FUNCTIONS.items():
    _function = _find(_name)
    _function.restype, _function.argtypes = _result, _arguments


def get(function, *arguments, kind=c_int):
    """What a function writes behind its last argument."""
    value = kind()
    function(*arguments, ctypes.byref(value))
    return value.value


def make_tensor(address, shape, dtype, device=None):
    """A contiguous tensor; the caller keeps its memory. Without a device it is on the host."""
    if device is None:
        return Tensor(address, array_of(c_int64, shape), None, dtype, len(shape))
    return Tensor(address, array_of(c_int64, shape), None, dtype, len(shape), device)


def make_options(name, process_set, stream=None, prescale=1.0, postscale=1.0, output=None,
                 splits=()):
    """The options of an operation. The pointer to the set must outlive them."""
    return Options(_OPTIONS_BYTES, None if name is None else str(name).encode(), prescale,
                   postscale, None if stream is None else ctypes.pointer(stream),
                   None if output is None else ctypes.pointer(output), 0 if output is None else 1,
                   process_set, splits=array_of(c_int64, splits), split_count=len(splits))


def array_of(kind, values):
    """An array as functions take it: none if there are no values."""
    return (kind * len(values))(*values) if values else None


def shape_of(tensor):
    return tuple(tensor.shape[index] for index in range(tensor.dimensions))
