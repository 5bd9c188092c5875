"""Guozhuang under the names of Horovod's modules, in processes of their own."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[2] / "bindings" / "python" / "horovod" / "src"


class Alias(unittest.TestCase):
    def run_script(self, script, has_package=False, **variables):
        """What it prints. Warnings are errors unless the script says otherwise."""
        path = os.pathsep.join([str(PACKAGE)] * has_package + [os.environ["PYTHONPATH"], str(HERE)])
        outcome = subprocess.run(
            [sys.executable, "-B", "-W", "error", "-c", script], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": path, **variables}, check=False)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        return outcome.stdout.strip()

    def test_modules(self):
        imports = """
import importlib.util
assert importlib.util.find_spec("horovod.torch") and importlib.util.find_spec("horovod")
assert importlib.util.find_spec("horovod.tensorflow") is None
import horovod, horovod.torch, horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, add_process_set
from horovod.common.util import (check_extension, extension_available, gpu_available, mpi_built,
                                 nccl_built)
from horovod.torch import mpi_ops
from horovod.torch.compression import Compression, Compressor, FP16Compressor, NoneCompressor
from horovod.torch.functions import broadcast_object, broadcast_parameters
from horovod.torch.mpi_ops import allreduce_async_, rank, size, synchronize
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
import guozhuang.torch
assert horovod.torch is hvd and hvd.allreduce is guozhuang.torch.allreduce
assert HorovodInternalError is guozhuang.Error and hvd.mpi_ops is mpi_ops
assert mpi_built(verbose=True) and nccl_built() == hvd.nccl_built()
assert extension_available("torch") and not extension_available("tensorflow")
check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", "", "mpi_lib_v2")
hvd.init()
import torch
print(hvd.allreduce(torch.ones(1)).tolist(), gpu_available("torch") == torch.cuda.is_available())
"""
        switch = "import guozhuang\nguozhuang.as_horovod()\nguozhuang.as_horovod()\n"
        self.assertEqual(self.run_script(switch + imports), "[1.0] True")
        find = 'import importlib.util\nassert importlib.util.find_spec("horovod.torch")\n'
        self.assertEqual(self.run_script(find + imports, has_package=True), "[1.0] True")

    def test_after_horovod(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "horovod", "common").mkdir(parents=True)
            Path(folder, "horovod", "common", "__init__.py").touch()
            self.assertIn("comes too late", self.run_script(f"""
import sys
sys.path.insert(0, {folder!r})
import horovod.common, guozhuang
try:
    guozhuang.as_horovod()
except ValueError as error:
    print(error)
"""))

    def test_variables(self):
        script = """
import os, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import guozhuang
    guozhuang.as_horovod()
    guozhuang.as_horovod()
guozhuang.init()
print({name: value for name, value in guozhuang.info()["configuration"].items() if name in (
    "GUOZHUANG_FUSION_BYTES", "GUOZHUANG_LOG_LEVEL", "GUOZHUANG_STALL_WARN_S",
    "GUOZHUANG_STALL_ERROR_S", "GUOZHUANG_TIMELINE")}, *(each.message for each in caught))
"""
        with tempfile.TemporaryDirectory() as folder:
            given = dict(
                HOROVOD_FUSION_THRESHOLD=str(1 << 34), HOROVOD_LOG_LEVEL="ERROR",
                HOROVOD_STALL_CHECK_TIME_SECONDS="7", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="0",
                HOROVOD_TIMELINE=folder + "/timeline.json", HOROVOD_CYCLE_TIME="3.5",
                HOROVOD_CACHE_CAPACITY="0", HOROVOD_GPU_OPERATIONS="NCCL",
                GUOZHUANG_STALL_ERROR_S="")
            printed = self.run_script(script, **given)
            for part in ("FUSION_BYTES': '1073741824'", "LOG_LEVEL': 'error'", "WARN_S': '7'",
                         "ERROR_S': 'off'", f"TIMELINE': '{folder}/timeline.json'",
                         "} HOROVOD_CACHE_CAPACITY, HOROVOD_CYCLE_TIME: without effect"):
                self.assertIn(part, printed)
            self.assertEqual(printed.count("without effect"), 1)
        self.assertNotIn("without effect", self.run_script(
            script.replace("guozhuang.init()", "os.environ.pop('PMIX_RANK')\nguozhuang.init()"),
            HOROVOD_CYCLE_TIME="3.5", PMIX_RANK="1"))
        printed = self.run_script(script, HOROVOD_STALL_CHECK_DISABLE="1",
                                  HOROVOD_STALL_CHECK_TIME_SECONDS="7",
                                  HOROVOD_FUSION_THRESHOLD="5", GUOZHUANG_FUSION_BYTES="4096")
        self.assertIn("FUSION_BYTES': '4096'", printed)
        self.assertIn("WARN_S': 'off'", printed)
        self.assertIn("HOROVOD_FUSION_THRESHOLD is 'big'; it must be a number", self.run_script("""
import guozhuang
try:
    guozhuang.as_horovod()
except ValueError as error:
    print(error)
""", HOROVOD_FUSION_THRESHOLD="big"))

    def test_variables_without_the_alias(self):
        self.assertEqual(self.run_script("""
import guozhuang
guozhuang.init()
print(guozhuang.info()["configuration"]["GUOZHUANG_STALL_WARN_S"])
""", HOROVOD_STALL_CHECK_TIME_SECONDS="7"), "10")

    def test_run(self):
        """A function of a module, on ranks whose output goes where the caller's goes."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "work.py").write_text("""
import horovod.torch as hvd
import torch

def total(begin, factor=1):
    hvd.init()
    if factor == 0:
        raise ValueError("no factor")
    return hvd.rank(), hvd.allreduce(torch.tensor([begin * factor]), op=hvd.Sum).item()
""")
            printed = self.run_script(f"""
import sys
sys.path.insert(0, {folder!r})
import guozhuang
guozhuang.as_horovod()
import horovod, work
print(horovod.run(work.total, (3,), dict(factor=2), num_proc=2))
print(horovod.run(work.total, (4,), np=2, output_filename={folder + "/printed"!r}))
try:
    horovod.run(work.total, (3,), dict(factor=0), num_proc=2)
except RuntimeError as error:
    print(error)
sys.modules["cloudpickle"] = None  # as if it were not installed
for call in (lambda: horovod.run(work.total, ssh_port=22), lambda: horovod.run(lambda: 1)):
    try:
        call()
    except ValueError as error:
        print(error)
""")
            self.assertTrue(Path(folder, "printed").is_dir())
        for part in ("[(0, 12), (1, 12)]", "[(0, 8), (1, 8)]", "run: mpirun ended with status 1",
                     "run: ssh_port: the launcher is mpirun", "needs the package cloudpickle"):
            self.assertIn(part, printed)


if __name__ == "__main__":
    unittest.main()
