"""Some of the ranks of a job, for operations among them."""
import ctypes
import operator

from . import _c
from .errors import refuse
from .handles import free, interruptibly
from .lacks import as_one


class _Pointer(ctypes.c_void_p):
    """Points to a library process set. A thread that goes on after Ctrl-C may use it longer than
    its ProcessSet does."""

    def __del__(self):
        if self:
            free(_c.lib.gz_process_set_free, self)


class ProcessSet:
    """Ranks that run operations of their own, once add_process_set() has made it one.

    Roots are ranks of the job in a set, too; what comes in the order of ranks is in the order of
    the set.
    """

    def __init__(self, ranks):
        try:
            self._ranks = sorted(map(operator.index, ranks))
        except TypeError:
            refuse(f"a process set must be given as a list of ranks, not {ranks!r}")
        for rank in self._ranks[:1] + self._ranks[-1:]:
            if ctypes.c_int(rank).value != rank:
                refuse(f"rank {rank} does not exist")
        self._pointer = None
        self.joins = 0  # how often its ranks have joined
        self.optimizers = 0  # how many have been made for it
        self.process_set_id = None  # a number that the set's ranks agree on, once it has been added

    @property
    def ranks(self):
        """Ranks of the job, ascending."""
        return list(self._ranks)

    def size(self):
        return _c.get(_c.lib.gz_process_set_size, pointer_of(self))

    def rank(self):
        """This process's number in the set, from 0. It must be in it."""
        return _c.get(_c.lib.gz_process_set_rank, pointer_of(self))

    def included(self):
        """Whether this process is in the set."""
        rank = _c.get(_c.lib.gz_rank)
        return bool(_c.get(_c.lib.gz_process_set_contains, pointer_of(self), rank))

    def __deepcopy__(self, memo):
        return self  # of the job, whoever refers to it

    def __repr__(self):
        return f"ProcessSet({self.ranks})"

    def __str__(self):
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job."""

    def __init__(self):
        super().__init__([])
        self.process_set_id = 0

    @property
    def ranks(self):
        return list(range(self.size())) if _c.lib.gz_is_initialized() else []

    def __repr__(self):
        return "global_process_set"


global_process_set = _GlobalProcessSet()
session_number = 0  # changes whenever a session begins, ends or shrinks
_next_id = 1
_added = set()  # until they are removed


def pointer_of(process_set):
    """The set as functions of the library take it."""
    if not isinstance(process_set, ProcessSet):
        refuse(f"process_set must be a ProcessSet, not {process_set!r}")
    if process_set.process_set_id is None:
        refuse(f"{process_set!r} is not in use: add_process_set() makes it a set of the job")
    return process_set._pointer


def add_process_set(process_set, duplicate=False):
    """Makes a ProcessSet, or a list of ranks, a set of the job, and returns it. Collective over the
    job: every rank calls this, in the set or not, and all add their sets in the same order.

    A second set of the same ranks is a ValueError, as with Horovod, unless `duplicate` is True: it
    is a set of its own then, whose operations do not wait for those of the first one."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    ranks = process_set.ranks
    if process_set.process_set_id is not None:
        refuse(f"{process_set!r} has been added already")
    if not duplicate and _c.lib.gz_is_initialized():
        for other in (global_process_set, *_added):
            if ranks == other.ranks:
                refuse(f"a process set of these ranks has been added already: {other!r}; "
                       "duplicate=True adds another one")
    return _create(process_set)


@as_one
def _create(process_set):
    global _next_id
    pointer = _Pointer()
    interruptibly(_c.lib.gz_process_set_create, _c.array_of(ctypes.c_int, process_set.ranks),
                  len(process_set.ranks), ctypes.byref(pointer))
    process_set._pointer, process_set.process_set_id = pointer, _next_id
    _next_id += 1
    _added.add(process_set)
    return process_set


@as_one
def remove_process_set(process_set):
    """Removes a set that was added. Collective over the job, in the same order on all ranks.
    Returns whether there was anything to remove."""
    if not isinstance(process_set, ProcessSet):
        refuse(f"process_set must be a ProcessSet, not {process_set!r}")
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    interruptibly(_c.lib.gz_process_set_remove, process_set._pointer)
    _forget(process_set)
    return True


def forget_all():
    """When the session has been closed, and its sets with it: they can be added to another one,
    where all ranks count anew."""
    global session_number, _next_id
    session_number += 1
    _next_id = 1
    for process_set in (global_process_set, *_added):
        process_set.joins = process_set.optimizers = 0
    for process_set in list(_added):
        _forget(process_set)


def _forget(process_set):
    _added.discard(process_set)
    process_set._pointer = process_set.process_set_id = None
