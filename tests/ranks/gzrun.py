#!/usr/bin/env python3
"""gzrun.py PART GZRUN MPIRUN DYING_RANK [CABLE]: what gzrun does with jobs.

    jobs      codes, labels, signals and what hangs, on this machine
    inputs    wrong arguments, and the command line that it prints
    hosts     a death on hosts that only CABLE connects (tests/support/hosts); 77: not permitted
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

PART, GZRUN, MPIRUN, DYING_RANK = sys.argv[1:5]
RANK = "OMPI_COMM_WORLD_RANK"
LIMIT_S = 600  # a job that takes longer hangs
FOLDER = tempfile.TemporaryDirectory(prefix="gzrun-")
# Says that it is Open MPI's, and starts two ranks.
FAKE = f"""#!/bin/sh
[ "$1" = --version ] && exec echo 'mpirun (Open MPI) 4.1.4'
while [ "$2" != --watch ]; do shift; done
{RANK}=0 "$@" & {RANK}=1 "$@" &
"""


def gzrun(*arguments, mpirun=MPIRUN):
    return subprocess.run(
        [GZRUN, "--mpirun", mpirun, *arguments], capture_output=True, text=True, timeout=LIMIT_S
    )


def shell(code):
    """A program for all ranks; `$rank` is its own."""
    return "sh", "-c", f"rank=${RANK}; {code}"


def fake(name, end):
    path = Path(FOLDER.name, name)
    path.write_text(FAKE + end)
    path.chmod(0o755)
    return str(path)


def expect(job, code, *said):
    """Each of `said` is a line on standard error, and one rank at most has failed first."""
    assert job.returncode == code and job.stderr.count("failed first") <= 1, job
    for line in said:
        assert re.search(f"^{line}$", job.stderr, re.MULTILINE), (line, job)


def await_that(condition):
    """Hangs, and is ended by ctest, if it never holds."""
    while not condition():
        time.sleep(0.02)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class PausedJob:
    """A job of two ranks that wait for signals and note SIGUSR1 and SIGUSR2."""

    def __init__(self, *options):
        self.folder = Path(tempfile.mkdtemp(dir=FOLDER.name))
        program = (
            f"import os, signal, sys\nrank = os.environ['{RANK}']\n"
            "note = lambda number, _: print(number, file=log, flush=True)\n"
            "for each in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(each, note)\n"
            f"log = open('{self.folder}/' + rank, 'w')\nprint(os.getpid(), file=log, flush=True)\n"
            "while True: signal.pause()\n"
        )
        self.process = subprocess.Popen(
            [GZRUN, "--mpirun", MPIRUN, "-np", "2", *options, sys.executable, "-c", program],
            text=True, stderr=subprocess.PIPE,
        )
        await_that(lambda: len(self.lines(0)) == len(self.lines(1)) == 1)
        self.pids = [int(self.lines(rank)[0]) for rank in (0, 1)]

    def lines(self, rank):
        path = self.folder / str(rank)
        return path.read_text().splitlines() if path.exists() else []

    def end(self):
        _, said = self.process.communicate(timeout=LIMIT_S)
        await_that(lambda: not any(map(is_alive, self.pids)))
        return subprocess.CompletedProcess("waiting", self.process.returncode, "", said)


def check_codes():
    job = gzrun("-np", "3", *shell("echo $rank"))
    expect(job, 0, "gzrun: .*")
    assert sorted(job.stdout.split()) == ["0", "1", "2"], job
    job = gzrun("-np", "3", *shell("[ $rank != 1 ] || exit 3"))
    expect(job, 3, "gzrun: rank 1 failed first: exit code 3")
    job = gzrun("-np", "3", DYING_RANK)
    expect(job, 137, r"gzrun: rank 1 failed first: killed by signal 9 \(Killed\)",
           *(rf"guozhuang\[{rank}\] error: .*rank 1 .* died .*" for rank in (0, 2)))
    job = gzrun("-np", "2", "--label", *shell("echo of $rank"))
    assert all(re.search(rf"^\[1,{rank}\].*of {rank}$", job.stdout, re.MULTILINE)
               for rank in (0, 1)), job


def check_signals():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        job = PausedJob()
        job.process.send_signal(number)
        ended = job.end()
        assert ended.returncode > 128, ended
        expect(ended, ended.returncode, "gzrun: rank . failed first: killed by signal .*")
    job = PausedJob()
    for count, number in enumerate((signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1), 2):
        job.process.send_signal(number)
        await_that(lambda wanted=count: all(len(job.lines(rank)) >= wanted for rank in (0, 1)))
    assert job.lines(0)[1:] == job.lines(1)[1:] == ["10", "12", "10"], job.lines(0)
    os.kill(job.pids[1], signal.SIGKILL)
    os.kill(job.pids[0], signal.SIGKILL)
    expect(job.end(), 137)
    job = PausedJob()
    job.process.kill()
    job.end()  # nothing stays behind


def check_survivor():
    """The launcher leaves it alone: it notes more signals than fit in the second or so in which
    mpirun would end it."""
    job = PausedJob()
    os.kill(job.pids[1], signal.SIGKILL)
    for count in range(2, 152):
        job.process.send_signal(signal.SIGUSR1)
        await_that(lambda wanted=count: len(job.lines(0)) >= wanted or not is_alive(job.pids[0]))
    assert is_alive(job.pids[0]), job.end()
    os.kill(job.pids[0], signal.SIGTERM)
    expect(job.end(), 137, r"gzrun: rank 1 failed first: killed by signal 9 \(Killed\)")


def check_hangs():
    """Of the launcher, which may ignore SIGTERM, and of a rank after another has failed."""
    for end in ("exec sleep 1000000", "trap '' TERM; exec sleep 1000000"):
        job = gzrun("-np", "2", *shell("exit $rank"), mpirun=fake("hangs", end))
        expect(job, 1, "gzrun: rank 1 failed first: exit code 1")
    expect(gzrun("-np", "2", "true", mpirun=fake("hangs", "exec sleep 1000000")), 0)
    job = gzrun("-np", "2", *shell("exit $rank"), mpirun=fake("forgets", "wait; exit 0"))
    expect(job, 1, "gzrun: rank 1 failed first: exit code 1")
    job = gzrun("-np", "2", "true", mpirun=fake("invents", "wait; exit 4"))
    expect(job, 4, "gzrun: the launcher ended with code 4; 2 of 2 ranks returned 0")
    begun = f"{FOLDER.name}/begun"
    end = f"while ! [ -e {begun}0 -a -e {begun}1 ]; do sleep 0.02; done; exit 0"
    job = gzrun("-np", "3", *shell(f"touch {begun}$rank"), mpirun=fake("starts_two_of_three", end))
    expect(job, 1, "gzrun: the launcher ended with code 0; 2 of 3 ranks returned 0")
    job = PausedJob("--grace", "0")
    os.kill(job.pids[1], signal.SIGKILL)
    ended = job.end()
    expect(ended, 137, r"gzrun: rank 1 failed first: killed by signal 9 \(Killed\)",
           "gzrun: rank 0 still runs: Terminated")
    assert "still runs: Killed" not in ended.stderr, ended


def check_inputs():
    for arguments, said in (
        (["-np", "2"], "no PROGRAM"),
        (["true"], "--np is required"),
        (["-np", "0", "true"], "at least 1 rank"),
        (["-np", "two", "true"], "--np"),
        (["-np", "3", "-H", "a:1,b", "true"], "takes 2 ranks"),
        (["-np", "1", "-H", "a:", "true"], "'a:' is not HOST"),
        (["-np", "1", "--unknown", "x", "true"], "--unknown"),
        (["-np", "2", "./nowhere"], "cannot run ./nowhere: No such file"),
        (["-np", "2", "/etc/passwd"], "cannot run /etc/passwd: Permission denied"),
    ):
        job = gzrun(*arguments)
        assert job.returncode == 2 and said in job.stderr, job
    job = gzrun("-np", "2", "true", mpirun="echo")
    assert job.returncode == 2 and "echo --version printed:" in job.stderr, job


def check_dry_run():
    program = ["sh", "-c", 'echo "$0" $1', "it's a", "-np"]
    job = gzrun("-np", "2", "--dry-run", *program)
    line = shlex.split(job.stdout)
    assert job.returncode == 0 and line[-len(program):] == program, job
    ran = subprocess.run(["sh", "-c", job.stdout], capture_output=True, text=True, check=True)
    assert ran.stdout == "it's a -np\n" * 2, ran
    many = gzrun("-np", "5000", "--dry-run", "true").stdout
    assert "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1" in many, many
    assert "--oversubscribe" not in gzrun("-np", "1", "--dry-run", "true").stdout
    os.environ["GUOZHUANG_LOG"] = "info"
    options = ["-H", "a:2,b:2", "--interface", "eth0", "--launcher-options", "--mca x y"]
    far = gzrun("-np", "4", "--dry-run", *options, "true").stdout
    for words in ("--host a:2,b:2", "-x GUOZHUANG_LOG", "btl_tcp_if_include eth0",
                  "oob_tcp_if_include eth0", "--mca x y true"):
        assert words in far, (words, far)


def check_hosts():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support/hosts"))
    import hosts as support  # pylint: disable=import-outside-toplevel

    try:
        with support.Hosts([2, 2], sys.argv[5]) as hosts:
            def run(*program):
                return subprocess.run(
                    hosts.command_of(GZRUN, ["--mpirun", MPIRUN, *program]),
                    capture_output=True, text=True, timeout=LIMIT_S,
                )
            expect(run(*shell("[ $rank != 3 ] || exit 5")), 5,
                   "gzrun: rank 3 failed first: exit code 5")
            expect(run(DYING_RANK), 137,
                   r"gzrun: rank 1 failed first: killed by signal 9 \(Killed\)",
                   *(rf"guozhuang\[{rank}\] error: .*rank 1 .* died .*" for rank in (0, 2, 3)))
    except support.Missing as why:
        sys.exit(support.fail_or_skip(str(why)))


for check in {
    "jobs": [check_codes, check_signals, check_survivor, check_hangs],
    "inputs": [check_inputs, check_dry_run],
    "hosts": [check_hosts],
}[PART]:
    check()
