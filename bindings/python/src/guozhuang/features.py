"""What Horovod calls its builds: what this one has. All of it can be asked before init()."""
import ctypes
import os
import sys
from pathlib import Path


def mpi_built():
    return True


def mpi_enabled():
    return True


def mpi_threads_supported():
    """Whether operations may be called on any thread. They may."""
    return True


def gloo_built():
    return False


def gloo_enabled():
    return False


def ccl_built():
    return False


def ddl_built():
    return False


def rocm_built():
    return False


def cuda_built():
    """Whether the library has been built for GPUs: its plugin lies beside it."""
    return any((folder / "libguozhuang_cuda.so").exists() for folder in _library_folders())


def nccl_built():
    """The version of the NCCL by which tensors on GPUs can go, as a number: 22809 is 2.28.9. 0 if
    there is none. It is the one that `GUOZHUANG_NCCL` names, or that the loader or a package of
    this Python has.

    Horovod's Adasum averages within each host where this is not 0; guozhuang's does not."""
    global told_nccl
    told_nccl = _find_nccl()
    return told_nccl


told_nccl = 0  # what the program knows of NCCL, and may have set its learning rate by


def _find_nccl():
    wanted = os.environ.get("GUOZHUANG_NCCL") or "auto"
    if wanted == "off" or not cuda_built():
        return 0
    files = [wanted] if wanted != "auto" else [
        "libnccl.so.2",
        *(os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2") for folder in sys.path)]
    return next(filter(None, map(_version_of_nccl, files)), 0)


def _version_of_nccl(file):
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL(file).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else version.value


def _library_folders():
    with open("/proc/self/maps") as maps:
        files = {line.split(None, 5)[-1].strip() for line in maps if "/libguozhuang.so" in line}
    return [Path(file).parent for file in files]
