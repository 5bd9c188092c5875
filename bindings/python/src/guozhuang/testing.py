"""For tests that run on several ranks at the same time, by unittest or pytest."""
import contextlib

from . import session
from .collectives import barrier


@contextlib.contextmanager
def together():
    """Around a test, or as `@together()` above it: all ranks end the test before one of them begins
    the next, and what one of them raises ends it on all. The others would wait for the operations
    that this rank has left out, while it waits for theirs in the next test.

    The failing rank leaves the job, the others get its error as the reason, and the next test
    begins with a new session, which has no process sets yet. mpirun then ends with a failure."""
    if not session.is_initialized():
        session.init()
    try:
        yield
        barrier()
    except BaseException as error:
        name = type(error).__name__
        if name not in ("SkipTest", "Skipped"):  # unittest's and pytest's: on all ranks
            session.leave(f"{name}: {error}")
        raise
