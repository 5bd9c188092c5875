"""What the tests that run as several ranks have in common."""
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


def main():
    """Runs the test cases of the program as a rank. Its session begins and ends here."""
    gz.init()
    rank = gz.rank()
    program = unittest.main(exit=False, verbosity=2 if rank == 0 else 0)
    gz.shutdown()
    sys.exit(not program.result.wasSuccessful())
