"""What a rank does that runs out of memory in the middle of what all ranks do together: it cannot
begin again alone, so it leaves the job, and the others get the reason."""
import functools
import threading

from . import _c
from .errors import Error

FAILURES = (MemoryError, RuntimeError)  # the lack of memory of Python, and of PyTorch; of threads


class _Thread(threading.local):
    submitted = 0  # operations


_thread = _Thread()


def count_submitted(number):
    _thread.submitted += number


def leave(reason):
    """Leaves the job at once, for a rank that cannot go on: what the others need of it fails with
    the reason. An exception that ends the program does this."""
    _c.lib.gz_leave(str(reason).encode(errors="backslashreplace"))


def is_lack(failure):
    """Other errors of the library's are known to all ranks, or found before anything is sent."""
    return (isinstance(failure, FAILURES) and
            (not isinstance(failure, Error) or failure.code == "out_of_memory"))


def leave_for(failure, where):
    """Leaves the job if that is a lack."""
    if is_lack(failure) and _c.lib.gz_is_initialized():
        leave(f"{where}: {str(failure) or 'not enough memory'}")


def as_one(function):
    """For what goes on with something that all ranks have begun."""
    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except FAILURES as failure:
            leave_for(failure, function.__qualname__)
            raise
    return call


def once_submitted(function):
    """For what begins with an operation: until that is submitted, the call can be made again."""
    @functools.wraps(function)
    def call(*args, **kwargs):
        before = _thread.submitted
        try:
            return function(*args, **kwargs)
        except FAILURES as failure:
            if _thread.submitted != before:
                leave_for(failure, function.__qualname__)
            raise
    return call
