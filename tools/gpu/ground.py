"""Where the phases of validate run: the programs, their environment, and the time that is left."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NO_GPU = 77  # a program's exit code, and that of validate


class Failure(Exception):
    """Why a phase fails, and what the program said."""

    def __init__(self, reason, output=""):
        super().__init__(reason)
        self.output = output


class Skip(Exception):
    """Why a phase does not run here."""


class Ground:
    """What the phases have in common."""

    def __init__(self, build, emulated):
        self.build, self.emulated = build, emulated
        self.deadline = 0.0
        self.facts = {}
        self.bandwidths = None
        self.held = None  # a process that keeps the GPU awake
        mpi, data = build / "mpi", build / "data"  # of what prepare has packed
        self.mpirun = str(mpi / "bin/mpirun") if mpi.is_dir() else "mpirun"
        self.data = data if data.is_dir() else Path("/usr/share/datasets/fashion-mnist")
        self.environment = {
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_plm": "isolated",  # all ranks are here, so that ssh is not needed
            "GUOZHUANG_LOG_LEVEL": "info",  # for require_paths()
        }
        packed = [mpi / "lib"] if mpi.is_dir() else []
        self.prepend(
            "LD_LIBRARY_PATH", *[build / "emulated/lib"] * emulated, build / "lib", *packed
        )
        if packed and self.is_too_old():
            self.prepend("LD_LIBRARY_PATH", mpi / "compiler")
        self.loader_path = self.environment["LD_LIBRARY_PATH"]
        for folder in [] if emulated else nccl_folders():
            self.append("LD_LIBRARY_PATH", folder)
        packages = build / "python"
        self.prepend("PYTHONPATH", packages if packages.is_dir()
                     else HERE.parent.parent / "bindings/python/src")
        if mpi.is_dir():
            self.environment["OPAL_PREFIX"] = str(mpi)

    def prepend(self, variable, *directories):
        """What is there stays behind them: libcuda.so.1 may be found by it alone."""
        old = self.environment.get(variable)
        self.environment[variable] = ":".join([*map(str, directories), *[old] * bool(old)])

    def append(self, variable, directory):
        old = self.environment.get(variable)
        self.environment[variable] = f"{old}:{directory}" if old else str(directory)

    def is_too_old(self):
        """Whether this machine's libstdc++ is older than the compiler that built the programs."""
        asked = subprocess.run([self.program("gz-info"), "--help"], env=self.environment, text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return asked.returncode != 0 and "libstdc++" in asked.stderr

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
        return 1 if self.emulated else len(self.facts["devices"])

    def counts(self, path, *wanted):
        """With how many ranks to try a path. The emulation has few cores: one number is enough."""
        if path == "nccl":
            self.require_nccl()
            return wanted[:1]
        return [3] if self.emulated else wanted

    def require_nccl(self):
        if not self.facts["nccl"]:
            raise Skip("there is no libnccl.so.2")

    def going_by(self, path, ranks):
        """The environment of ranks whose tensors must go by the path: all share a GPU, but by NCCL
        each has one of its own if there are as many."""
        environment = {"GUOZHUANG_DEVICE_PATH": path} if path else {}
        if self.emulated:
            environment["EMULATED_CUDA_DEVICES"] = "1"
        elif not self.have_one_each(path, ranks):
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
            environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]
        return environment

    def have_one_each(self, path, ranks):
        return path == "nccl" and self.gpus() >= ranks

    def ranks(self, count, *command, hosts_by=()):
        """The command as so many ranks. With hosts_by, variables, they are told by them that they
        are on hosts of their own."""
        options = ["--oversubscribe", "--bind-to", "none"]
        if count > len(os.sched_getaffinity(0)):
            options += ["--mca", "mpi_yield_when_idle", "1"]
        if not hosts_by:
            return [self.mpirun, "-np", str(count), *options, *command]
        all_words = [self.mpirun, *options]
        for rank in range(count):
            told = [word for each in hosts_by for word in ("-x", f"{each}={rank}")]
            all_words += [*[":"] * (rank > 0), "-np", "1", *told, *command]
        return all_words

    def ranks_by(self, path, count, *command, hosts_by=()):
        """The same of ranks whose tensors are to go by the path. NCCL refuses ranks that share a
        GPU, unless it takes them for ranks of different hosts, as the library must, too."""
        if path == "nccl" and not self.have_one_each(path, count):
            hosts_by = ("GUOZHUANG_HOST", "NCCL_HOSTID")
        return self.ranks(count, *command, hosts_by=hosts_by)

    def start(self, command, output=subprocess.PIPE, stdin=None, **environment):
        return subprocess.Popen(
            command, env={**self.environment, **environment}, text=True, start_new_session=True,
            stdin=stdin, stdout=output, stderr=subprocess.STDOUT,
        )

    def left_s(self):
        """Until the phase's end."""
        return max(self.deadline - time.monotonic(), 0.1)

    def finish(self, process):
        """What the process has written, by its end or the phase's."""
        try:
            return process.communicate(timeout=self.left_s())[0]
        except subprocess.TimeoutExpired:
            said = end(process)
            raise Failure(f"not done in time; it said: {last_words(said)}", said) from None

    def run(self, command, **environment):
        """What a command has written that must succeed."""
        process = self.start(command, **environment)
        said = self.finish(process)
        if process.returncode == NO_GPU:
            raise Skip(last_words(said))
        if process.returncode != 0:
            raise Failure(f"{Path(command[0]).name} ended with {process.returncode}: "
                          f"{last_words(said)}", said)
        return said

    def run_by(self, path, ranks, *command, hosts_by=(), **environment):
        """The same of ranks, whose tensors must have gone by the path; one rank needs none."""
        said = self.run(self.ranks_by(path, ranks, *command, hosts_by=hosts_by),
                        **self.going_by(path, ranks), **environment)
        require_paths({path} - {None}, said)
        return said

    def python_with(self, module):
        """This Python or Debian's, whichever can import the module."""
        for python in (sys.executable, "/usr/bin/python3"):
            tried = subprocess.run([python, "-c", f"import {module}"], env=self.environment,
                                   stderr=subprocess.DEVNULL)
            if tried.returncode == 0:
                return python
        raise Skip(f"no Python here can import {module}")

    def hold(self):
        """A process with a context, so that the GPU is not put to sleep between phases, which a
        driver does, and waking it takes seconds."""
        self.held = self.start([self.program("gpu_probe"), "hold"], stdin=subprocess.PIPE)

    def let_go(self):
        if self.held is not None:
            end(self.held)
            self.held = None

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


def nccl_folders():
    """Where pip and the CUDA toolkit put libnccl.so.2, which the loader does not know."""
    pip = [Path(each) / "nvidia/nccl/lib" for each in sys.path if each.endswith("-packages")]
    return [each for each in [*pip, Path("/usr/local/cuda/lib64")]
            if (each / "libnccl.so.2").exists()]


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
