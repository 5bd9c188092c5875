#!/usr/bin/env python3
"""mirror.py RECORD: what guozhuang/_c.py has of guozhuang.h is what the record of the binary
interface (tests/bindings/c) says: structs, numbers, and what functions take and return."""
import ctypes
import re
import sys
import unittest
from pathlib import Path

from guozhuang import _c

RECORD = Path(sys.argv.pop(1)).read_text()
FACTS = dict(line.split(" = ") for line in RECORD.splitlines() if " = " in line)
STRUCTS = {f"Gz{name}": kind for name, kind in vars(_c).items()
           if isinstance(kind, type) and issubclass(kind, ctypes.Structure)
           and kind.__module__ == _c.__name__}
SCALARS = {"int": ctypes.c_int, "size_t": ctypes.c_size_t, "double": ctypes.c_double,
           "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "uint64_t": ctypes.c_uint64,
           "char": ctypes.c_char,
           **{name: ctypes.c_int32 for name in re.findall(r"^(Gz\w+): int32_t,", RECORD, re.M)}}


def kind_of(declared):
    """What ctypes calls `const GzTensor* tensor`; pointers to objects are void pointers."""
    if "(*" in declared:
        return ctypes.c_void_p
    base, stars = re.match(r"(?:const )?(\w+)((?: ?const)?[ *]*)", declared).groups()
    pointers = stars.count("*")
    if base == "char" and pointers:
        kind, pointers = ctypes.c_char_p, pointers - 1
    elif base in SCALARS or base in STRUCTS:
        kind = SCALARS.get(base) or STRUCTS[base]
    else:
        kind, pointers = (ctypes.c_void_p, pointers - 1) if pointers else (None, 0)
    for _ in range(pointers):
        kind = ctypes.POINTER(kind)
    return kind


def declarations():
    for result, name, arguments in re.findall(r"^(.*?)(gz_\w+)\((.*)\);$", RECORD, re.MULTILINE):
        arguments = re.sub(r"\(\*\w+\)\([^)]*\)", "(*)", arguments)
        kinds = [] if arguments == "void" else [kind_of(each.strip())
                                                for each in arguments.split(",")]
        yield name, kind_of(result.strip()), kinds


class Mirror(unittest.TestCase):
    def test_structs(self):
        self.assertIn("GzTensor", STRUCTS)
        for name, struct in STRUCTS.items():
            self.assertEqual(str(ctypes.sizeof(struct)), FACTS[f"sizeof {name}"], name)
            declared = re.findall(rf"^{name}[.](\w+): (.*) at (\d+), (\d+) bytes$", RECORD, re.M)
            self.assertEqual([(field, kind_of(kind), int(offset), int(size))
                              for field, kind, offset, size in declared],
                             [(field, kind, getattr(struct, field).offset,
                               getattr(struct, field).size) for field, kind in struct._fields_])

    def test_numbers(self):
        numbers = {name: value for name, value in vars(_c).items()
                   if re.fullmatch("[A-Z0-9]+", name) and isinstance(value, int)}
        self.assertIn("BF16", numbers)
        for name, value in numbers.items():
            self.assertEqual(str(value), FACTS[f"GZ_{name}"], name)

    def test_functions(self):
        declared = {name: (result, kinds) for name, result, kinds in declarations()}
        used = {*_c.STATUS_FUNCTIONS, *_c.OTHER_FUNCTIONS} - {"gz_wait_first"}  # it is private
        self.assertLess(used, set(declared))
        for name in used:
            function = getattr(_c.lib, name)
            self.assertEqual((function.restype, list(function.argtypes)), declared[name], name)


if __name__ == "__main__":
    unittest.main()
