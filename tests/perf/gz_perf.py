#!/usr/bin/env python3
"""Runs gz-perf and looks at what it says: gz_perf.py TEST COMMAND..., where COMMAND starts gz-perf as some ranks. Times are not judged."""
import json
import subprocess
import sys
import tempfile

KEYS = {
    "run": "kind version mpi host ranks settings",
    "sweep": "kind collective series ranks bytes count dtype op algorithm memory p50_us p99_us algbw_GBps busbw_GBps errors",
    "replay": "kind set series ranks memory step_p50_ms step_min_ms step_max_ms exposed_ms bytes_sent messages_sent cpu_s_per_step",
    "idle": "kind ranks cpu_percent_max",
}
COLLECTIVES = ["allreduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"]


def lines_of(command, *arguments):
    """What a run of gz-perf that must succeed writes, the keys of every line looked at, and its first line taken off."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        subprocess.run([*command, *arguments, "--json", file.name], check=True, timeout=240)
        lines = [json.loads(line) for line in file]
    for line in lines:
        assert list(line) == KEYS[line["kind"]].split(), line
    assert [line["kind"] for line in lines].index("run") == 0, lines
    return lines[1:]


def sweep(command):
    for collective in COLLECTIVES:
        lines = lines_of(command, collective, "--max-bytes", "64K", "--check", "--peer", "mpi", "--seconds", "0.05")
        sizes = [4**power for power in range(1, 9)]
        expected = [(size, series) for size in sizes for series in ("guozhuang", "mpi")]
        assert [(line["bytes"], line["series"]) for line in lines] == expected, lines
        assert {line["errors"] for line in lines} == {0}, lines
    lines = lines_of(command, "barrier", "--peer", "mpi", "--iterations", "10")
    assert [line["series"] for line in lines] == ["guozhuang", "mpi"], lines


def replay(command):
    lines = lines_of(command, "replay", "--set", "tiny1000", "--steps", "3", "--peer", "mpi")
    assert [line["series"] for line in lines] == ["guozhuang", "mpi_per_tensor", "mpi_fused_25mb", "mpi_flat", "mpi"], lines
    if lines[0]["ranks"] > 1:
        assert lines[0]["bytes_sent"] >= 1024 * 1000 / 2 and lines[0]["messages_sent"] >= 0, lines[0]


def idle(command):
    for pending in ([], ["--pending"]):
        (line,) = lines_of(command, "idle", "--seconds", "1", "--threads", *pending)
        assert line["cpu_percent_max"] >= 0, line


def refusals(command):
    """What does not work is refused, not ignored."""
    for line in ("allreduce --memory arena", "allreduce --peer nobody", "allreduce --dtype f31", "barrier --check", ""):
        arguments = line.split()
        run = subprocess.run([*command, *arguments], capture_output=True, timeout=60)
        assert run.returncode == 2, (arguments, run)


{test.__name__: test for test in (sweep, replay, idle, refusals)}[sys.argv[1]](sys.argv[2:])
