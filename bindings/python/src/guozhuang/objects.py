"""Python objects, which travel as arrays of bytes. They are pickled, so the ranks must trust each
other."""
import pickle

import numpy

from . import arrays, session
from .collectives import Collectives
from .process_sets import global_process_set

_on_arrays = Collectives(arrays)


def broadcast_object(obj=None, root_rank=0, name=None, process_set=global_process_set):
    """The object of the rank `root_rank`, on all ranks; those of the others are not looked at."""
    name = name or "broadcast_object"
    is_root = session.rank() == root_rank
    data = _as_bytes(obj) if is_root else numpy.empty(0, numpy.uint8)
    count = _on_arrays.broadcast(numpy.int64(data.size), root_rank, f"{name}.size", process_set)
    if not is_root:
        data = numpy.empty(int(count), numpy.uint8)
    data = _on_arrays.broadcast_(data, root_rank, f"{name}.bytes", process_set)
    return obj if is_root else pickle.loads(data.tobytes())


def allgather_object(obj, name=None, process_set=global_process_set):
    """The objects of all ranks, in a list by rank."""
    name = name or "allgather_object"
    data = _as_bytes(obj)
    sizes = _on_arrays.allgather_async(numpy.array([data.size]), f"{name}.sizes", process_set)
    all_bytes = _on_arrays.allgather(data, f"{name}.bytes", process_set).tobytes()
    objects, begin = [], 0
    for size in sizes.wait():
        objects.append(pickle.loads(all_bytes[begin:begin + size]))
        begin += size
    return objects


def _as_bytes(obj):
    return numpy.frombuffer(bytearray(pickle.dumps(obj)), numpy.uint8)
