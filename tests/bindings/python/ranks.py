"""ranks.py MODULE...: runs the test cases of these modules as a rank of a job under mpirun."""
import sys
import unittest

import guozhuang as gz


class RanksTest(unittest.TestCase):
    """A test case that all ranks run at the same time, each in a process of its own."""

    @classmethod
    def setUpClass(cls):
        cls.rank, cls.size = gz.rank(), gz.size()

    def fails_everywhere(self, call, code, text):
        """The call fails on every rank, with an error that is no mistake in the call itself."""
        with self.assertRaisesRegex(gz.Error, text) as caught:
            call()
        self.assertEqual(caught.exception.code, code)
        self.assertNotIsInstance(caught.exception, ValueError)
        return caught.exception

    def refused(self, text, call, *arguments, **options):
        """The call is refused at once: a ValueError."""
        with self.assertRaisesRegex(ValueError, text) as caught:
            call(*arguments, **options)
        self.assertIsInstance(caught.exception, gz.Error)


def expect_no_session(text):
    assert not gz.is_initialized()
    for call in (gz.rank, gz.barrier, lambda: gz.broadcast_object(1), gz.global_process_set.size):
        try:
            call()
        except gz.UsageError as error:
            assert error.code == "not_initialised" and text in str(error), error
            assert "call guozhuang.init() " in str(error) and "::" not in str(error), error
        else:
            raise AssertionError("a call without a session")


def main():
    """Runs the test cases of the modules as a rank, in one session."""
    expect_no_session("there is no session")
    gz.init()
    rank = gz.rank()
    program = unittest.main(None, exit=False, verbosity=2 if rank == 0 else 0)
    gz.shutdown()
    expect_no_session("the session has been closed")
    sys.exit(not program.result.wasSuccessful())


if __name__ == "__main__":
    main()
