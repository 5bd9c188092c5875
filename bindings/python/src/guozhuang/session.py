"""This process's membership of the job."""
import ctypes
import os
import sys

from . import _c
from .errors import Error, refuse
from .handles import interruptibly, own_objects
from .lacks import as_one, leave
from .process_sets import add_process_set, forget_all


_numbers = {}  # of this process in the job, by the function that gives them


def init(comm=None, process_sets=None, time_to_shrink=0):
    """Joins the job that mpirun has started; without mpirun the job has this one rank. Collective.

    comm          a communicator of mpi4py whose ranks become the job; None or []: all ranks
    process_sets  ProcessSets to add, the same on all ranks; Horovod's "dynamic" is no different
                  from None, since sets can always be added
    time_to_shrink  for programs that call shrink(): how many seconds after the death of a rank this
                  process may take until it does; 0: it ends half a second after a death
    """
    takes_all = comm is None or isinstance(comm, list) and not comm
    options = _c.InitOptions() if takes_all else _options_for(comm)
    options.time_to_shrink_ms = round(1000 * time_to_shrink)
    if process_sets is None or str(process_sets).lower() == "dynamic":
        process_sets = []
    if not is_initialized():
        forget_all()  # sets of a session that was left, say
    _c.lib.gz_init(ctypes.byref(options))
    _begin(process_sets)


@as_one
def _begin(process_sets):
    own_objects()
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        _numbers[name] = _number(name)
    _leave_on_exception()
    for process_set in process_sets:
        add_process_set(process_set)


def _options_for(comm):
    MPI = sys.modules.get("mpi4py.MPI")  # importing it would initialise MPI
    if MPI is None or not isinstance(comm, MPI.Comm):
        refuse(f"init: comm must be a communicator of mpi4py, not {comm!r}; for some of the ranks "
               "add a process set")
    return _c.InitOptions(mpi_communicator=MPI._addressof(comm),
                          mpi_communicator_bytes=MPI._sizeof(comm))


def shrink():
    """Goes on without the ranks that have died or left, as a new job of those that are left; they
    all call it, where they catch an Error whose code is rank_died, for instance. Handles, process
    sets and optimizers of the old job are to be made anew. Needs init(time_to_shrink=...), and a
    launcher that does not end the others, such as gzrun."""
    interruptibly(_shrink)


def _shrink():
    _c.lib.gz_shrink()
    forget_all()
    _begin([])


def shutdown():
    """Leaves the job together with all other ranks. Collective. Once for each init(). A program
    that ends without it leaves the job then."""
    try:
        interruptibly(_c.lib.gz_shutdown)
    finally:
        if not is_initialized():
            forget_all()
            _numbers.clear()


def is_initialized():
    return bool(_c.lib.gz_is_initialized())


def _number(name):
    """A child of fork(), such as a worker of a DataLoader, has the number of its parent."""
    try:
        return _c.get(getattr(_c.lib, f"gz_{name}"))
    except Error as error:
        if error.code == "unavailable" and name in _numbers:
            return _numbers[name]
        raise


def rank():
    """This rank, from 0."""
    return _number("rank")


def size():
    """How many ranks the job has."""
    return _number("size")


def local_rank():
    """This rank's number among those of its host; use it to choose a GPU."""
    return _number("local_rank")


def local_size():
    """How many ranks are on this host."""
    return _number("local_size")


def cross_rank():
    """The number of this rank's host among the hosts."""
    return _number("cross_rank")


def cross_size():
    """How many hosts there are."""
    return _number("cross_size")


def is_homogeneous():
    """Whether every host has the same number of ranks."""
    return bool(_c.get(_c.lib.gz_is_homogeneous))


def start_timeline(file_path, mark_cycles=False):
    """Begins to record a timeline into a directory, a file for each rank. `mark_cycles` is
    Horovod's: there are no cycles to mark. Returns whether it began."""
    return bool(_c.get(_c.lib.gz_start_timeline, str(file_path).encode()))


def stop_timeline():
    _c.lib.gz_stop_timeline()


def info():
    """What the library knows of itself and the job, as a dictionary of sections."""
    pointer = ctypes.c_void_p()
    _c.lib.gz_info_create(ctypes.byref(pointer))
    try:
        sections = {}
        for index in range(_c.get(_c.lib.gz_info_count, pointer, kind=ctypes.c_size_t)):
            section, key, value = (ctypes.c_char_p() for _ in range(3))
            _c.lib.gz_info_get(pointer, index, *map(ctypes.byref, (section, key, value)))
            sections.setdefault(section.value.decode(), {})[key.value.decode()] = (
                value.value.decode())
        return sections
    finally:
        _c.lib.gz_info_free(pointer)


def _leave_on_exception():
    """An exception that ends the program is the reason that the other ranks get."""
    if getattr(sys.excepthook, "is_guozhuang", False):
        return
    previous = sys.excepthook

    def report(kind, value, traceback):
        previous(kind, value, traceback)
        if is_initialized():
            leave(f"{kind.__name__}: {value}")

    report.is_guozhuang = True
    sys.excepthook = report

