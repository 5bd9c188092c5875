#!/usr/bin/env python3
"""faults.py PART MPIRUN JOB: faults in jobs on emulated GPUs, and what comes of them.

    ends      a rank is killed, throws, or its device fails or hangs: the others have an error with
              the cause soon, and all processes end
    host      a job of host tensors never calls CUDA
    paths     the log and gz-info say which path device tensors take, and why no better one
    calls     each function of CUDA that a rank calls fails, at some of its calls: no job hangs, and
              each rank says what CUDA said, or all its results are right
    deaths    by each path, a rank is killed at some of its calls of each function of CUDA: no job
              hangs, the last words of all others name it, and no process or file is left
    stops     by each path, a rank is stopped while tensors are on their way, and continued: nothing
              fails; if that takes longer than the limit, all others end by its name
    nccl      as ends, of a job whose tensors go by NCCL; and of one whose NCCL does not connect
    nccl_calls  as calls, of NCCL's functions

Ends with 1 unless every job behaved.
"""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PART, MPIRUN, JOB = sys.argv[1:4]
PATHS = "direct", "ring", "staged"
STOPPED = r"rank 2 (does not come forward|has not submitted it) \(pid \d+, stopped; "
LIMIT_S = 30
SOON_MS = 5000  # of an error, on a loaded machine
AT_ONCE = 2  # jobs
NO_KERNEL_IMAGE = ["EMULATED_CUDA_FAIL=cudaFuncGetAttributes:1:209"]
WITHOUT_CODE = (
    "built without code for compute capability 9.0: build with GUOZHUANG_CUDA_ARCHITECTURES=90"
)
WITH_NCCL = (Path(os.environ["LD_LIBRARY_PATH"]) / "libnccl.so.2").exists()
faults = []


def job_of(command, ranks, hosts=1, of_last=()):
    """mpirun's arguments: as many ranks on each simulated host, the last of all with `of_last`."""
    job = []
    for host in range(hosts):
        own = [f"GUOZHUANG_HOST={host}"] if hosts > 1 else []
        here = ranks // hosts
        for count, words in ([(here - 1, own), (1, [*own, *of_last])] if host == hosts - 1
                             else [(here, own)]):
            if count > 0:
                variables = (word for each in words for word in ("-x", each))
                job += [":", "-np", str(count), *variables, *command]
    return ["--oversubscribe", "--bind-to", "none", *job[1:]]


def files_of_ours():
    return set(Path("/dev/shm").rglob("*guozhuang*"))


def processes_of(session):
    """Those that have not ended, of the session that a process has begun."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state != "Z" and int(its_session) == session:
            yield stat.parent.name


def share_of_machine():
    """Time passes as slowly as the machine is loaded, as for the watchdog of tests/support."""
    running = int(re.match(r"\S+ \S+ \S+ (\d+)/", Path("/proc/loadavg").read_text())[1])
    return min(1, os.cpu_count() / max(running, 1))


class Run:
    """One run of a scene with so many ranks, of which the last has some environment of its own."""

    def __init__(self, scene, ranks=2, of_last=(), hosts=1, **environment):
        self.what = " ".join([scene, f"np={ranks}", *(["hosts"] if hosts > 1 else []), *of_last])
        options = ["--mca", "mpi_yield_when_idle", "1"]
        job = job_of([JOB, scene], ranks, hosts, of_last)
        files = files_of_ours()
        process = subprocess.Popen(
            [MPIRUN, *options, *job], env={**os.environ, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        self.hangs, self.seconds = True, 0
        while self.hangs and self.seconds < LIMIT_S:
            start = time.monotonic()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.output, _ = process.communicate(timeout=0.5)
                self.hangs = False
            self.seconds += (time.monotonic() - start) * share_of_machine()
        if self.hangs:
            os.killpg(process.pid, signal.SIGTERM)  # our own mpirun, which ends its ranks
            self.output, _ = process.communicate()
        self.code = process.returncode
        self.left = [*processes_of(process.pid), *(files_of_ours() - files)]
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


    def expect_named_death(self, victim, ranks):
        """These ranks' last words name the one that was killed, and nothing is left of the job."""
        self.expect(not self.hangs, "hangs")
        for rank in ranks:
            words = re.findall(rf"^guozhuang\[{rank}\] error: (.*)$", self.output, re.MULTILINE)
            named = words and re.match(rf"rank {victim} .*died .*killed by signal 9", words[-1])
            self.expect(named, f"the last words of rank {rank} are {words[-1:]}")
        self.expect(not self.left, f"leaves {self.left}")


