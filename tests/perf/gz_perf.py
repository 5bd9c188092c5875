#!/usr/bin/env python3
"""Runs gz-perf and looks at what it says: gz_perf.py TEST COMMAND..., where COMMAND starts gz-perf
as some ranks. Times are not judged."""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

KEYS = {
    "run": "kind version mpi host ranks flag_round_trip_us settings",
    "sweep": (
        "kind collective series ranks bytes count dtype op algorithm memory p50_us min_us "
        "p99_us algbw_GBps busbw_GBps errors"
    ),
    "replay": (
        "kind set series ranks memory step_p50_ms step_min_ms step_max_ms exposed_ms "
        "bytes_sent messages_sent cpu_s_per_step page_faults"
    ),
    "idle": "kind ranks cpu_percent_max",
    "hop": "kind series ranks beside p50_us mean_us",
    "device": "kind device description ranks sharers copy_GBps transfer_GBps",
    "unavailable": "kind series ranks reason",
}
REPORT = Path(__file__).resolve().parents[2] / "perf/report/report"
LINKS = REPORT.with_name("links")
COLLECTIVES = ["allreduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"]


def lines_of(command, *arguments):
    """What a run of gz-perf that must succeed writes, the keys of every line looked at, and its
    first line taken off."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        subprocess.run([*command, *arguments, "--json", file.name], check=True, timeout=600)
        lines = [json.loads(line) for line in file]
    for line in lines:
        look_at(line)
    assert [line["kind"] for line in lines].index("run") == 0, lines
    return lines[1:]


MEMORIES = {"private", "arena", "shared", "device"}
BUS = {"allreduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1}
ELEMENT_BYTES = {"u8": 1, "i8": 1, "i16": 2, "f32": 4, "u64": 8, "none": 0}


def look_at(line):
    """Every key that is promised, in that order, with values that fit together."""
    keys = KEYS[line["kind"]].split()
    if "back_to_back" in line:
        keys += ["back_to_back"]
    if line["kind"] == "sweep" and "beside" in line:
        keys += ["beside", "mean_us"]
    if line.get("memory") == "device":
        keys += ["device"] + ["path", "paths"] * ("paths" in line)
    if "disturbed" in line:
        keys += ["foreign_cores", "switches_per_s", "tries", "disturbed"]
        assert line["foreign_cores"] >= 0 <= line["switches_per_s"], line
        assert line["tries"] in (1, 2, 3) and (line["disturbed"] or line["foreign_cores"] <= 0.1)
    assert list(line) == keys, line
    if line["kind"] == "run":
        assert (
            line["flag_round_trip_us"] > 0
            or not 2 <= line["ranks"] <= len(os.sched_getaffinity(0))
        ), line
    if line["kind"] == "sweep":
        assert line["memory"] in MEMORIES and 0 < line["p50_us"] <= line["p99_us"], line
        assert line["bytes"] == line["count"] * ELEMENT_BYTES[line["dtype"]], line
        assert (
            abs(line["algbw_GBps"] - line["bytes"] / line["p50_us"] / 1e3)
            <= 1e-6 * line["algbw_GBps"]
        ), line
        factor = BUS.get(line["collective"], lambda n: (n - 1) / n)(line["ranks"])
        assert (
            abs(line["busbw_GBps"] - factor * line["algbw_GBps"]) <= 1e-6 * line["busbw_GBps"]
        ), line
        assert (line["algorithm"] == line["series"]) == (line["series"] != "guozhuang"), line
    if line["kind"] == "replay":
        assert (
            line["memory"] in MEMORIES
            and 0 < line["step_min_ms"] <= line["step_p50_ms"] <= line["step_max_ms"]
        ), line
        assert (
            0 < line["exposed_ms"] <= line["step_max_ms"]
            and line["cpu_s_per_step"] > 0
            and line["page_faults"] >= 0
        ), line


def sweep(command):
    for collective in COLLECTIVES:
        lines = lines_of(
            command, collective, "--max-bytes", "64K", "--check", "--peer", "mpi",
            "--seconds", "0.05",
        )
        sizes = [4**power for power in range(1, 9)]
        expected = [(size, series) for size in sizes for series in ("guozhuang", "mpi")]
        assert [(line["bytes"], line["series"]) for line in lines] == expected, lines
        assert {line["errors"] for line in lines} == {0}, lines
    for collective, dtype, op in (
        ("allreduce", "i8", "sum"), ("allreduce", "i16", "product"),
        ("reduce_scatter", "u8", "sum"), ("allreduce", "u64", "max"),
    ):
        arguments = [
            collective, "--dtype", dtype, "--op", op, "--max-bytes", "64K", "--check",
            "--peer", "mpi", "--iterations", "1",
        ]
        ours = [
            line["errors"]
            for line in lines_of(command, *arguments)
            if line["series"] == "guozhuang"
        ]
        # MPI's need not be: Open MPI 4.1 saturates such sums.
        assert ours and set(ours) == {0}, ours
    for memory in ("arena", "shared"):
        arguments = [
            "--memory", memory, "--min-bytes", "64K", "--max-bytes", "4M", "--check",
            "--iterations", "4",
        ]
        assert {
            (line["memory"], line["errors"])
            for line in lines_of(command, "allreduce", *arguments)
        } == {(memory, 0)}
    lines = lines_of(command, "barrier", "--peer", "mpi", "--iterations", "10")
    assert [line["series"] for line in lines] == ["guozhuang", "mpi"], lines


def staged(command):
    lines = lines_of(
        command, "allreduce", "--min-bytes", "4", "--max-bytes", "4M", "--check", "--factor", "7",
        "--peer", "staged", "--peer", "pushed", "--iterations", "4",
    )
    assert {line["series"] for line in lines} == {"guozhuang", "staged", "pushed"}, lines
    assert {line["errors"] for line in lines} == {0}, lines
    lines = lines_of(command, "replay", "--set", "tiny1000", "--steps", "2", "--peer", "staged")
    assert [line["series"] for line in lines] == steps_beside("staged"), lines
    for arguments in ("allreduce --dtype f64", "allreduce --op max", "broadcast"):
        refused_once(
            command, arguments + " --peer staged", "only sums of f32 by allreduce"
        )
    for arguments, why in (
        ("allreduce --op max", "only sums of f32 by allreduce"),
        ("replay --set tiny1000", "only sums of f32 by allreduce"),
    ):
        refused_once(command, arguments + " --peer pushed", why)


def advice(command):
    """An optimizer whose gradients could be shared says so at level info, once."""
    def advices(memory, steps):
        run = subprocess.run(
            [*command, "replay", "--set", "resnet50", "--steps", steps, "--memory", memory],
            env=os.environ | {"GUOZHUANG_LOG_LEVEL": "info"}, stderr=subprocess.PIPE, text=True,
            check=True, timeout=600,
        )
        return re.findall(r"waits [0-9.]+ ms .* private memory; Memory::share", run.stderr)

    assert len(advices("private", "30")) == 1
    assert not advices("shared", "30") and not advices("arena", "30")
    assert not advices("private", "5")


def steps_beside(*peers):
    """The series of a replay, in the order of its report."""
    ways = [f"{peer}_{way}" for peer in peers for way in ("per_tensor", "fused_25mb", "flat")]
    return ["guozhuang", *ways, *peers]


def replay(command):
    lines = lines_of(command, "replay", "--set", "tiny1000", "--steps", "3", "--peer", "mpi")
    assert [line["series"] for line in lines] == steps_beside("mpi"), lines
    assert {line["memory"] for line in lines} == {"private"}, lines
    for memory in ("arena", "shared"):
        (line,) = lines_of(
            command, "replay", "--set", "resnet50", "--steps", "2", "--memory", memory
        )
        assert line["memory"] == memory, line
    with_calls = lines_of(command, "replay", "--set", "tiny1000", "--steps", "3", "--calls")
    assert [line["series"] for line in with_calls] == ["guozhuang", "guozhuang_calls"], with_calls
    if lines[0]["ranks"] > 1:
        assert (
            lines[0]["bytes_sent"] >= 1024 * 1000 / 2 and lines[0]["messages_sent"] >= 0
        ), lines[0]


def look_at_paths(line, device, kilobytes):
    """What the paths of an allreduce of so many bytes on each rank move, and for how long."""
    moved, at = kilobytes * 1000, {"staged": "transfer", "direct": "copy", "ring": "copy"}
    ranks, sharers, paths = line["ranks"], device["sharers"], line["paths"]
    expected = {"staged": 2 * sharers * moved}
    if sharers == ranks:
        expected |= {"direct": 2 * ranks * moved, "ring": 5 * (ranks - 1) * moved}
    assert {path: each["bytes"] for path, each in paths.items()} == expected, line
    for path, each in paths.items():
        least = each["bytes"] / device[f"{at[path]}_GBps"] / 1e3
        assert each["bound_us"] >= least * (1 - 1e-6), (line, device)
        assert path == "staged" or each["bound_us"] <= least * (1 + 1e-6), (line, device)


def on_device(command, devices):
    """Every collective and a step on devices, beside staging by hand: right, and an allreduce
    beside its bounds."""
    for collective in COLLECTIVES:
        device, *lines = lines_of(
            command, collective, "--device", "cuda", "--min-bytes", "4", "--max-bytes", "4000000",
            "--factor", "1000", "--check", "--peer", "staged", "--iterations", "2",
        )
        assert device["kind"] == "device" and device["device"] == "cuda", device
        assert device["sharers"] == -(-device["ranks"] // devices), device
        expected = [
            (size, series) for size in (4, 4000, 4000000) for series in ("guozhuang", "staged")
        ]
        assert [(line["bytes"], line["series"]) for line in lines] == expected, lines
        assert {(line["errors"], line["memory"], line["device"]) for line in lines} == {
            (0, "device", "cuda")
        }, lines
        for line in lines:
            ours = collective == "allreduce" and line["series"] == "guozhuang"
            assert ("paths" in line) == ours, line
            if ours:
                assert line["path"] == "staged", line
                look_at_paths(line, device, line["bytes"] / 1000)
    device, *lines = lines_of(
        command, "replay", "--set", "tiny1000", "--device", "cuda", "--steps", "2",
        "--peer", "staged",
    )
    assert [line["series"] for line in lines] == steps_beside("staged"), lines
    look_at_paths(lines[0], device, 1024)
    # The pinned slots are reduced as memory of the host is, by the ranks that share it.
    assert lines[0]["bytes_sent"] == 1024 * 1000, lines[0]


def beside_nccl(command, path, has_nccl):
    """By the path that is chosen there, beside staging by hand and NCCL, which are measured
    together: or what NCCL says of ranks that share a GPU, and the other figures all the same."""
    peers = ["--device", "cuda", "--peer", "staged", "--peer", "nccl"]
    lines = lines_of(
        command, "allreduce", "--max-bytes", "4000000", "--factor", "1000", "--check",
        "--iterations", "2", *peers,
    )
    series = ["guozhuang", "nccl", "staged"] if has_nccl else ["guozhuang", "staged"]
    sweeps = [line for line in lines if line["kind"] == "sweep"]
    assert [(line["bytes"], line["series"]) for line in sweeps] == [
        (size, each) for size in (4, 4000, 4000000) for each in series
    ], lines
    assert {line["errors"] for line in sweeps} == {0}, lines
    assert {line["path"] for line in sweeps if "path" in line} == {path}, lines
    replays = lines_of(command, "replay", "--set", "tiny1000", "--steps", "2", *peers)
    for each in (lines, replays):
        reasons = [
            (line["series"], line["reason"]) for line in each if line["kind"] == "unavailable"
        ]
        if has_nccl:
            assert not reasons, reasons
        else:
            ((peer, reason),) = reasons
            assert peer == "nccl" and re.match(r"rank \d: .*(GPU|NCCL)", reason), reasons
    steps = [line["series"] for line in replays if line["kind"] == "replay"]
    assert steps == steps_beside(*series[1:]), steps
    look_at_tables([*lines, *replays], path, has_nccl)


def look_at_tables(lines, path, has_nccl):
    """The report of what was measured on devices has a number in each cell, and NCCL is in it, or
    the reason why not."""
    run = {"kind": "run", "version": "1", "mpi": "MPI", "ranks": 2, "settings": {"machine": "M"}}
    with tempfile.TemporaryDirectory() as directory:
        file, page = Path(directory) / "lines.json", Path(directory) / "page.html"
        file.write_text("".join(
            json.dumps(line | {"peer": "staged", "round": 0}) + "\n" for line in [run, *lines]
        ))
        text = subprocess.run(
            [REPORT, "--from", str(file), "--html", str(page)],
            check=True, stdout=subprocess.PIPE, text=True, timeout=600,
        ).stdout
        plots = page.read_text()
    for name in ("4000000", "tiny1000"):
        (row,) = re.findall(rf"^\| {name} \|(.*)\|$", text, re.MULTILINE)
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[1] == path and ("-" in cells[4:6]) != has_nccl, row
        assert (cells[6] == "-") == (cells[10] == "-") == (path == "nccl"), row
        figures = [float(cell.split()[0]) for cell in cells if cell not in ("-", path)]
        # Ratios may be too small for two decimals, times are not.
        assert all(figure >= 0 for figure in figures) and figures[0] > 0 and figures[1] > 0, row
    assert ("NCCL was not measured: rank " in text) != has_nccl, text
    assert (">NCCL</" in plots) == (">NCCL, flat</" in plots) == has_nccl, plots
    # In the legend, two lines and a bar.
    assert plots.count(">bound of the path</") == (0 if path == "nccl" else 4), plots


def cuda(command):
    """On emulated GPUs, by way of the host, and by the path that is chosen there."""
    devices = int(os.environ["EMULATED_CUDA_DEVICES"])
    has_nccl = devices > 1 and (Path(os.environ["LD_LIBRARY_PATH"]) / "libnccl.so.2").exists()
    beside_nccl(command, "nccl" if has_nccl else "direct", has_nccl)
    if has_nccl:
        for line in ("broadcast", "allreduce --dtype i16", "allreduce --op average"):
            refused_once(
                command[-1:], f"{line} --device cuda --peer nccl", "--peer nccl: only allreduce is",
            )
    os.environ["GUOZHUANG_DEVICE_PATH"] = "staged"
    on_device(command, devices)
    for peer, why in (
        ("mpi", "MPI is not given memory of a"), ("pushed", "for tensors on the host"),
    ):
        refused_once(command, f"allreduce --device cuda --peer {peer}", why)
    os.environ["EMULATED_CUDA_DRIVER"] = "0"
    for line in ("allreduce", "replay --set tiny1000"):
        refused_once(command, f"{line} --device cuda", "--device cuda: .*no NVIDIA driver")


def gloo(command):
    """gz-perf-gloo: gz-perf with one more peer, which is right, too, and in what is compared
    alone."""
    lines = lines_of(
        command, "allreduce", "--max-bytes", "1M", "--check", "--peer", "gloo", "--iterations", "4"
    )
    expected = [(4**power, series) for power in range(1, 11) for series in ("guozhuang", "gloo")]
    assert [(line["bytes"], line["series"]) for line in lines] == expected, lines
    assert {line["errors"] for line in lines} == {0}, lines
    lines = lines_of(command, "replay", "--set", "tiny1000", "--steps", "3", "--peer", "gloo")
    assert [line["series"] for line in lines] == steps_beside("gloo"), lines
    assert [
        line["series"]
        for line in lines_of(command, "allreduce", "--max-bytes", "4", "--peer", "mpi")
    ] == ["guozhuang", "mpi"]
    for line in ("broadcast", "allreduce --dtype f64", "allreduce --op max"):
        refused_once(
            command, f"{line} --peer gloo",
            "--peer gloo: only allreduce is compared, in sums of f32",
        )


def beside(command):
    """Medians and means beside busy threads, and those of a hop through pipes."""
    for busy_threads in (0, 2):
        lines = lines_of(
            command, "allreduce", "--min-bytes", "4", "--max-bytes", "1K", "--factor", "16",
            "--check", "--peer", "mpi", "--iterations", "8", "--beside", str(busy_threads),
        )
        measured = [(line.get("bytes"), line["series"]) for line in lines]
        assert measured == [
            (size, series)
            for size in (4, 64, 1024)
            for size, series in ((size, "guozhuang"), (size, "mpi"), (None, "pipes"))
        ], lines
        for line in lines:
            assert line["beside"] == busy_threads and line["mean_us"] > 0 < line["p50_us"], line
            assert line.get("errors", 0) == 0, line
    (line,) = lines_of(command, "allreduce", "--max-bytes", "4", "--iterations", "1")
    assert "beside" not in line and "mean_us" not in line, line


def watch(command):
    """With --watch each line says how others disturbed it; a busy program does, whatever is
    tried."""
    sizes = ["--max-bytes", "64K", "--factor", "128", "--check", "--peer", "mpi"]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        lines = lines_of(command, "allreduce", "--watch", *sizes, "--seconds", "0.1")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert [(line["bytes"], line["series"]) for line in lines] == [
        (size, series) for size in (4, 512, 65536) for series in ("guozhuang", "mpi")
    ], lines
    assert all(line["errors"] == 0 for line in lines), lines
    assert all(line["disturbed"] and line["tries"] == 3 for line in lines), lines
    with tempfile.NamedTemporaryFile("w", suffix=".json") as gradients:
        json.dump({"weight": [1000], "bias": [10]}, gradients)
        gradients.flush()
        lines = lines_of(
            command, "replay", "--watch", "--set", gradients.name, "--steps", "3", "--peer", "mpi"
        )
    assert all("disturbed" in line for line in lines), lines
    assert [line["series"] for line in lines] == steps_beside("mpi"), lines


def idle(command):
    for pending in ([], ["--pending"]):
        (line,) = lines_of(command, "idle", "--seconds", "1", "--threads", *pending)
        assert line["cpu_percent_max"] >= 0, line


REFUSED = {
    "": "subcommand",
    "replay --set tiny1000 --memory borrowed": "borrowed not in",
    "replay --set tiny1000 --device host": "host not in",
    "allreduce --device cuda --memory arena": "excludes",
    "barrier --device cuda": "not expected",
    "allreduce --beside -1": "beside",
    "allreduce --peer nobody": "nobody not in",
    "allreduce --dtype f31": "f31 not in",
    "allreduce --algorithm tree": "tree not in",
    "allreduce --iterations 3 --seconds 1": "excludes",
    "broadcast --op sum": "not expected",
    "all_gather --algorithm ring": "not expected",
    "barrier --check": "not expected: --check",
    "replay": "--set is required",
    "replay --set tiny1000 --check": "not expected: --check",
    "idle --seconds 0": "--seconds",
    "idle --peer mpi": "not expected",
    "idle --pending": "needs two ranks",
    "allreduce --dtype f16 --peer mpi": "MPI does not reduce f16",
    "allreduce --min-bytes 8 --max-bytes 4": "no size of at least one element",
    "replay --set nonexistent": "no gradient set",
}
REFUSED_BY_RANKS = {  # when options are read, by every rank when it gets ready, by rank 0 alone
    "allreduce --factor 1": "--factor",
    "allreduce --dtype bool": "op sum is not defined on bool",
    "allreduce --json /nonexistent/file": "cannot append to /nonexistent/file",
    "allreduce --peer nccl": "only tensors on a device: give --device",
}


def report(command):
    """./run perf: rounds of MPI as it comes, as it is tuned, and of Gloo if it is there, in turn;
    every row says which, and what the run was told agrees."""
    has_gloo = Path(command[-1]).with_name("gz-perf-gloo").exists()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "lines.json"
        program = [
            "--program", command[-1], "--json", str(file), "--quick", "--ranks", "2",
            "--rounds", "1",
        ]
        text = subprocess.run(
            [REPORT, *program], check=True, stdout=subprocess.PIPE, text=True, timeout=1700
        ).stdout
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        page = Path(directory) / "page.html"
        again = subprocess.run(
            [REPORT, "--from", str(file), "--html", str(page)],
            check=True, stdout=subprocess.PIPE, text=True, timeout=600,
        ).stdout
        plots = page.read_text()
        file.write_text(
            "".join(json.dumps(line) + "\n" for line in lines if line["peer"] != "gloo")
        )
        without = subprocess.run(
            [REPORT, "--from", str(file)],
            check=True, stdout=subprocess.PIPE, text=True, timeout=600,
        ).stdout
    assert again == text, "what has been measured is reported alike"
    assert (
        "Gloo was not measured" in without
        and "beside Gloo" not in without
        and without.count("\n") == text.count("\n")
    ), without
    assert (
        ("Gloo was not measured" not in text)
        == ("beside Gloo" in text)
        == (">Gloo</" in plots)
        == has_gloo
    ), text
    assert (
        plots.count("<svg") == plots.count("</svg>") == 4
        and "resnet50, 2 ranks" in plots
        and "http" not in plots
    ), plots
    library = next(line["mpi"] for line in lines if line["kind"] == "run")
    assert (
        library not in ("default", "tuned") and f"beside {library} on" in text.splitlines()[0]
    ), text
    for heading in (
        "### allreduce of f32, 2 ranks (0 wrong elements)",
        "### One training step's gradients",
        "### Idle",
    ):
        assert heading in text, text
    runs = [line for line in lines if line["kind"] == "run"]
    told = [
        (run["peer"], "OMPI_MCA_coll_tuned_use_dynamic_rules" in run["settings"]["environment"])
        for run in runs
    ]
    in_turn, gloo_too = [("default", False), ("tuned", True)], [("gloo", False)] * has_gloo
    memories = [*in_turn, *gloo_too, *in_turn, *in_turn]  # Gloo beside private memory alone
    # Allreduce, two sets of gradients, idle twice.
    assert told == [*memories * 3, ("default", False), ("default", False)], told
    for kind in ("sweep", "replay"):
        peers = [
            [key_of(line) for line in lines if line["kind"] == kind and line["peer"] == peer]
            for peer in ("default", "tuned")
        ]
        assert peers[0] == peers[1] and len(peers[0]) > 0, peers


def device_report(command):
    """./run perf --device: every figure of ours beside staging by hand and the bounds."""
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "page.html"
        text = subprocess.run(
            [
                REPORT, "--program", command[-1], "--quick", "--ranks", "2", "--rounds", "1",
                "--device", "cuda", "--html", str(page),
            ],
            check=True, stdout=subprocess.PIPE, text=True, timeout=1700,
        ).stdout
        plots = page.read_text()
    assert "### allreduce of f32 on cuda, 2 ranks, 2 on a device (0 wrong elements)" in text, text
    assert re.search(r"copies at [\d.]+ GB/s .*, to and from the host at [\d.]+ GB/s", text), text
    for name, moved in (("4M", "16.78"), ("resnet50", "408.9"), ("tiny1000", "4.096")):
        (row,) = re.findall(rf"^\| {name} \|(.*)\|$", text, re.MULTILINE)
        ours, path, *others = (cell.strip() for cell in row.split("|"))
        assert path == "staged" and others[2:5] == ["-", "-", moved], row
        assert all(float(cell.split()[0]) > 0 for cell in (ours, *others[:2], *others[4:])), row
    assert re.search("NCCL was not measured: rank 0: .*(GPU|NCCL)", text), text
    for series in ("guozhuang, on a device", "staging by hand"):
        assert f">{series}</" in plots, plots


def row_of(peer, setting, round_number, times, *, ranks=2, disturbed=False):
    """The lines of one run of gz-perf beside a peer at one size: ours and theirs, in us."""
    run = {
        "kind": "run", "version": "0", "mpi": f"{peer} 1.0", "ranks": ranks,
        "flag_round_trip_us": 0.1, "settings": {"machine": "some machine"},
    }
    series = "oneccl" if peer == "oneccl" else "mpi"
    for row in (
        run,
        *(
            {
                "kind": "sweep", "series": name, "ranks": ranks, "bytes": 4096,
                "memory": "private", "p50_us": time, "disturbed": disturbed,
            }
            for name, time in zip(("guozhuang", series), times, strict=True)
        ),
    ):
        yield row | {"peer": peer, "setting": setting, "round": round_number}


def peers_lines(_):
    """Of what was measured beside several peers: the fastest by the ratio within a run, whatever
    their absolute times; disturbed rounds count only where there are no others, and are marked."""
    rows = [
        {"kind": "absent", "peer": "mpich", "round": 0},
        *row_of("system", "as it comes", 0, (2.0, 6.0)),
        *row_of("system", "as it comes", 1, (2.0, 5.0)),
        *row_of("impi", "as it comes", 0, (4.0, 8.0)),
        *row_of("impi", "a=22", 0, (4.0, 4.4)),
        *row_of("impi", "a=22", 1, (4.0, 5.2)),
        *row_of("impi", "a=22", 2, (4.0, 0.4), disturbed=True),
        *row_of("oneccl", "as it comes", 0, (3.0, 4.5), ranks=4, disturbed=True),
    ]
    with tempfile.TemporaryDirectory() as directory:
        file, page = Path(directory) / "lines.json", Path(directory) / "page.md"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        marks = ("<!-- peers: begin, written by perf/report --peers -->", "<!-- peers: end -->")
        page.write_text(f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n")
        text = subprocess.run(
            [REPORT, "--from", str(file), "--docs", str(page)],
            check=True, stdout=subprocess.PIPE, text=True, timeout=60,
        ).stdout
        assert page.read_text() == f"before\n{marks[0]}\n{text.strip()}\n{marks[1]}\nafter\n"
    two, four = text.split("### The fastest peer beside ours, 4 ranks")
    assert "| 4K | 4.00 | 4.80 (Intel MPI) | 1.20 (1.10-1.30) |" in two, text
    assert "| 4K | 2.75 | 1.20 |" in two and "| 4K | 1.50 |" in four, text
    assert "| 4K | 3.00 | 4.50 (oneCCL) | 1.50 * |" in four, text
    for said in (
        "- MPICH was not measured", "- Intel MPI, in a program over impi 1.0: a=22; as it comes.",
        "3 rounds at 2 ranks, 1 round at 4 ranks", "beside impi 1.0, oneccl 1.0, system 1.0",
    ):
        assert said in " ".join(text.split()), (said, text)


def peers_report(command):
    """./run perf --peers, with no other peer than this system's MPI: it is scanned, all lines are
    watched, and each table has every size and set."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "lines.json"
        text = subprocess.run(
            [
                REPORT, "--program", command[-1], "--peers", "system", "--quick", "--ranks", "2",
                "--rounds", "1", "--json", str(file),
            ],
            check=True, stdout=subprocess.PIPE, text=True, timeout=1700,
        ).stdout
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all("disturbed" in line for line in lines if line["kind"] != "run"), lines
    measured = {line["setting"] for line in lines}
    assert "as it comes" in measured and measured <= {
        "as it comes", "mpi-tuned", "mpi-tuned, allreduce_algorithm 2"
    }, measured
    assert all(
        ("OMPI_MCA_btl_vader_max_send_size" in line["settings"]["environment"])
        == line["setting"].startswith("mpi-tuned")
        for line in lines if line["kind"] == "run"
    ), lines
    for name in ("4", "1K", "64K", "tiny1000"):
        (row,) = re.findall(rf"^\| {name} \|(.*MPI.*)\|$", text, re.MULTILINE)
        assert row.count("(MPI of this system)") == 3, text  # private, arena, shared


