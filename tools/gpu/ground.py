"""Where the phases of validate run: the programs, their environment, and the time that is left."""
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

NO_GPU = 77  # a program's exit code, and that of validate


class Failure(Exception):
    """Why a phase fails."""


class Skip(Exception):
    """Why a phase does not run here."""


class Ground:
    """What the phases have in common."""

    def __init__(self, build, emulated):
        self.build, self.emulated = build, emulated
        self.deadline = 0.0
        self.facts = {}
        self.bandwidths = None
        mpi, data = build / "mpi", build / "data"  # of what prepare has packed
        self.mpirun = str(mpi / "bin/mpirun") if mpi.is_dir() else "mpirun"
        self.data = data if data.is_dir() else Path("/usr/share/datasets/fashion-mnist")
        self.environment = {
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "GUOZHUANG_LOG_LEVEL": "info",  # for require_paths()
        }
        libraries = [build / "emulated/lib"] if emulated else []
        if mpi.is_dir():
            self.environment["OPAL_PREFIX"] = str(mpi)
            libraries += [build / "lib", mpi / "lib"]
        if libraries:
            self.environment["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))

    def program(self, name):
        """gz-perf, say; one that is linked with CUDA's runtime has another one for the
        emulation."""
        other = {"fashion_mnist_cuda_distributed": "emulated_fashion_mnist_distributed"}
        if self.emulated and (name.startswith("gpu_") or name in other):
            name = other.get(name, f"emulated_{name}")
        path = self.build / "bin" / name
        if not path.exists():
            raise Failure(f"there is no {path}")
        return str(path)

    def gpus(self):
        return 4 if self.emulated else len(self.facts["devices"])

    def counts(self, path, *wanted):
        """With how many ranks to try a path. The emulation has few cores: one number is enough."""
        if path == "nccl":
            self.require_nccl()
            wanted = [count for count in wanted if count <= self.gpus()]
        if not wanted:
            raise Skip(f"each rank needs a GPU of its own, and there is {self.gpus()}")
        if self.emulated:
            return [max(3, fewest(path))]
        return [count for count in wanted if count >= fewest(path)]

    def require_nccl(self):
        if not self.facts["nccl"]:
            raise Skip("there is no libnccl.so.2")

    def going_by(self, path, ranks, others=()):
        """The environment of ranks whose tensors must go by the path, or, in process sets that it
        is not for, by the others: all share a GPU, but by NCCL each has one of its own."""
        environment = {"GUOZHUANG_DEVICE_PATH": path} if path else {}
        if others:
            environment = {"GUOZHUANG_NCCL": "off"}  # and the ranks choose
        if self.emulated:
            environment["EMULATED_CUDA_DEVICES"] = str(ranks if path == "nccl" else 1)
        elif path != "nccl":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]
        return environment

    def ranks(self, count, *command, hosts_by=None, ranks_of_host=1):
        """The command as so many ranks. With hosts_by, a variable, they are told by it that they
        are on different hosts."""
        options = ["-np", str(count), "--oversubscribe", "--bind-to", "none"]
        if count > len(os.sched_getaffinity(0)):
            options += ["--mca", "mpi_yield_when_idle", "1"]
        if hosts_by is None:
            return [self.mpirun, *options, *command]
        hosts = [rank // ranks_of_host for rank in range(count)]
        jobs = [("-np", "1", "-x", f"{hosts_by}={host}", *command) for host in hosts]
        return [self.mpirun, *options[2:], *jobs[0], *(word for job in jobs[1:]
                                                       for word in (":", *job))]

    def ranks_by(self, path, count, *command, **hosts):
        """The same of ranks whose tensors are to go by the path: on two hosts if it needs them."""
        if path == "hierarchical":
            hosts = {"hosts_by": "GUOZHUANG_HOST", "ranks_of_host": count // 2}
        return self.ranks(count, *command, **hosts)

    def start(self, command, output=subprocess.PIPE, **environment):
        return subprocess.Popen(
            command, env={**self.environment, **environment}, text=True, start_new_session=True,
            stdout=output, stderr=subprocess.STDOUT,
        )

    def finish(self, process):
        """What the process has written, by its end or the phase's."""
        try:
            return process.communicate(timeout=max(self.deadline - time.monotonic(), 0.1))[0]
        except subprocess.TimeoutExpired:
            raise Failure(f"not done in time; it said: {last_words(end(process))}") from None

    def run(self, command, **environment):
        """What a command has written that must succeed."""
        process = self.start(command, **environment)
        said = self.finish(process)
        if process.returncode == NO_GPU:
            raise Skip(last_words(said))
        if process.returncode != 0:
            raise Failure(f"{Path(command[0]).name} ended with {process.returncode}: "
                          f"{last_words(said)}")
        return said

    def run_by(self, path, ranks, *command, hosts_by=None, others=(), **environment):
        """The same of ranks, whose tensors must have gone by the path, and by all of the others;
        one rank needs none."""
        said = self.run(
            self.ranks_by(path, ranks, *command, hosts_by=hosts_by),
            **self.going_by(path, ranks, others), **environment,
        )
        require_paths({path, *others} - {None}, said)
        return said

    def probe(self, check):
        return json.loads(self.run([self.program("gpu_probe"), check]).splitlines()[-1])

    def copies(self):
        """Bandwidths of copies on the GPU, and to and from the host, measured once."""
        self.bandwidths = self.bandwidths or self.probe("copies")
        return self.bandwidths

    def gz_perf(self, path, ranks, *arguments, **options):
        with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
            self.run_by(path, ranks, self.program("gz-perf"), *arguments, "--device", "cuda",
                        "--json", file.name, **options)
            return [json.loads(line) for line in file]


def fewest(path):
    """Ranks for which the path is: the hierarchical one is for two hosts of two."""
    return 4 if path == "hierarchical" else 2


def require_paths(paths, said):
    """Rank 0 of each process set logs which path its tensors take."""
    taken = set(re.findall(r": tensors on cuda take the (\w+) path", said))
    if taken != paths:
        raise Failure(f"tensors took {' and '.join(sorted(taken)) or 'no path'}, not "
                      f"{' and '.join(sorted(paths)) or 'none'}: {last_words(said)}")


def children_of(process):
    """By their ids: the ranks, where it is mpirun."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(each) for each in listed.read_text().split()] if listed.exists() else []


def end(process):
    """Ends it with its children, and returns what it has written."""
    children = children_of(process)
    process.terminate()  # mpirun ends its ranks then
    try:
        return process.communicate(timeout=5)[0]
    except subprocess.TimeoutExpired:
        for each in (*children, process.pid):
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return process.communicate()[0]


def last_words(text):
    """Without what mpirun adds, between lines of dashes, and what is only told."""
    own = re.sub(r"^-{20,}$.*?^-{20,}$", "", text or "", flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in own.splitlines() if line.strip() and " info: " not in line]
    return " | ".join(lines[-3:])[-400:] or "nothing"