def expect_end_of_lagging(*job, **environment):
    """Ranks that close wait for another one's device."""
    run = Run(*job, **environment)
    run.expect(run.code == 0 and not run.hangs, "does not end well")
    run.expect([text for _, text in run.said.values()] == ["fine"] * 3, "says something")


def expect_exit(run):
    """While operations are on their way."""
    called = "rank 1 has shut down .its process has called exit.. before the session was closed"
    run.expect(run.code != 0 and re.search(called, run.output), "does not say who has called exit")
    run.expect(run.seconds < 15, f"ends after {run.seconds:.1f} s")


def ends():
    mine = "the reason of this test"
    broken = "illegal memory access was encountered|cudaErrorIllegalAddress"
    for ranks in (2, 4):
        last, others = ranks - 1, range(ranks - 1)
        Run("killed", ranks).expect_told(others, rf"^rank_died: rank {last} .*killed by signal 9")
        Run("broken", ranks).expect_told(range(ranks), broken)
    Run("killed_idle", 4).expect_told(range(3), r"^rank_died: rank 3 .*killed by signal 9")
    for path in PATHS:
        expect_end_of_lagging("lags", 3, GUOZHUANG_DEVICE_PATH=path)
        if kill_at("cuStreamWriteValue32", 30, 3, GUOZHUANG_DEVICE_PATH=path):
            faults.append(f"nobody is killed on the {path} path")
    expect_exit(Run("exits"))
    around = Run("killed", 4, GUOZHUANG_DEVICE_PATH="ring")
    around.expect_told(range(3), r"^rank_died: rank 3 .*killed by signal 9")
    around.expect(around.seconds < 15, f"ends after {around.seconds:.1f} s")
    across = Run("killed", 4, hosts=2)
    across.expect_told(range(3), r"^rank_died: rank 3 .*killed by signal 9")
    across.expect(across.seconds < 15, f"ends after {across.seconds:.1f} s")
    Run("broken", 4, hosts=2).expect_told(range(4), broken)
    run = Run("broken_under_way")
    what = rf"allreduce 'grad': CUDA: device \d has failed: .*({broken})"
    run.expect_told([1], what)
    run.expect_told([0], f"^aborted: rank 1 has ended the job: {what}")
    run = Run("steps", 2, ["EMULATED_CUDA_FAIL=cuStreamWaitValue32:1"],
              GUOZHUANG_DEVICE_PATH="staged")
    what = "allreduce '#1 allreduce': CUDA: cannot enqueue a wait for a word: "
    run.expect_told([1], what)
    run.expect_told([0], f"^aborted: rank 1 has ended the job: {what}")
    Run("broken_messages").expect_told([1], f"{broken}|the stream has failed")
    Run("broken_behind").expect_told([0, 1], f"send to 0: .*({broken})")
    Run("broken", 1).expect_told([0], broken)
    Run("leaves").expect_told([0], f"^departed: .*{mine}")
    for scene in ("held", "hung"):
        run = Run(scene)
        run.expect_told([0], mine)
        run.expect(run.seconds < 15, f"ends after {run.seconds:.1f} s")


