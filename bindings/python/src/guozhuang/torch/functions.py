"""What makes ranks start with the same."""
import torch

from ..errors import refuse
from ..lacks import once_submitted
from ..objects import broadcast_object
from ..process_sets import global_process_set
from . import tensors as adapter
from .operations import broadcast_async_


def broadcast_parameters(params, root_rank=0, process_set=global_process_set):
    """Copies the parameters of the rank `root_rank` to all ranks: model.state_dict(),
    model.named_parameters() or model.parameters()."""
    if isinstance(params, dict):
        params = params.items()
    elif isinstance(params, (str, bytes, torch.Tensor)) or not hasattr(params, "__iter__"):
        refuse(f"broadcast_parameters takes a state_dict or named_parameters, not {params!r}")
    tensors = {}
    for index, each in enumerate(params):
        name, tensor = each if isinstance(each, tuple) and len(each) == 2 else (index, each)
        if tensor is not None:
            tensors[name] = tensor
    _broadcast_all(tensors, "broadcast_parameters", root_rank, process_set)


@once_submitted
def _broadcast_all(tensors, prefix, root_rank, process_set):
    """What is on a device is there for later work on the current stream; the host does not wait."""
    for name, tensor in tensors.items():  # before anything is sent
        adapter.require_sendable(tensor, name)
    handles = [broadcast_async_(tensor, root_rank, f"{prefix}/{name}", process_set)
               for name, tensor in tensors.items()]
    for handle, tensor in zip(handles, tensors.values()):
        handle.wait_on(adapter.stream(tensor))


class _Absent:
    """Stands for a tensor while the rest of a state travels as an object."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device.type

    def make(self):
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


def _map(thing, kind, function):
    """A copy of dictionaries, lists and tuples, in which what is of that kind is mapped."""
    if isinstance(thing, kind):
        return function(thing)
    if isinstance(thing, dict):
        return {key: _map(value, kind, function) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        values = [_map(value, kind, function) for value in thing]
        return type(thing)(*values) if hasattr(thing, "_fields") else type(thing)(values)
    return thing


def _named_tensors(thing, path=()):
    """Pairs of a path such as `state 0 exp_avg` and a tensor."""
    if isinstance(thing, torch.Tensor):
        yield " ".join(map(str, path)), thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from _named_tensors(value, (*path, key))
    elif isinstance(thing, (list, tuple)):
        for index, value in enumerate(thing):
            yield from _named_tensors(value, (*path, index))


@once_submitted
def broadcast_optimizer_state(optimizer, root_rank=0, model=None, process_set=global_process_set):
    """Copies the state of the optimizer of the rank `root_rank`, and its learning rates and other
    options, to all ranks: after a checkpoint was read, say. The other ranks' optimizers need have
    no state yet. `model` is Horovod's, and not needed."""
    is_root = process_set.ranks[process_set.rank()] == root_rank
    state = optimizer.state_dict() if is_root else None
    skeleton = broadcast_object(_map(state, torch.Tensor, _Absent), root_rank,
                                "broadcast_optimizer_state", process_set)
    if not is_root:
        state = _map(skeleton, _Absent, _Absent.make)
    _broadcast_all(dict(_named_tensors(state)), "broadcast_optimizer_state", root_rank, process_set)
    optimizer.load_state_dict(state)  # on all ranks, since it changes dtypes
