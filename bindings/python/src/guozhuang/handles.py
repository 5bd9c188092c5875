"""Operations in flight. A wait never holds the interpreter's lock, and looks at signals ten times a
second, so that Ctrl-C ends it. No callback of the library's ever enters the interpreter.

Ctrl-C may raise between any two bytecodes. So memory that the library may use is owned by `_in_use`
before the library gets it and until the library is done with it: an exception can only leave it
there for too long."""
import atexit
import collections
import ctypes
import os
import threading
import time

from . import _c
from .lacks import count_submitted, leave_for

WAIT_SLICE_US = 100_000

_in_use = set()  # objects of InUse
_dropped = collections.deque()  # those of _in_use whose handles were dropped in flight
_process = None  # the one whose session they are of
_waiting = set()  # threads within wait_in_slices()
_is_ending = threading.Event()


class InUse:
    """A library object, and what owns the memory that it uses."""

    pointer = None
    result = None  # once it was taken

    def __init__(self, owners):
        self.owners, self.pointer = owners, ctypes.c_void_p()
        _in_use.add(self)

    def end(self):
        """Lets the owners go: the library is done with their memory. When the interpreter ends they
        stay, as the library's objects do."""
        if not _is_ending.is_set():
            _in_use.discard(self)


class _Operation(InUse):
    def __del__(self):
        if self.pointer:  # what was refused has none
            free(_c.lib.gz_handle_free, self.pointer)
            self.pointer = None  # a Handle in the same cycle of references may still give it away


class Handle:
    """An operation that was submitted, for synchronize() and poll().

    Dropping it is harmless: the operation goes on, and its arrays or tensors live as long as it
    needs them.
    """

    _operation = None  # once it is complete

    def __init__(self, operation, finish):
        self._operation, self._finish = operation, finish
        self._outcome, self._lock = None, threading.Lock()

    def done(self):
        """Whether wait() would return at once. Does not wait."""
        operation = self._operation
        return operation is None or bool(_c.get(_c.lib.gz_handle_test, operation.pointer))

    def wait(self):
        """Waits until the operation is complete, and returns its result; every call does, also
        after one that ran out of memory."""
        operation = self._operation
        if operation is not None:
            wait_in_slices(
                lambda: _c.get(_c.lib.gz_handle_wait_for, operation.pointer, WAIT_SLICE_US))
            with self._lock:
                self._complete()
        return self._outcome

    def wait_on(self, stream):
        """For an operation in place on a device, and a handle that nobody else uses: waits until
        it is enqueued, and lets the stream wait for its end. Returns what wait() does, for work on
        that stream. Without a stream it is wait()."""
        with self._lock:
            operation, finish = self._operation, self._finish
        if stream is None or operation is None:
            return self.wait()
        wait_in_slices(lambda: _c.get(_c.lib.gz_handle_wait_stream_for, operation.pointer,
                                      ctypes.byref(stream), WAIT_SLICE_US))
        return finish(operation)

    def _complete(self):
        if self._operation is not None:
            self._outcome = self._finish(self._operation)
            operation, self._operation, self._finish = self._operation, None, None
            operation.end()

    def __del__(self):
        if self._operation is not None:
            _dropped.append(self._operation)


def own_objects():
    """Says that this process has the session, and so the library's objects."""
    global _process
    _process = os.getpid()


def free(function, pointer):
    """Frees a library object, except in a child of fork(), where it is the parent's, and while the
    interpreter ends."""
    if os.getpid() == _process and not _is_ending.is_set():
        function(pointer)


def submit(function, *arguments, owners, finish, waits=False):
    """Calls `function` with the arguments and where its handle goes. `owners` live until the
    operation is complete, even if Ctrl-C interrupts this; `finish` makes its result from that
    InUse, and can be called again if it fails. `waits`: the caller waits right after. The
    call then waits for the first slice itself, without waking a thread of the library."""
    sweep()
    operation = _Operation(owners)
    handle = Handle(operation, finish)
    try:
        count_submitted(1)
        if waits:
            _c.lib.gz_wait_first(WAIT_SLICE_US)
        wait_in_slices(lambda: function(*arguments, ctypes.byref(operation.pointer)) == 0)
        return handle
    except Exception as failure:  # Ctrl-C is none
        _c.lib.gz_wait_first(0)  # a refused call has not waited
        if operation.pointer:
            leave_for(failure, function.__name__)
        else:  # it was refused
            operation.end()
            count_submitted(-1)
        raise


def sweep():
    """Frees completed operations of dropped handles. Stops at the first one that is still in flight
    and moves it to the end, so a call takes at most one look in vain."""
    for _ in range(len(_dropped)):
        try:
            operation = _dropped.popleft()
        except IndexError:  # another thread has swept
            return
        if operation.pointer and not _is_over(operation.pointer):
            _dropped.append(operation)
            return
        operation.end()


def _is_over(pointer):
    try:
        return bool(_c.get(_c.lib.gz_handle_test, pointer))
    except RuntimeError:
        return True


def wait_in_slices(wait):
    """Calls `wait`, which waits for a slice of time, until it returns true. When the interpreter
    ends, threads other than the main one do not come back from here: a thread that takes the
    interpreter's lock after that is ended in the middle of the C++ of its callers."""
    thread = threading.get_ident()
    _waiting.add(thread)
    try:
        while not wait():
            _stay_if_ending(thread)
        _stay_if_ending(thread)
    finally:
        _waiting.discard(thread)


def _stay_if_ending(thread):
    if _is_ending.is_set() and thread != threading.main_thread().ident:
        lock = threading.Lock()
        lock.acquire()
        _waiting.discard(thread)
        lock.acquire()


def interruptibly(function, *arguments):
    """Calls a function that waits for other ranks and has no limit, on a thread of its own, while
    the caller's can be interrupted. It goes on then."""
    outcome = []

    def call():
        try:
            outcome.append((function(*arguments), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, name=f"guozhuang {function.__name__}", daemon=True)
    thread.start()
    wait_in_slices(lambda: thread.join(WAIT_SLICE_US / 1e6) or not thread.is_alive())
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


@atexit.register
def _end():
    """The session ends after the interpreter, when the process exits; the other ranks may need what
    is in use until then."""
    _is_ending.set()
    while _waiting - {threading.main_thread().ident}:
        time.sleep(WAIT_SLICE_US / 1e7)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_in_use))


def _forget_in_child():
    """A child of fork() has copies of its parent's handles, with which it can do nothing, and none
    of its threads."""
    _waiting.clear()
    _dropped.clear()
    _in_use.clear()


os.register_at_fork(after_in_child=_forget_in_child)