def calls_in(scene, ranks, of_all=False, **kind):
    """How often the last rank calls each function of CUDA, or all ranks together."""
    with tempfile.TemporaryDirectory() as folder:
        trace = {"EMULATED_CUDA_TRACE": f"{folder}/trace"}
        run = (
            Run(scene, ranks, **trace, **kind) if of_all
            else Run(scene, ranks, [f"{name}={prefix}" for name, prefix in trace.items()], **kind)
        )
        run.expect(not run.hangs and run.code == 0, "fails")
        counts = Counter()
        for path in Path(folder).iterdir():
            words = path.read_text().split()
            counts.update(dict(zip(words[1::2], map(int, words[::2]))))
    return counts


def host():
    calls = calls_in("host", 2, of_all=True)
    if calls:
        faults.append("host")
        print(f"a job of host tensors has called {calls}")
    if not calls_in("steps", 2):
        faults.append("trace")
        print("no calls are seen in a job of device tensors either")


def expect_path(words, ranks=2, of_last=(), **environment):
    run = Run("steps", ranks, of_last, GUOZHUANG_LOG_LEVEL="info", **environment)
    run.expect(not run.hangs and run.code == 0, "fails")
    taken = re.findall(r"the world: tensors on cuda take the (.*)", run.output)
    run.expect(len(taken) == 1 and re.fullmatch(words, taken[0]), f"takes {taken} and not {words}")


def expect_info(words, ranks, of_last=(), hosts=1, **environment):
    """gz-info names the path, tried by all ranks, of which the last has some environment of its
    own."""
    run = subprocess.run(
        [MPIRUN, *job_of([str(Path(JOB).parent / "gz-info"), "--json"], ranks, hosts, of_last)],
        env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE, timeout=LIMIT_S)
    devices = json.loads(run.stdout)["devices"] if run.returncode == 0 else {}
    if not re.fullmatch(words, str(devices.get("path", devices.get("cuda")))):
        faults.append("gz-info")
        print(f"gz-info with {environment}: {devices} and not {words}")


def infos():
    off = {"GUOZHUANG_NCCL": "off"}
    arena, small = (f", with about {mib} MiB of the GPU's memory" for mib in (32, 8))
    for wanted in ("auto", "nccl"):
        expect_info("none: there is one rank", 1, GUOZHUANG_DEVICE_PATH=wanted)
    expect_info(rf"direct{small} \(.*\)", 2, GUOZHUANG_DEVICE_BYTES="8M", **off)
    expect_info(rf"direct{arena} \(not nccl: rank 0 of the set: GUOZHUANG_NCCL is off\)", 4, **off)
    four = {"EMULATED_CUDA_DEVICES": "4", **off}
    failed = r"rank \d: CUDA: cannot open .*peer access is not supported.*"
    expect_info(rf"ring{arena} \(.*; not direct: {failed}\)", 4, EMULATED_CUDA_PEERS="ring", **four)
    expect_info(rf"staged{small} \(.*; not direct: {failed}; not ring: {failed}\)", 4,
                EMULATED_CUDA_PEERS="0", **four)
    expect_info(rf"staged{small} \(.*; not ring: GUOZHUANG_REPRODUCIBLE .*; not direct: {failed}\)",
                4, EMULATED_CUDA_PEERS="ring", GUOZHUANG_REPRODUCIBLE="1", **four)
    elsewhere = r"not direct: ranks 0 and 2 of the set are on different hosts; not ring: .*"
    expect_info(rf"staged{small} \(.*; {elsewhere} are on different hosts\)", 4, hosts=2, **off)
    expect_info("unusable: no NVIDIA driver", 4, EMULATED_CUDA_DRIVER="0")
    expect_info("unusable: rank 1: CUDA tensors cannot be used here: no NVIDIA driver .*", 2,
                ["EMULATED_CUDA_DRIVER=0"])
    expect_info("unusable: rank 1: CUDA: cannot allocate 4 bytes of device memory: .*", 2,
                ["EMULATED_CUDA_FAIL=cudaMalloc:1"])
    expect_info(f"unusable: rank 1: {WITHOUT_CODE}", 2, NO_KERNEL_IMAGE)
    if WITH_NCCL:
        expect_info("nccl", 4, EMULATED_CUDA_DEVICES="4")
        expect_info(rf"direct{arena} \(not nccl: ranks 0 and 1 of the set share a device\)", 4)


