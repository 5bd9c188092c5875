"""The package in a process of its own, without mpirun."""
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy

import guozhuang as gz

MEGABYTES = 1 << 20


class Alone(unittest.TestCase):
    def test_child_that_becomes_a_rank(self):
        """It may, if its parent was none; results are freed there, too."""
        child = os.fork()
        if child == 0:
            gz.init()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for _ in range(50):
                gz.allgather(numpy.ones(4 * MEGABYTES, numpy.uint8))
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in KiB
            os._exit(grown > 100 * 1024)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_communicators_of_others(self):
        for comm in ([0], "world"):
            with self.assertRaisesRegex(ValueError, "must be a communicator of mpi4py"):
                gz.init(comm=comm)
        self.assertNotIn("mpi4py", sys.modules)  # which would initialise MPI
        self.assertFalse(gz.is_initialized())

    def test_processes_of_a_launcher_that_mpi_does_not_know(self):
        for allowed in ("0", "1"):
            outcome = subprocess.run(
                [sys.executable, "-c", "import guozhuang; guozhuang.init()"], capture_output=True,
                text=True, check=False, env={
                    **os.environ, "WORLD_SIZE": "2", "RANK": "0", "TORCHELASTIC_RUN_ID": "none",
                    "GUOZHUANG_ALLOW_SINGLE": allowed})
            self.assertEqual(outcome.returncode == 0, allowed == "1")
            self.assertEqual("torchrun has started at least 2 processes (WORLD_SIZE=2, RANK=0)"
                             in outcome.stderr, allowed == "0")

    def test_library_that_is_too_old(self):
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "old.c"), Path(folder, "libguozhuang_c.so.0")
            source.write_text('const char* gz_version(void) { return "0.0.1"; }')
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
            outcome = subprocess.run(
                [sys.executable, "-c", "import guozhuang"], capture_output=True, text=True,
                env={**os.environ, "LD_LIBRARY_PATH": folder}, check=False)
        self.assertEqual(outcome.returncode, 1)
        self.assertRegex(outcome.stderr, "ImportError: guozhuang: .* version 0.0.1 .* lacks gz_")


if __name__ == "__main__":
    unittest.main()
