"""horovod.run(): a function on the ranks of a job that it starts."""
import importlib.util
import os
import pickle
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from .errors import Error, refuse
from .objects import dumps

RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


def rank():
    """This process's rank as mpirun has told it; None if it was started without."""
    return next((os.environ[name] for name in RANKS if name in os.environ), None)


def run(func, args=(), kwargs=None, num_proc=1, hosts=None, hostfile=None, mpi_args=None,
        executable=None, verbose=None, use_mpi=None, output_filename=None, np=None, **others):
    """Starts `num_proc` processes by mpirun, which call `func(*args, **kwargs)`, and returns what
    that has returned on each, by rank. The function calls init() itself.

    hosts, hostfile   where: `host1:2,host2:2`, or a file; without, on this host. The folder of
                      temporary files must be one that all hosts have.
    mpi_args          other arguments of mpirun
    executable        another Python
    output_filename   a folder for what the ranks print, as mpirun has it
    np                the old name of num_proc

    The function travels by cloudpickle if that is installed, else by pickle: it must then be one
    that other processes can import."""
    unmeant = [name for name, value in others.items() if value]
    if unmeant:
        refuse(f"run: {', '.join(unmeant)}: the launcher is mpirun, which has nothing like it")
    num_proc = num_proc if np is None else np
    where = ["-hostfile", hostfile] if hostfile else ["-host", hosts or f"localhost:{num_proc}"]
    if output_filename is not None:
        where += ["-output-filename", str(output_filename)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "call").write_bytes(_pickled((func, args, kwargs or {})))
        command = ["mpirun", "-np", str(num_proc), *where, *shlex.split(mpi_args or ""),
                   executable or sys.executable, "-c",
                   f"import {__name__} as launch; launch.main()", folder]
        if verbose:
            print(shlex.join(command), file=sys.stderr)
        paths = os.pathsep.join(each or os.getcwd() for each in sys.path)
        status = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths},
                                check=False).returncode
        if status != 0:
            raise Error(f"run: mpirun ended with status {status}; what went wrong on the ranks is "
                        "printed above", "departed")
        return [pickle.loads(Path(folder, str(number)).read_bytes()) for number in range(num_proc)]


def _pickled(call):
    if (getattr(call[0], "__module__", "") == "__main__"
            and importlib.util.find_spec("cloudpickle") is None):
        refuse("run: a function of the program itself needs the package cloudpickle; without it, "
               "put the function into a module that the ranks can import")
    return dumps(call)


def main():
    """One of the processes."""
    from .horovod import as_horovod
    as_horovod()
    folder = Path(sys.argv[1])
    func, args, kwargs = pickle.loads((folder / "call").read_bytes())
    result = dumps(func(*args, **kwargs))
    (folder / rank()).write_bytes(result)
