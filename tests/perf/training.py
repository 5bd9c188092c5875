#!/usr/bin/env python3
"""training.py GZ_EXPERIMENT: ./run perf training, in its shortest form, counts what the methods
send and keep, and writes the same report from the lines of an earlier run."""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REPORT = Path(__file__).resolve().parents[2] / "perf/report/training"
MARKS = ("<!-- methods: begin, written by perf/report/training -->", "<!-- methods: end -->")
METHODS = ["sync", "root", "zero1", "ps_sync", "backup"]
RANKS, STEPS = 3, 20
BYTES = 4 * (784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10)  # of the values, and of gradients
SENT = {  # by all ranks; values for all are written to shared memory once
    "sync": STEPS * 2 * (RANKS - 1) * BYTES,
    "root": STEPS * (RANKS - 1 + 1) * BYTES,
    "zero1": STEPS * (RANKS - 1 + 1) * BYTES,
    # The server exchanges messages with itself, too; at the end all say so, and get the values.
    "ps_sync": STEPS * 2 * RANKS * BYTES + RANKS * BYTES + BYTES,
}


def report(*arguments):
    return subprocess.run(
        [REPORT, *arguments], check=True, stdout=subprocess.PIPE, text=True, timeout=600
    ).stdout


def check(rows):
    ends = {(row["method"], row["slow"]): row for row in rows}
    assert list(ends) == [(method, slow) for slow in (1, 10) for method in METHODS], list(ends)
    for (method, slow), row in ends.items():
        assert len(row["losses"]) == len(row["times"]) == STEPS, row
        if method in SENT:
            sent = row["bytes_sent"] / SENT[method]
            assert 0.999 < sent < 1.001, (method, sent)
            # The same steps, but for the order of sums.
            assert abs(row["loss"] - ends["sync", 1]["loss"]) < 1e-3, row
            assert row["dropped"] == row["stale_max"] == 0, row
        share = RANKS if method == "zero1" else 1
        assert abs(row["bytes_per_rank_state"] - BYTES / share) <= 4, row
        if method == "backup" and slow > 1:
            assert 0 < row["dropped"] <= RANKS * STEPS, row


def main():
    with tempfile.TemporaryDirectory() as directory:
        file, page = Path(directory, "lines.json"), Path(directory, "page.md")
        said = report("--quick", "--models", "fashion", "--slow", "1", "10", "--ranks", str(RANKS),
                      "--methods", *METHODS, "--json", str(file), "--program", sys.argv[1])
        page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
        again = report("--from", str(file), "--docs", str(page))
        assert page.read_text() == f"before\n{MARKS[0]}\n{said.strip()}\n{MARKS[1]}\nafter\n", said
        assert again == said, (again, said)
        plots = page.with_suffix(".svg").read_text()
        assert plots.count("<polyline") == 2 * len(METHODS), plots
        check([json.loads(line) for line in file.read_text().splitlines()])
    for method in METHODS:
        assert len(re.findall(rf"^[|] `{method}` [|]( [0-9.-]+ [|]){{11}}$", said, re.M)) == 1, said


main()
