"""What a rank does that runs out of memory in the middle of what all ranks do together: it cannot
begin again alone, so it leaves the job, and the others get the reason."""
import functools
import threading

from . import _c
from .errors import Error

FAILURES = (MemoryError, RuntimeError)  # PyTorch's lack of memory is a RuntimeError


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
    """Whether memory or a thread is lacking. Other errors are those of the program, which may find
    them on all ranks."""
    if isinstance(failure, Error):
        return failure.code == "out_of_memory"
    return isinstance(failure, MemoryError) or (
        isinstance(failure, RuntimeError) and
        any(lack in str(failure) for lack in ("memory", "can't start new thread")))


def leave_for(failure, where):
    """Leaves the job if that is a lack, and others may wait for this rank."""
    if is_lack(failure) and _c.lib.gz_is_initialized() and _c.get(_c.lib.gz_size) > 1:
        leave(f"{where}: {str(failure) or 'not enough memory'}")


def as_one(function):
    """Decorates a function that goes on with something that all ranks have begun."""
    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except FAILURES as failure:
            leave_for(failure, function.__name__)
            raise
    return call


def once_submitted(function):
    """Decorates a function that begins with an operation: until that is submitted, the call can be
    made again."""
    @functools.wraps(function)
    def call(*args, **kwargs):
        before = _thread.submitted
        try:
            return function(*args, **kwargs)
        except FAILURES as failure:
            if _thread.submitted != before:
                leave_for(failure, function.__name__)
            raise
    return call
