"""Guozhuang under the names of Horovod's modules, for what imports those."""
import importlib.machinery
import os
import sys
import types
import warnings

from . import errors, features, launch, process_sets


def as_horovod():
    """From now on `import horovod.torch as hvd` gives this process guozhuang.torch, and the modules
    around it are there as well: horovod.run, horovod.torch.mpi_ops, horovod.common.util ...

    Variables that begin with HOROVOD_ take effect where one of guozhuang's means the same, and is
    not set; rank 0 warns of those that have no meaning here. To be called before init()."""
    if getattr(sys.modules.get("horovod.common"), "is_guozhuang", False):
        return
    if "horovod.common" in sys.modules:
        errors.refuse("as_horovod() comes too late: Horovod itself has been imported")
    for name, contents in _modules().items():
        module = types.ModuleType(name, f"{name} of guozhuang, see guozhuang.as_horovod().")
        vars(module).update(contents, is_guozhuang=True, __path__=[])
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    sys.meta_path.append(_Finder)
    _take_variables()


class _Finder:
    """For those who ask whether a module can be found, before they import it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        module = sys.modules.get(name)
        return module.__spec__ if getattr(module, "is_guozhuang", False) else None


def _modules():
    """What they contain, by their names; parents come first."""
    modules = {
        "horovod": dict(run=launch.run, __version__="0.28.1"),  # the one whose interface this is
        "horovod.runner": dict(run=launch.run),
        "horovod.common": {},
        "horovod.common.exceptions": dict(HorovodInternalError=errors.Error),
        "horovod.common.process_sets": _public(process_sets),
        "horovod.common.util": _checks(),
    }
    try:
        from . import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return modules
    for name in ("", ".mpi_ops", ".functions", ".optimizer", ".compression", ".sync_batch_norm"):
        modules[f"horovod.torch{name}"] = {each: getattr(torch, each) for each in torch.__all__}
    modules["horovod.torch.compression"].update(
        NoneCompressor=torch.Compression.none, FP16Compressor=torch.Compression.fp16)
    return modules


def _public(module):
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def _checks():
    """Those of horovod.common.util."""
    def check(function):
        return lambda verbose=False: function()

    def extension_available(ext_base_name, verbose=False):
        return f"horovod.{ext_base_name}" in sys.modules

    def check_extension(ext_name, *_):
        if ext_name not in sys.modules:
            raise ImportError(f"{ext_name} is not among the modules of guozhuang.as_horovod()")

    def gpu_available(ext_base_name, verbose=False):
        return (extension_available(ext_base_name)
                and sys.modules["torch"].cuda.is_available())

    def num_rank_is_power_2(num_rank):
        return num_rank > 0 and num_rank & (num_rank - 1) == 0

    names = ("mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built")
    return dict({name: check(getattr(features, name)) for name in names},
                extension_available=extension_available, check_extension=check_extension,
                gpu_available=gpu_available, num_rank_is_power_2=num_rank_is_power_2)


# --- variables ------------------------------------------------------------------------------------


def _seconds(value):
    return value if float(value) > 0 else "off"


def _bytes(value):
    return str(min(int(value), 1 << 30))


def _level(value):
    return {"trace": "debug", "fatal": "error"}.get(value.lower(), value.lower())


def _directory(value):
    """Horovod writes a file of this name; DYNAMIC waits for start_timeline(), as all do here."""
    if value == "DYNAMIC":
        return None
    return value if os.sep in value else os.path.join(os.curdir, value)


# By Horovod's variable guozhuang's of the same meaning, and a function that translates the value;
# the first of two wins.
_SAME = {
    "HOROVOD_FUSION_THRESHOLD": ("GUOZHUANG_FUSION_BYTES", _bytes),
    "HOROVOD_LOG_LEVEL": ("GUOZHUANG_LOG_LEVEL", _level),
    "HOROVOD_STALL_CHECK_DISABLE": ("GUOZHUANG_STALL_WARN_S",
                                    lambda value: "off" if int(value) else None),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": ("GUOZHUANG_STALL_WARN_S", _seconds),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": ("GUOZHUANG_STALL_ERROR_S", _seconds),
    "HOROVOD_TIMELINE": ("GUOZHUANG_TIMELINE", _directory),
}
# These configure Horovod's build, or something that is always so here.
_NEEDLESS = ("HOROVOD_WITH", "HOROVOD_GPU", "HOROVOD_NCCL_", "HOROVOD_CUDA_", "HOROVOD_BUILD_",
             "HOROVOD_DYNAMIC_PROCESS_SETS")


def _take_variables():
    for name, (target, translate) in _SAME.items():
        value = os.environ.get(name)
        if value and not os.environ.get(target):
            try:
                translated = translate(value)
            except ValueError:
                errors.refuse(f"{name} is {value!r}; it must be a number")
            if translated is not None:
                os.environ[target] = translated
    others = sorted(name for name in os.environ if name.startswith("HOROVOD_")
                    and name not in _SAME and not name.startswith(_NEEDLESS))
    if others and launch.rank() in (None, "0"):
        warnings.warn(f"{', '.join(others)}: without effect, since guozhuang has nothing that they "
                      "could set (docs/python.md)")
