#!/usr/bin/env python3
"""faults.py PART MPIRUN JOB: faults in jobs on emulated GPUs, and what comes of them.

    ends      a rank is killed, throws, or its device fails or hangs: the others have an error with
              the cause soon, and all processes end
    host      a job of host tensors calls nothing of CUDA's
    paths     the log says which path device tensors take, and why no better one
    calls     each function of CUDA that a rank calls fails, at some of its calls: no job hangs, and
              each rank says what CUDA said, or all its results are right
    nccl      as ends, of a job whose tensors go by NCCL, and what befalls NCCL itself
    nccl_calls  as calls, of NCCL's functions

Ends with 1 unless every job behaved.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PART, MPIRUN, JOB = sys.argv[1:4]
LIMIT_S = 30
SOON_MS = 5000  # of an error, on a loaded machine
AT_ONCE = 2  # jobs
faults = []


class Run:
    """One run of a scene with so many ranks, of which the last has some environment of its own."""

    def __init__(self, scene, ranks=2, of_last=(), **environment):
        self.what = " ".join([scene, f"np={ranks}", *of_last])
        options = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        job = ["-np", str(ranks - 1), JOB, scene, ":"] if ranks > 1 else []
        job += ["-np", "1", *(word for each in of_last for word in ("-x", each)), JOB, scene]
        start = time.monotonic()
        process = subprocess.Popen(
            [MPIRUN, *options, *job], env={**os.environ, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        try:
            self.output, _ = process.communicate(timeout=LIMIT_S)
            self.hangs = False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # our own mpirun, which ends its ranks
            self.output, _ = process.communicate()
            self.hangs = True
        self.seconds, self.code = time.monotonic() - start, process.returncode
        said = re.findall(r"^rank (\d+) at (\d+) ms: (.*)$", self.output, re.MULTILINE)
        self.begins = [int(ms) for _, ms, text in said if text == "begins"]
        self.said = {int(rank): (int(ms), text) for rank, ms, text in said if text != "begins"}

    def expect(self, fine, what):
        if not fine:
            faults.append(self.what)
            print(f"{self.what}: {what}\n{self.output}", flush=True)

    def expect_told(self, ranks, words, within_ms=SOON_MS):
        """These ranks have an error with these words, soon after it begins."""
        self.expect(not self.hangs, "hangs")
        self.expect(self.code != 0, "ends with 0")
        for rank in ranks:
            ms, text = self.said.get(rank, (None, "nothing"))
            self.expect(re.search(words, text), f"rank {rank} says {text} and not {words}")
            if ms is not None and self.begins:
                self.expect(ms - self.begins[0] < within_ms, f"rank {rank} is told late")
                print(f"{self.what}: rank {rank} is told after {ms - self.begins[0]} ms")


def ends():
    mine = "the reason of this test"
    broken = "illegal memory access was encountered|cudaErrorIllegalAddress"
    for ranks in (2, 4):
        last, others = ranks - 1, range(ranks - 1)
        Run("killed", ranks).expect_told(others, rf"^rank_died: rank {last} .*killed by signal 9")
        Run("broken", ranks).expect_told(range(ranks), broken)
    Run("broken_messages").expect_told([1], f"{broken}|the stream has failed")
    Run("broken_behind").expect_told([0, 1], broken)
    Run("broken", 1).expect_told([0], broken)
    Run("leaves").expect_told([0], f"^departed: .*{mine}")
    for scene in ("held", "hung"):
        run = Run(scene)
        run.expect_told([0], mine)
        run.expect(run.seconds < 15, f"ends after {run.seconds:.1f} s")


def trace_of(scene, ranks):
    """How often each function of CUDA was called, by the process that called most."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(scene, ranks, EMULATED_CUDA_TRACE=f"{folder}/trace")
        run.expect(not run.hangs and run.code == 0, "fails")
        traces = [path.read_text().split() for path in Path(folder).iterdir()]
    return max(
        ({name: int(calls) for calls, name in zip(each[::2], each[1::2])} for each in traces),
        key=len, default={},
    )


def host():
    calls = trace_of("host", 2)
    if calls:
        faults.append("host")
        print(f"a job of host tensors has called {calls}")
    if not trace_of("steps", 2):
        faults.append("trace")
        print("no calls are seen in a job of device tensors either")


def expect_path(words, **environment):
    run = Run("steps", 2, GUOZHUANG_LOG_LEVEL="info", **environment)
    run.expect(not run.hangs and run.code == 0, "fails")
    taken = re.findall(r"the world: tensors on cuda take the (.*)", run.output)
    run.expect(len(taken) == 1 and re.fullmatch(words, taken[0]), f"takes {taken} and not {words}")


