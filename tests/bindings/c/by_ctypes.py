#!/usr/bin/env python3
"""by_ctypes.py LIBRARY RANKS: the C interface as a binding for another language uses it, without
its header: structs, numbers and functions by hand, and waits that let the interpreter look at its
signals."""
import atexit
import ctypes
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p

library, ranks = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
F32, HOST, SUM, INVALID_ARGUMENT = 9, 0, 0, 1


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
        ("dtype", c_int32), ("dimensions", c_int32), ("kind", c_int32), ("index", c_int32),
    ]


Release = ctypes.CFUNCTYPE(None, c_void_p)


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("prescale", c_double), ("postscale", c_double),
        ("stream", c_void_p), ("outputs", POINTER(Tensor)), ("output_count", c_size_t),
        ("process_set", c_void_p), ("release", Release), ("owner", c_void_p),
        ("timeout_ms", c_int64),
    ]

    def __init__(self, **fields):
        super().__init__(size=ctypes.sizeof(Options), prescale=1, postscale=1, **fields)


class LastError(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t), ("status", c_int32),
        ("message", c_char_p), ("tensor", c_char_p), ("operation", c_char_p),
        ("ranks", POINTER(c_int)), ("rank_count", c_size_t),
    ]


library.gz_last_error.restype = POINTER(LastError)


def call(name, *arguments):
    if getattr(library, name)(*arguments) != 0:
        raise RuntimeError(library.gz_last_error().contents.message.decode())


values = (ctypes.c_float * 3)(1, 2, 3)
extent = (c_int64 * 1)(3)
tensor = Tensor(ctypes.cast(values, c_void_p), extent, None, F32, 1, HOST, 0)
released = []
keep = Release(released.append)
handle, done, size = c_void_p(), c_int(), c_int()
call("gz_init", None)
call("gz_size", byref(size))
assert size.value == ranks
options = Options(name=b"from Python", release=keep, owner=42)
call("gz_allreduce_async", byref(tensor), c_int32(SUM), byref(options), byref(handle))
while not done.value:
    call("gz_handle_wait_for", handle, c_int64(1000), byref(done))
library.gz_handle_free(handle)
assert list(values) == [ranks, 2 * ranks, 3 * ranks]
assert library.gz_broadcast(byref(tensor), 77, byref(Options(name=b"w"))) == INVALID_ARGUMENT
error = library.gz_last_error().contents
assert error.tensor == b"w" and b"root 77 is not a rank" in error.message
assert error.size == ctypes.sizeof(LastError)
Log = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
messages = []
log = Log(lambda level, message, context: messages.append(message))
call("gz_set_log_callback", log, None)


@atexit.register
def end():
    """The interpreter ends with an operation in flight, for which the other ranks have to come."""
    call("gz_set_log_callback", Log(), None)
    call("gz_shutdown")
    assert released == [42, 43]
    assert b"goodbye" in messages
    os.write(1, b"the end was reached\n")  # in one piece


call("gz_log_message", c_int32(3), b"goodbye")
options = Options(name=b"in flight", release=keep, owner=43)
call("gz_allreduce_async", byref(tensor), c_int32(SUM), byref(options), byref(handle))