def links(command):
    """./run perf links, in its shortest form: a row for each sum, beside MPI and its ring, and one
    for 4 bytes behind a barrier and back to back."""
    with tempfile.TemporaryDirectory() as directory:
        file, page = Path(directory) / "lines.json", Path(directory) / "page.md"
        run = subprocess.run(
            [LINKS, "--program", command[-1], "--quick", "--json", str(file)],
            stdout=subprocess.PIPE, text=True, timeout=200,
        )
        if run.returncode == 77:
            print(run.stdout)
            sys.exit(77)
        assert run.returncode == 0, run
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        marks = ("<!-- links: begin, written by perf/report/links -->", "<!-- links: end -->")
        page.write_text(f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n")
        again = subprocess.run(
            [LINKS, "--from", str(file), "--docs", str(page)],
            check=True, stdout=subprocess.PIPE, text=True, timeout=60,
        ).stdout
        assert page.read_text() == f"before\n{marks[0]}\n{again.strip()}\n{marks[1]}\nafter\n"
    assert again == run.stdout, (again, run.stdout)
    assert [(line["bytes"], line["series"], line.get("back_to_back")) for line in lines
            if line["kind"] == "sweep"] == [
        *((1 << 20, series, None) for series in ("guozhuang", "mpi", "mpi_ring")),
        *((4, series, how) for how in (None, True) for series in ("guozhuang", "mpi")),
    ], lines
    for line in lines:
        link, layout = line.pop("link"), line.pop("layout")
        assert layout == "1+1" and link in ([1e9, 0], [0, 0.5]), (link, layout)
        if line["kind"] == "sweep":
            look_at(line)
            # No sum is faster than its bytes, and 4 bytes take half a round trip at least.
            assert line["p50_us"] > (8388 if line["bytes"] > 4 else 500), line
    number, spread = r"[0-9.]+", r"[0-9.]+ [(][0-9.]+-[0-9.]+[)]"
    for row in (
        rf"1 Gbit/s, 0 ms [|] 1[+]1 [|] 1M [|] {spread} [|] 8.39 [|] {number}"
        rf"( [|] {spread} [|] {number}){{2}}",
        rf"1 ms [|] 1[+]1( [|] {spread} [|] {spread} [|] {number}){{2}}",
    ):
        assert len(re.findall(rf"^[|] {row} [|]$", again, re.MULTILINE)) == 1, (row, again)


def key_of(line):
    return line.get("set"), line.get("bytes"), line["series"]


def refused_once(command, line, text):
    run = subprocess.run(
        [*command, *line.split()],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
    )
    said = [each for each in run.stdout.splitlines() if re.search(text, each)]
    assert (
        run.returncode == 2 and len(said) == 1 and "MPI_ABORT" not in run.stdout
    ), (line, run.returncode, run.stdout)


def refusals(command):
    """What does not work is refused, not ignored, and that is said once, not on every rank."""
    for line, text in REFUSED.items():
        refused_once(command[-1:], line, text)
    for line, text in REFUSED_BY_RANKS.items():
        refused_once(command, line, text)
    refused_once(
        ["env", "GUOZHUANG_CUDA=off", *command], "allreduce --device cuda",
        "--device cuda: .*GUOZHUANG_CUDA is off",
    )
    help_text = subprocess.run(
        [*command, "allreduce", "--help"], check=True, capture_output=True, text=True, timeout=600
    ).stdout
    assert help_text.count("Usage:") == 1, help_text
    for option, default in (
        ("min-bytes", "4"), ("max-bytes", "256M"), ("dtype", "f32"), ("memory", "private"),
        ("op", "sum"), ("seconds", "2"),
    ):
        # =4 or [4], as the version of CLI11 has it.
        assert re.search(rf"--{option} [^\n]*[=[]{default}\b", help_text), (option, help_text)
    for command_line in ("", "allreduce", "replay", "idle"):
        said = subprocess.run(
            [*command[-1:], *command_line.split(), "--help"],
            check=True, capture_output=True, text=True, timeout=600,
        ).stdout
        assert f"Example: mpirun -np 2 gz-perf {command_line}" in said, said


def algorithms(command):
    """All that the library knows (the table of its configuration is true by test) are accepted."""
    page = Path(__file__).resolve().parents[2] / "docs/configuration.md"
    (names,) = re.findall(
        r"^\| `GUOZHUANG_ALGORITHM` \|[^|]*\|([^|]*)\|", page.read_text(), re.MULTILINE
    )
    for name in re.split(r", | or ", names.strip()):
        for line in lines_of(
            command, "allreduce", "--algorithm", name, "--max-bytes", "64", "--check",
            "--iterations", "1",
        ):
            assert line["algorithm"] == name and line["errors"] == 0, line


def kernels(command):
    """gz-kernels: each dtype has its loops, and every line a speed."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        subprocess.run(
            [*command, "--bytes", "10K", "--rounds", "2", "--seconds", "0", "--json", file.name],
            check=True, timeout=600,
        )
        lines = [json.loads(line) for line in file]
    loops = {}
    for line in lines:
        assert line["gb_per_s"] > 0 and line["memcpy_gb_per_s"] > 0 and line["bytes"] == 10240, line
        loops.setdefault(line["dtype"], []).append(line["loop"])
    always = ["reduce 2", "reduce 4"]
    casts = ["cast to f32", "cast from f32"]
    for dtype in ("f16", "bf16"):
        assert loops.pop(dtype) == [*always, *casts, "scale"], dtype
    for dtype in ("f32", "f64"):
        assert loops.pop(dtype) == [*always, "scale"], dtype
    assert (
        set(loops) == {"i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool"}
        and all(each == always for each in loops.values())
    ), loops


def budget(command):
    """gz-budget: each rank has each station. On one rank the stations allocate what the whole does,
    but for a queue of the engine; on several that depends on which threads the machine lets run."""
    def allocations_of(name):
        with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
            arguments = ["--rounds", "5", "--operations", "100", "--name", name]
            subprocess.run([*command, *arguments, "--json", file.name], check=True, timeout=600)
            lines = [json.loads(line) for line in file]
        assert [line["rank"] for line in lines] == list(range(lines[0]["ranks"])), lines
        for line in lines:
            stations = line["stations"]
            messages = ["message"] * (line["ranks"] > 1)
            assert list(stations) == [
                "request", "queue", "negotiate", *messages, "resolve", "bundle", "algorithm",
                "complete", "whole", "rest", "eager",
            ], line
            assert line["name"] == name and line["bytes"] == 4 and line["cpu"], line
            for station, cost in stations.items():
                assert cost["lowest_ns"] <= cost["ns"] <= cost["highest_ns"], line
                assert station == "rest" or cost["ns"] > 0 and cost["allocations"] >= 0, line
            if line["ranks"] == 1:
                assert 0 <= stations["rest"]["allocations"] < 1, line
                assert stations["eager"]["allocations"] == 0, line
        return {name: cost["allocations"] for name, cost in lines[0]["stations"].items()}

    short, long = allocations_of("a"), allocations_of("a name of more bytes than a string holds")
    # A known name takes no memory.
    assert 0 < short["request"] == long["request"], (short, long)
    assert "message" in short or 0 < short["whole"] == long["whole"], (short, long)


def scale(command):
    """gz-scale: in each step every rank but the root sends a message up and gets one down, and so
    does every host; nobody has more neighbours than twice the degree, and a parent."""
    def steps(ranks, per_host, *arguments):
        text = subprocess.run(
            [*command, "--ranks", str(ranks), "--per-host", str(per_host), "--steps", "1",
             "--tensors", "8", *arguments], check=True, timeout=600, stdout=subprocess.PIPE,
        ).stdout
        lines = [json.loads(line) for line in text.splitlines()]
        assert [line["step"] for line in lines] == ["cached bundle", "new tensor set"], lines
        for line in lines:
            hosts = (ranks + per_host - 1) // per_host
            assert line["messages"] == 2 * (ranks - 1), line
            assert line["between_hosts"] == 2 * (hosts - 1), line
            assert line["most_of_a_rank"] <= 2 * (2 * line["degree"] + 1), line
            assert line["step_us"] >= line["root_us"] > 0, line
        return lines

    for ranks, per_host, hops in ((2, 1, 2), (2, 2, 2), (8, 2, 4), (18, 1, 4), (300, 8, 6)):
        assert [line["hops"] for line in steps(ranks, per_host)] == [hops] * 2, (ranks, per_host)
    assert steps(100, 1, "--degree", "2")[0]["hops"] == 12
    cached, fresh = steps(10_000, 8)
    assert cached["hops"] == fresh["hops"] == 8 and cached["most_of_a_rank"] == 48, cached
    # A known bundle is an id, its fingerprint and the envelope, however many ranks there are.
    assert cached["bytes"] < 50 * cached["messages"] and cached["bytes_of_root"] < 2100, cached
    assert fresh["bytes_of_root"] < 6000, fresh


{
    test.__name__: test
    for test in (
        sweep, replay, advice, staged, cuda, gloo, beside, watch, idle, refusals, algorithms,
        kernels, budget, scale, report, device_report, peers_lines, peers_report, links,
    )
}[sys.argv[1]](sys.argv[2:])
