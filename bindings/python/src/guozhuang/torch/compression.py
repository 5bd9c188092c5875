"""What tensors become before they are sent."""
import torch

from ..errors import refuse


class Compressor:
    """compress() gives what is sent for a tensor, of the same shape, and whatever decompress()
    needs to make a tensor of the result."""

    @staticmethod
    def compress(tensor):
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        raise NotImplementedError


class _NoneCompressor(Compressor):
    @staticmethod
    def compress(tensor):
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


def _as(dtype):
    class DTypeCompressor(Compressor):
        """Sends floating tensors as another dtype."""
        __qualname__ = f"Compression to {dtype}"

        @staticmethod
        def compress(tensor):
            if tensor.dtype.is_floating_point:
                return tensor.to(dtype), tensor.dtype
            return tensor, tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return tensor.to(ctx)

    return DTypeCompressor


class Compression:
    """What allreduce() and DistributedOptimizer take as `compression`; a Compressor of your own
    will do, too."""

    none = _NoneCompressor
    fp16 = _as(torch.float16)  # half the bytes; values over 65504 become infinite
    bf16 = _as(torch.bfloat16)  # half the bytes, the range of float32, and fewer digits


def name_of(compression):
    """What errors call it. Refuses what is no Compressor."""
    if not all(hasattr(compression, each) for each in ("compress", "decompress")):
        refuse("compression must be Compression.none, fp16 or bf16, or a Compressor of your own, "
               f"not {compression!r}")
    return getattr(compression, "__qualname__", type(compression).__qualname__)
