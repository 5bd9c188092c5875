"""Python objects, which travel as arrays of bytes. They are pickled, so the ranks must trust each
other."""
import pickle

import numpy

from . import arrays, session
from .collectives import Collectives
from .errors import refuse
from .lacks import once_submitted
from .process_sets import global_process_set

_on_arrays = Collectives(arrays)


def dumps(obj):
    """As bytes, by cloudpickle, if it is installed: it takes functions of the program, too."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj)
    return cloudpickle.dumps(obj)


@once_submitted
def broadcast_object(obj=None, root_rank=0, name=None, process_set=global_process_set):
    """The object of the rank `root_rank`, on all ranks; those of the others are not looked at."""
    name = name or "broadcast_object"
    is_root = session.rank() == root_rank
    data, count = _pickled(obj) if is_root else (None, 0)
    count = int(_on_arrays.broadcast(numpy.int64(count), root_rank, f"{name}.size", process_set))
    if not is_root:
        data = numpy.empty(abs(count), numpy.uint8)
    data = _on_arrays.broadcast_(data, root_rank, f"{name}.bytes", process_set)
    return obj if is_root and count > 0 else _unpickled(count, data)


@once_submitted
def allgather_object(obj, name=None, process_set=global_process_set):
    """The objects of all ranks, in a list by rank."""
    name = name or "allgather_object"
    data, count = _pickled(obj)
    counts = _on_arrays.allgather_async(numpy.array([count]), f"{name}.sizes", process_set)
    gathered = _on_arrays.allgather(data, f"{name}.bytes", process_set)
    counts = counts.wait().tolist()
    parts = numpy.split(gathered, numpy.cumsum(numpy.abs(counts))[:-1])
    return list(map(_unpickled, counts, parts))


def _pickled(obj):
    """The object as bytes, and their count. If it cannot be pickled they are the reason, which all
    ranks must learn, and the count is negative."""
    try:
        data, sign = dumps(obj), 1
    except Exception as error:
        reason = f"the object of rank {session.rank()} cannot be pickled: {error!r}"
        data, sign = reason.encode(errors="backslashreplace"), -1
    return numpy.frombuffer(bytearray(data), numpy.uint8), sign * len(data)


def _unpickled(count, data):
    if count < 0:
        refuse(data.tobytes().decode())
    return pickle.loads(data)
