"""Tensors as the programs read and write them: DTYPE:SHAPE:BYTES, such as `i16:2x1:01000200`; a dot
is a shape without extents, or no bytes."""
import dataclasses
import math
import re
import struct

FORMATS = {"u8": "B", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "bool": "?", "f16": "e",
           "f32": "f", "f64": "d", "u16": "H", "u32": "I", "u64": "Q"}


def is_floating(dtype):
    return "f" in dtype


def largest(dtype):
    """The largest integer of the dtype; of others 1."""
    return 2 ** (int(dtype[1:]) - (dtype[0] == "i")) - 1 if dtype[0] in "iu" else 1


def wrapped(dtype, value):
    """An integer as its dtype has it: modulo 2^bits."""
    bits = int(dtype[1:])
    value %= 1 << bits
    return value - (1 << bits) if dtype[0] == "i" and value >> (bits - 1) else value


def _encode(dtype, value):
    if dtype == "bf16":  # the upper half of an f32, rounded to the nearest, ties to even
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return struct.pack("<" + FORMATS[dtype], value)


def _decode(dtype, data):
    if dtype == "bf16":
        return [value for (value,) in struct.iter_unpack("<f", b"".join(
            b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2)))]
    return [value for (value,) in struct.iter_unpack("<" + FORMATS[dtype], data)]


@dataclasses.dataclass
class Tensor:
    dtype: str
    shape: list
    values: list

    def __post_init__(self):
        assert len(self.values) == math.prod(self.shape), self

    def rows(self, begin, end):
        row = math.prod(self.shape[1:])
        return Tensor(self.dtype, [end - begin, *self.shape[1:]],
                      self.values[begin * row:end * row])

    def __str__(self):
        data = b"".join(_encode(self.dtype, value) for value in self.values)
        return f"{self.dtype}:{'x'.join(map(str, self.shape)) or '.'}:{data.hex() or '.'}"


def stacked(tensors):
    """Their rows, one below the other."""
    return Tensor(tensors[0].dtype, [sum(each.shape[0] for each in tensors), *tensors[0].shape[1:]],
                  [value for each in tensors for value in each.values])


def readable(outcome):
    """An outcome with numbers in place of their bytes."""

    def numbers(match):
        data = bytes.fromhex("" if match[3] == "." else match[3])
        shape = match[2].replace("x", ",").replace(".", "")
        return f"{match[1]}[{shape}]={_decode(match[1], data)}"

    return re.sub(r"\b(\w+):([\dx]+|[.]):([0-9a-f]+|[.])(?!\S)", numbers, outcome)