def paths():
    shared = "not nccl: ranks 0 and 1 of the set share a device"
    expect_path(re.escape(f"direct path ({shared})"))
    apart = {"EMULATED_CUDA_DEVICES": "2"}
    expect_path("nccl path", **apart)
    without = {**apart, "GUOZHUANG_NCCL": "off"}
    off = "not nccl: rank 0 of the set: GUOZHUANG_NCCL is off"
    expect_path(re.escape(f"direct path ({off})"), **without)
    refused = r"staged path \({}; not direct: rank [01]: CUDA: .*\)"
    expect_path(refused.format(off), EMULATED_CUDA_PEERS="0", **without)
    for function in ("cudaIpcOpenMemHandle", "cudaIpcGetMemHandle", "cudaHostRegister"):
        expect_path(refused.format(shared), EMULATED_CUDA_FAIL=f"{function}:1")
    full = {"EMULATED_CUDA_MEMORY_MIB": "48", "GUOZHUANG_DEVICE_BYTES": "64M"}
    expect_path(refused.format(shared), **full)
    expect_path(r"staged path \(.*not direct: GUOZHUANG_DEVICE_PATH is staged\)",
                GUOZHUANG_DEVICE_PATH="staged")


def fail_call(function, number):
    run = Run("steps", 2, of_last=[f"EMULATED_CUDA_FAIL={function}:{number}"])
    run.expect("emulated CUDA: rule" not in run.output, "breaks a rule of CUDA's")
    if run.code == 0 and not run.hangs:
        run.expect([text for _, text in run.said.values()] == ["fine"] * 2, "says something")
    else:
        told = "unknown error|cudaErrorUnknown|no NVIDIA driver"
        run.expect_told([1], told)
        run.expect_told([0], f"{told}|^fine$")  # the call that failed may be the last of all
    return run.code == 0


def calls():
    chosen = [
        (function, number)
        for function, count in trace_of("steps", 2).items()
        for number in sorted({1, 2, 1 + count // 2, count})
        if number <= count
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        fine = list(pool.map(lambda each: fail_call(*each), chosen))
    print(f"{len(fine)} failing calls, {sum(fine)} without consequence")


def with_devices(scene, ranks=2, of_last=(), **environment):
    return Run(scene, ranks, of_last, EMULATED_CUDA_DEVICES=str(ranks), **environment)


def nccl():
    mine = "the reason of this test"
    broken = "illegal memory access was encountered|cudaErrorIllegalAddress"
    for ranks in (1, 2, 4):
        run = with_devices("steps", ranks)
        run.expect(run.code == 0, "fails")
    for ranks in (2, 4):
        last, others = ranks - 1, range(ranks - 1)
        all_ranks = ",".join(map(str, range(ranks)))
        with_devices("killed", ranks).expect_told(
            others, rf"^rank_died: rank {last} .*killed by signal 9")
        with_devices("broken", ranks).expect_told(range(ranks), broken)
        run = with_devices("steps", ranks, ["EMULATED_NCCL_HANG=1"], NCCL_CONNECT_MS="1000")
        run.expect_told(range(ranks), f"NCCL has not connected ranks {all_ranks} within 1 s")
        run.expect(run.seconds < 15, f"ends after {run.seconds:.1f} s")
        with_devices("steps", ranks, ["EMULATED_NCCL_ASYNC=4"]).expect_told(
            range(ranks), "NCCL: it has failed: .*emulated failure in the background")
    with_devices("broken_behind").expect_told([0, 1], broken)
    with_devices("leaves").expect_told([0], f"^departed: .*{mine}")
    for scene in ("held", "hung"):
        run = with_devices(scene)
        run.expect_told([0], mine)
        run.expect(run.seconds < 15, f"ends after {run.seconds:.1f} s")
    Run("steps").expect_told(
        [0, 1], "NCCL cannot connect ranks 0,1: .*invalid usage: Duplicate GPU detected")


def nccl_calls():
    functions = ("ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclGroupStart",
                 "ncclGroupEnd", "ncclAllReduce", "ncclBroadcast", "ncclAllGather", "ncclReduce",
                 "ncclReduceScatter", "ncclSend", "ncclRecv")
    for function in functions:
        run = with_devices("steps", 2, [f"EMULATED_NCCL_FAIL={function}:1"])
        run.expect("emulated NCCL: rule" not in run.output, "breaks a rule of NCCL's")
        if run.code != 0 or function not in ("ncclReduce", "ncclReduceScatter"):
            run.expect_told([0, 1], f"NCCL: .*system error: emulated failure of {function}")
    run = Run("steps", 2, EMULATED_CUDA_DEVICES="2", EMULATED_NCCL_FAIL="ncclGetUniqueId:1")
    run.expect_told([0, 1], "NCCL: cannot make an id: .*emulated failure of ncclGetUniqueId")
    for function in ("ncclCommFinalize", "ncclCommDestroy"):
        run = with_devices("steps", 2, [f"EMULATED_NCCL_FAIL={function}:1"])
        run.expect(run.code == 0 and not run.hangs, "does not end well")


{"ends": ends, "host": host, "paths": paths, "calls": calls, "nccl": nccl,
 "nccl_calls": nccl_calls}[PART]()
print(f"{len(faults)} faults: {sorted(set(faults))}" if faults else "all is well")
sys.exit(1 if faults else 0)
