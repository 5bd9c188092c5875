"""torch's tensors as the library sees them, and what it gives as tensors: what arrays.py is for
numpy. None of this is part of an autograd graph."""
import torch

from .. import _c
from ..errors import UsageError, make, refuse

DTYPES = {
    torch.uint8: _c.U8, torch.int8: _c.I8, torch.int16: _c.I16, torch.int32: _c.I32,
    torch.int64: _c.I64, torch.bool: _c.BOOLEAN, torch.float16: _c.F16, torch.bfloat16: _c.BF16,
    torch.float32: _c.F32, torch.float64: _c.F64,
}
for _name, _dtype in (("uint16", _c.U16), ("uint32", _c.U32), ("uint64", _c.U64)):
    if hasattr(torch, _name):  # of torch 2.3
        DTYPES[getattr(torch, _name)] = _dtype


def _dense(tensor):
    if not isinstance(tensor, torch.Tensor):
        refuse(f"a torch.Tensor is wanted, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        refuse(f"a tensor of layout {tensor.layout} cannot be sent; sparse_allreduce_async() takes "
               "sparse ones, or make it dense")
    return tensor.detach()


def as_input(tensor):
    return _dense(tensor).resolve_neg().contiguous()


def copy(tensor):
    return _dense(tensor).clone(memory_format=torch.contiguous_format)


def in_place(tensor):
    worked_on = as_input(tensor)
    _refuse_expanded(tensor)
    return worked_on


def _refuse_expanded(tensor):
    if not tensor.is_contiguous() and any(
            stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape)):
        refuse("an expanded tensor, whose elements share memory, cannot be changed in place")


def require_sendable(tensor, name):
    """Refuses, by its name, what an operation on it would refuse."""
    try:
        _refuse_expanded(_dense(tensor))
        view(_dense(tensor))
    except UsageError as problem:
        raise make(problem.code, f"'{name}': {problem}", tensor=str(name)) from None


def is_integer(tensor):
    dtype = tensor.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def scaled(tensor, factor):
    """A copy times a number; integers are truncated."""
    return tensor.clone() if factor == 1 else (tensor.double() * factor).to(tensor.dtype)


def put_back(tensor, worked_on):
    if tensor.data_ptr() != worked_on.data_ptr():
        tensor.detach().copy_(worked_on)
    return tensor


def _device_of(tensor):
    if tensor.device.type == "cpu":
        return _c.Device(_c.HOST, 0)
    if tensor.device.type == "cuda":
        return _c.Device(_c.CUDA, tensor.device.index)
    return refuse(f"tensors on {tensor.device} cannot be sent; copy them to the CPU")


def view(tensor):
    """The library's view of a contiguous tensor, which must outlive it."""
    if tensor.dtype not in DTYPES:
        refuse(f"tensors of {tensor.dtype} cannot be sent; these dtypes can: "
               f"{', '.join(map(str, DTYPES))}")
    return _c.make_tensor(tensor.data_ptr(), tensor.shape, DTYPES[tensor.dtype],
                          _device_of(tensor))


def stream(tensor):
    """The stream that produces the tensor; None in host memory."""
    if tensor.device.type != "cuda":
        return None
    native = torch.cuda.current_stream(tensor.device).cuda_stream
    return _c.Stream(_device_of(tensor), native)


class _DeviceMemory:
    """A result's memory on a GPU, as a buffer that keeps the result."""

    def __init__(self, address, count, owner):
        self.owner = owner
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (count,), "typestr": "|u1", "version": 2}


def from_result(result, index, like):
    """A tensor of a result, of the dtype and device of the tensor that was given."""
    tensor = result.tensor(index)
    shape = _c.shape_of(tensor)
    if 0 in shape:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if like.device.type == "cpu":
        memory = result.buffer(tensor, like.element_size())
        return torch.frombuffer(memory, dtype=like.dtype).reshape(shape)
    count = torch.Size(shape).numel() * like.element_size()
    memory = torch.as_tensor(_DeviceMemory(tensor.data, count, result), device=like.device)
    return memory.view(like.dtype).reshape(shape)


def integers(values):
    """A list of integers as a tensor, for splits that are received."""
    return torch.tensor(values, dtype=torch.int32)
