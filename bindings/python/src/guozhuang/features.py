"""What Horovod calls its builds: what this one has."""
from . import session


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
    """Whether the library has been built for GPUs."""
    return session.info()["build"]["CUDA plugin"] == "built"


def nccl_built():
    """1 where tensors on GPUs can go by NCCL, else 0. NCCL is loaded when it is first used."""
    return int(cuda_built())
