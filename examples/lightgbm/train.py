#!/usr/bin/env python3
"""Trains LightGBM on rows that the ranks hold, with Guozhuang in place of its own sockets:

    mpirun -np 2 python3 train.py
"""
import ctypes
import os
import traceback

import lightgbm
import numpy
from lightgbm.basic import _LIB

import guozhuang as gz

INT, POINTER = ctypes.c_int32, ctypes.POINTER
REDUCER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, INT)
BLOCKS = (POINTER(INT), POINTER(INT), ctypes.c_int, ctypes.c_void_p, INT)  # starts, lengths, ...
REDUCE_SCATTER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, INT, ctypes.c_int, *BLOCKS,
                                  POINTER(REDUCER))
ALL_GATHER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, INT, *BLOCKS)


def memory(address, count):
    return numpy.frombuffer((ctypes.c_uint8 * count).from_address(address), numpy.uint8)


def ends_the_job(function):
    """LightGBM cannot see an exception of a callback, and would train on garbage."""
    def callback(*arguments):
        try:
            function(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return callback


@REDUCE_SCATTER
@ends_the_job
def reduce_scatter(given, size, element_bytes, _, lengths, ranks, output, room, reducer):
    """Every rank sends each peer that peer's block, and combines the copies of its own in the order
    of ranks, by LightGBM's function."""
    own_bytes = lengths[gz.rank()]  # the room for it may be larger
    copies, _ = gz.alltoall(memory(given, size), lengths[:ranks])
    memory(output, own_bytes)[:] = copies[:own_bytes]
    for rank in range(1, ranks):
        reducer[0](copies[rank * own_bytes:].ctypes.data, output, element_bytes, own_bytes)


@ALL_GATHER
@ends_the_job
def all_gather(given, size, _, lengths, ranks, output, all_bytes):
    gz.allgather(memory(given, size), output=memory(output, all_bytes))


def samples(rank, ranks):
    """This rank's rows of a table whose columns have few values."""
    table = numpy.random.default_rng(7).integers(0, 16, (6000, 8)).astype(float)[rank::ranks]
    return table, table[:, 0] * table[:, 1] + 8 * (table[:, 2] > table[:, 3])


def train(rank, ranks):
    parameters = {"objective": "regression", "tree_learner": "data", "num_machines": ranks,
                  "pre_partition": True, "num_threads": 1, "verbosity": -1}
    return lightgbm.train(parameters, lightgbm.Dataset(*samples(rank, ranks)), 20)


def main():
    gz.init()
    assert _LIB.LGBM_NetworkInitWithFunctions(gz.size(), gz.rank(), reduce_scatter, all_gather) == 0
    model = train(gz.rank(), gz.size())
    _LIB.LGBM_NetworkFree()
    table, targets = samples(0, 1)
    loss = numpy.mean((model.predict(table) - targets) ** 2)
    alone = numpy.mean((train(0, 1).predict(table) - targets) ** 2)
    same = len(set(gz.allgather_object(model.model_to_string()))) == 1
    print(f"rank {gz.rank()} of {gz.size()}: loss {loss:.6f}, alone {alone:.6f}, "
          f"the model is {'the same' if same else 'another'} on all ranks\n", end="", flush=True)
    gz.shutdown()


if __name__ == "__main__":
    main()