def paths():
    infos()
    without_code = Run("steps", 2, NO_KERNEL_IMAGE)
    without_code.expect_told([1], f"^unavailable: allreduce: {WITHOUT_CODE}$")
    without_code.expect_told([0], f"^departed: rank 1 .*{WITHOUT_CODE}")
    shared = "not nccl: ranks 0 and 1 of the set share a device"
    off = "not nccl: rank 0 of the set: GUOZHUANG_NCCL is off"
    without = {"EMULATED_CUDA_DEVICES": "2", "GUOZHUANG_NCCL": "off"}
    expect_path(re.escape(f"direct path ({off})"), **without)
    failed = r"rank [01]: CUDA: .*"
    refused = rf"staged path \({off}; not direct: {failed}; not ring: {failed}\)"
    expect_path(refused, EMULATED_CUDA_PEERS="0", **without)
    lost = r"rank [01]: what rank [01] of the set writes .* does not come here"
    expect_path(rf"ring path \({off}; not direct: {lost}\)", EMULATED_CUDA_PEERS="reads", **without)
    for function in ("cudaIpcOpenMemHandle", "cudaIpcGetMemHandle"):
        expect_path(rf"ring path \({off}; not direct: {failed}\)",
                    EMULATED_CUDA_FAIL=f"{function}:1", **without)  # of each rank, and not again
    expect_path(refused, EMULATED_CUDA_FAIL="cudaHostRegister:1", **without)  # one rank at a time
    full = {"EMULATED_CUDA_MEMORY_MIB": "48", "GUOZHUANG_DEVICE_BYTES": "64M"}
    room = (r"rank [01]: no memory for its arena; a smaller GUOZHUANG_DEVICE_BYTES needs less: "
            r"CUDA: cannot allocate 67108864 bytes of device memory, of which \d+ are free: out of "
            r"memory \(cudaErrorMemoryAllocation\)")
    expect_path(rf"staged path \({off}; not direct: {room}; not ring: {room}\)",
                **full, **without)
    for path in ("staged", "ring"):
        expect_path(rf"{path} path \(GUOZHUANG_DEVICE_PATH is {path}\)", GUOZHUANG_DEVICE_PATH=path)
    slices = {"EMULATED_CUDA_DEVICES": "2", "EMULATED_CUDA_MIG": "1"}
    another_slice = ["CUDA_VISIBLE_DEVICES=1"]
    expect_path(refused, of_last=another_slice, GUOZHUANG_NCCL="off", **slices)
    expect_path(re.escape(f"direct path ({off})"), GUOZHUANG_NCCL="off", **slices)
    if WITH_NCCL:
        expect_path(r"staged path \(.*not nccl: rank [01]: NCCL: .*Duplicate GPU detected.*\)",
                    of_last=another_slice, **slices)
        expect_path(re.escape(f"direct path ({shared})"), **slices)
        expect_path("nccl path", EMULATED_CUDA_DEVICES="2")
        expect_path(re.escape(f"direct path ({shared})"))
        refusal = f"no path for tensors on cuda: GUOZHUANG_DEVICE_PATH is nccl; {shared}"
        Run("steps", GUOZHUANG_DEVICE_PATH="nccl").expect_told([0, 1], refusal)


