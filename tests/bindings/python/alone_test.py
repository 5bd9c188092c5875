"""The package in a process of its own, without mpirun."""
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy

import guozhuang as gz
from guozhuang import features

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

    def test_a_session_that_was_left_has_no_threads(self):
        child = os.fork()
        if child == 0:
            threads = []
            for _ in range(3):
                gz.init()
                gz.leave("another begins")
                threads.append(len(os.listdir("/proc/self/task")))
            os._exit(len(set(threads)) != 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_what_is_built_is_known_before_init(self):
        """The version of NCCL, too, by a library that stands for it."""
        self.assertFalse(gz.is_initialized())
        self.assertEqual([gz.mpi_built(), gz.mpi_enabled(), gz.mpi_threads_supported(),
                          gz.gloo_built(), gz.ccl_built(), gz.ddl_built(), gz.rocm_built()],
                         [True] * 3 + [False] * 4)
        self.assertEqual([*features._library_folders()],
                         [Path(os.environ["LD_LIBRARY_PATH"].split(":")[0]).resolve()])
        with tempfile.TemporaryDirectory() as folder:
            source, nccl = Path(folder, "nccl.c"), Path(folder, "libnccl.so.2")
            source.write_text("int ncclGetVersion(int* v) { *v = 22809; return 0; }")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", nccl, source], check=True)
            with mock.patch.object(features, "_library_folders", lambda: [Path(folder)]):
                versions = []
                for has_plugin in (False, True):
                    for wanted in (str(nccl), "off", folder + "/none"):
                        with mock.patch.dict(os.environ, GUOZHUANG_NCCL=wanted):
                            versions.append(gz.nccl_built())
                    self.assertEqual(gz.cuda_built(), has_plugin)
                    Path(folder, "libguozhuang_cuda.so").touch()
        self.assertEqual(versions, [0, 0, 0, 22809, 0, 0])

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
