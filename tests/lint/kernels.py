#!/usr/bin/env python3
"""kernels.py NVCC ARCHITECTURES INCLUDE-DIRECTORIES SOURCE...: nvcc compiles the kernels for each
of these architectures (lists with commas), all their values stay in registers, and what they read
and write in packs is accessed 16 bytes at a time. Prints what is not so, and ends with 1."""
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NVCC, ARCHITECTURES, INCLUDES = sys.argv[1], *(word.split(",") for word in sys.argv[2:4])
SOURCES = sys.argv[4:]
# What each kernel accesses in packs, by a pattern for its mangled name.
PACKED = {
    "reduce_kernel": {"ld", "st"},
    "copy_kernel": {"ld", "st"},
    "fill_kernel": {"st"},
    "lanes_kernel.*Lb1": {"ld"},  # for memory that is aligned
    "lanes_kernel.*Lb0|columns_kernel|sum_kernel": set(),
}
COMPILED = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads", re.DOTALL,
)
ENTRY = re.compile(r"\.entry (\w+)\((.*?)\n}", re.DOTALL)
WIDE = re.compile(r"\b(ld|st)\.global[.\w]*\.(?:v4\.[bfsu]32|v2\.[bfsu]64)\b")


def expected_of(kernel):
    found = [accesses for name, accesses in PACKED.items() if re.search(name, kernel)]
    return found[0] if len(found) == 1 else None


def problems_of(source, architecture):
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [
                NVCC, "-std=c++20", "-O2", "-cubin", f"-arch=sm_{architecture}", "-Xptxas=-v",
                "--keep", "--keep-dir", folder, "-o", f"{folder}/kernels.cubin",
                *(f"-I{directory}" for directory in INCLUDES), source,
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        if run.returncode != 0:
            return [run.stdout]
        ptx = "".join(path.read_text() for path in Path(folder).glob("*.ptx"))
    compiled, entries = COMPILED.findall(run.stdout), ENTRY.findall(ptx)
    problems = [
        f"{kernel} keeps {stack} bytes in memory, spills {stores} and loads {loads}"
        for kernel, stack, stores, loads in compiled
        if {stack, stores, loads} != {"0"}
    ]
    if not entries or len(compiled) != len(entries):
        problems.append(f"{len(entries)} kernels in PTX, {len(compiled)} compiled")
    for kernel, body in entries:
        expected, found = expected_of(kernel), set(WIDE.findall(body))
        if expected is None:
            problems.append(f"{kernel} is not in the table of this script")
        elif expected != found:
            problems.append(f"{kernel} has accesses of 16 bytes in {found}, not in {expected}")
    return problems


def main():
    work = [(source, each) for source in SOURCES for each in ARCHITECTURES]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = list(pool.map(lambda each: problems_of(*each), work))
    for (source, architecture), problems in zip(work, found):
        for problem in problems:
            print(f"{Path(source).name} for {architecture}: {problem}")
    print(f"{len(SOURCES)} sources for {', '.join(ARCHITECTURES)}")
    return 1 if any(found) else 0


sys.exit(main())