def fail_call(function, number, ranks, **kind):
    last = ranks - 1
    run = Run("steps", ranks, [f"EMULATED_CUDA_FAIL={function}:{number}"], **kind)
    run.expect("emulated CUDA: rule" not in run.output, "breaks a rule of CUDA's")
    if run.code == 0 and not run.hangs:
        run.expect([text for _, text in run.said.values()] == ["fine"] * ranks, "says something")
    else:
        told = "unknown error|cudaErrorUnknown|no NVIDIA driver"
        run.expect_told([last], told)
        # The call that failed may be the last of all, and a third rank may end before it is told.
        run.expect_told(range(last), f"{told}|^fine$" + ("|^departed" if ranks > 2 else ""))
    return run.code == 0


def kill_at(function, number, ranks, **kind):
    last = ranks - 1
    run = Run("steps", ranks, [f"EMULATED_CUDA_FAIL={function}:{number}:kill"], **kind)
    if run.code == 0:
        run.expect([text for _, text in run.said.values()] == ["fine"] * ranks, "says something")
    else:
        run.expect_named_death(last, range(last))
    return run.code == 0


def at_some_calls(fault, which, ranks, **kind):
    """The fault in the last rank, at some of its calls of each function: which, of so many."""
    chosen = [
        (function, number)
        for function, count in calls_in("steps", ranks, **kind).items()
        for number in sorted(which(count))
        if number <= count
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        fine = list(pool.map(lambda each: fault(*each, ranks, **kind), chosen))
    print(f"{len(fine)} calls, {sum(fine)} without consequence")
    return sum(fine)


def calls():
    """On two hosts fewer of them, since a job of four ranks takes twice as long."""
    at_some_calls(fail_call, lambda count: {1, 2, 1 + count // 2, count}, 2)
    at_some_calls(fail_call, lambda count: {1, 1 + count // 2}, 4, hosts=2)


def deaths():
    """At the first call and in the middle. How often a function is called differs a little from run
    to run."""
    for path in PATHS:
        if at_some_calls(kill_at, lambda count: {1, 1 + count // 2}, 3,
                         GUOZHUANG_DEVICE_PATH=path) > 2:
            faults.append(f"few are killed on the {path} path")


def stop_for(ms, path, of_limits):
    """The last of three ranks, while it enqueues what the others' streams wait for."""
    call = "cuStreamWriteValue32:30" if path == "staged" else "cudaLaunchKernel:8"
    return Run("steps", 3, [f"EMULATED_CUDA_FAIL={call}:stop:{ms}"], GUOZHUANG_DEVICE_PATH=path,
               **of_limits)


def stop_for_a_while(path):
    run = stop_for(800, path, {"GUOZHUANG_STALL_WARN_S": "0.1"})
    run.expect(run.code == 0 and not run.hangs, "does not end well")
    run.expect([text for _, text in run.said.values()] == ["fine"] * 3, "says something")
    run.expect(re.search(f"warning: .*; {STOPPED}", run.output), "does not say who is stopped")


def stop_for_too_long(path):
    """The others' streams go on, too: their trainers free what these use."""
    run = stop_for(15000, path, {"GUOZHUANG_STALL_ERROR_S": "2"})
    run.expect_told([0, 1], rf"^timeout: .*its limit is 2.0 s.*; {STOPPED}")
    run.expect(run.seconds < 12, f"ends after {run.seconds:.1f} s")


def stops():
    for stop in (stop_for_a_while, stop_for_too_long):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(stop, PATHS))


def with_devices(scene, ranks=2, of_last=(), **environment):
    """By NCCL: each rank has a GPU of its own."""
    return Run(scene, ranks, of_last, EMULATED_CUDA_DEVICES=str(ranks), **environment)


def expect_not_connected(words, ranks=2, of_last=(), **environment):
    """The ranks take the next path, and rank 0 warns of the reason."""
    run = with_devices("steps", ranks, of_last, **environment)
    run.expect("emulated NCCL: rule" not in run.output, "breaks a rule of NCCL's")
    run.expect(not run.hangs and run.code == 0, "fails")
    warning = rf"warning: .* take the direct path \(not nccl: rank \d: {words}"
    run.expect(re.search(warning, run.output), f"does not warn of {words}")


def expect_world_goes_on():
    """While a set that overlaps it waits for NCCL to connect."""
    run = Run("connects_slowly", 3, EMULATED_CUDA_DEVICES="2", EMULATED_NCCL_HANG="1",
              GUOZHUANG_STALL_ERROR_S="8")
    run.expect(not run.hangs and run.code == 0, "fails")
    world_on = "the world goes on"
    run.expect(run.output.count(world_on) == 3 and 0 <= run.output.rfind(world_on)
               < run.output.find("NCCL has not connected ranks 0,1 within 8 s"),
               "the world waits for the set")


def nccl():
    mine = "the reason of this test"
    broken = "illegal memory access was encountered|cudaErrorIllegalAddress"
    for ranks in (1, 2, 4):
        run = with_devices("steps", ranks)
        run.expect(run.code == 0, "fails")
    for ranks in (2, 4):
        last, others = ranks - 1, range(ranks - 1)
        all_ranks = ",".join(map(str, range(ranks)))
        run = with_devices("killed", ranks)
        run.expect_told(others, rf"^rank_died: rank {last} .*killed by signal 9")
        run.expect(run.seconds < 10, f"ends after {run.seconds:.1f} s")
        with_devices("broken", ranks).expect_told(range(ranks), broken)
        expect_not_connected(
            f"NCCL has not connected ranks {all_ranks} within 3 s", ranks,
            ["EMULATED_NCCL_HANG=1"], GUOZHUANG_STALL_ERROR_S="3")
        with_devices("steps", ranks, ["EMULATED_NCCL_ASYNC=4"]).expect_told(
            range(ranks), "NCCL: it has failed: .*emulated failure in the background")
    expect_world_goes_on()
    with_devices("killed_idle", 4).expect_told(
        range(3), r"^rank_died: rank 3 .*killed by signal 9")
    expect_exit(with_devices("exits"))
    expect_end_of_lagging("lags", 3, EMULATED_CUDA_DEVICES="3", GUOZHUANG_DEVICE_PATH="nccl")
    with_devices("broken_behind").expect_told([0, 1], broken)
    with_devices("leaves").expect_told([0], f"^departed: .*{mine}")
    for scene in ("held", "hung"):
        run = with_devices(scene)
        run.expect_told([0], mine)
        run.expect(run.seconds < 15, f"ends after {run.seconds:.1f} s")


def nccl_calls():
    failed = "emulated failure of"
    for function in ("ncclCommInitRankConfig", "ncclCommGetAsyncError"):
        expect_not_connected(f"NCCL: .*{failed} {function}",
                             of_last=[f"EMULATED_NCCL_FAIL={function}:1"])
    expect_not_connected(f"NCCL: cannot make an id: .*{failed} ncclGetUniqueId",
                         EMULATED_NCCL_FAIL="ncclGetUniqueId:1")
    for function in ("ncclGroupStart", "ncclGroupEnd", "ncclAllReduce", "ncclBroadcast",
                     "ncclAllGather", "ncclReduce", "ncclReduceScatter", "ncclSend", "ncclRecv"):
        run = with_devices("steps", 2, [f"EMULATED_NCCL_FAIL={function}:1"])
        run.expect("emulated NCCL: rule" not in run.output, "breaks a rule of NCCL's")
        run.expect_told([0, 1], f"NCCL: .*system error: {failed} {function}")
    for function in ("ncclCommFinalize", "ncclCommDestroy"):
        run = with_devices("steps", 2, [f"EMULATED_NCCL_FAIL={function}:1"])
        run.expect(run.code == 0 and not run.hangs, "does not end well")


{"ends": ends, "host": host, "paths": paths, "calls": calls, "deaths": deaths, "stops": stops,
 "nccl": nccl, "nccl_calls": nccl_calls}[PART]()
print(f"{len(faults)} faults: {sorted(set(faults))}" if faults else "all is well")
sys.exit(1 if faults else 0)
