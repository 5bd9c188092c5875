"""Operations in flight. A wait never holds the interpreter's lock, and looks at signals ten times a
second, so that Ctrl-C ends it. What an operation uses lives until it is complete, whatever becomes
of its handle: no callback of the library's ever enters the interpreter."""
import atexit
import collections
import ctypes
import os
import threading
import time
import weakref

from . import _c

WAIT_SLICE_US = 100_000

_live = weakref.WeakSet()  # what may be in flight when the interpreter ends
_process = None  # the one whose session they are of
_waiting = set()  # threads within wait_in_slices()
_is_ending = threading.Event()
_dropped = collections.deque()  # what remains of handles that were dropped in flight


class Handle:
    """An operation that was submitted, for synchronize() and poll().

    Dropping it is harmless: the operation goes on, and its arrays or tensors live as long as it
    needs them.
    """

    def __init__(self, owners, finish):
        self._pointer, self._owners, self._finish = ctypes.c_void_p(), owners, finish
        self._outcome, self._is_complete, self._lock = None, False, threading.Lock()
        outlive_interpreter(self)

    def done(self):
        """Whether wait() would return at once. Does not wait."""
        return self._is_complete or bool(_c.get(_c.lib.gz_handle_test, self._pointer))

    def wait(self):
        """Waits until the operation is complete, and returns its result; every call does."""
        if not self._is_complete:
            wait_in_slices(
                lambda: _c.get(_c.lib.gz_handle_wait_for, self._pointer, WAIT_SLICE_US))
            with self._lock:
                self._complete()
        return self._outcome

    def _complete(self):
        if not self._is_complete:
            self._outcome = self._finish(self._pointer)
            self._is_complete, self._owners, self._finish = True, None, None

    def __del__(self):
        if self._is_complete:
            free(_c.lib.gz_handle_free, self._pointer)
        elif self._pointer:  # what was refused has none
            _dropped.append((self._pointer, self._owners))


def own_objects():
    """Says that this process has the session, and so the library's objects."""
    global _process
    _process = os.getpid()


def free(function, pointer):
    """Frees an object of the library's, but for a child of fork(), which has its parent's."""
    if os.getpid() == _process:
        function(pointer)


def submit(function, *arguments, owners, finish):
    """Calls `function` with the arguments and where its handle goes. `owners` live until the
    operation is complete, even if Ctrl-C interrupts this; `finish` makes its result from the
    pointer to the handle."""
    sweep()
    handle = Handle(owners, finish)
    wait_in_slices(lambda: function(*arguments, ctypes.byref(handle._pointer)) == 0)
    return handle


def sweep():
    """Lets go of what dropped handles have left, where their operations are complete."""
    for _ in range(len(_dropped)):
        try:
            pointer, owners = _dropped.popleft()
        except IndexError:  # another thread has swept
            return
        if _is_over(pointer):
            free(_c.lib.gz_handle_free, pointer)
        else:
            _dropped.append((pointer, owners))


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


def outlive_interpreter(user):
    """Says that `user` has memory that an operation may use. The session ends after the
    interpreter, when the process exits; the other ranks may need the memory until then."""
    _live.add(user)


@atexit.register
def _end():
    _is_ending.set()
    while _waiting - {threading.main_thread().ident}:
        time.sleep(WAIT_SLICE_US / 1e7)
    users = [user() for user in _live.data.copy()], _dropped  # others may add to them now
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(users))


def _forget_in_child():
    """A child of fork() has copies of its parent's handles, with which it can do nothing, and none
    of its threads."""
    _waiting.clear()
    _dropped.clear()
    _live.clear()


os.register_at_fork(after_in_child=_forget_in_child)
