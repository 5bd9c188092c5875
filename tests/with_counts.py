#!/usr/bin/env python3
"""Usage: ctest ... | with_counts.py LOG: passes ctest's output on. Before its summary come the sums
of what the tests have counted, which ctest itself shows of failures only: lines like "simulated
runs: 200000, violations: 0" in LOG, its log of all output. So do its lines that begin with "Time
from". Ends with 1 if a test that counts has passed without a word of it."""

import re
import sys
from collections import Counter
from pathlib import Path

COUNT = r"[a-z][a-z ]*: \d+"
EFFORTS = {
    "jobs", "faults injected", "bad inputs", "simulated runs", "random collectives",
    "fuzz executions", "outcomes compared",
}
# The tests that count: one that passes has said what it has done.
COUNTING = (
    r"faults\.\w+|fuzz\.smoke|conformance\.\w+\.np\d"
    r"|unit\.(bad_inputs|negotiator_walk|operations)\.slow"
    r"|ranks\.(bad_inputs|operations)\.slow(\.np\d+)?"
)


def silent_tests(log):
    """Names of those in the log that have passed without a count above 0."""
    for test in re.split(r"^\d+/\d+ Testing: ", log, flags=re.MULTILINE)[1:]:
        name = test.split("\n", 1)[0].strip()
        counts = counts_of(test)
        if (
            re.fullmatch(COUNTING, name)
            and "\nTest Passed." in test
            and not any(counts[effort] for effort in EFFORTS)
        ):
            yield name


def counts_of(log):
    """Of every line that consists of counts and begins with an effort."""
    counts = Counter()
    for line in log.splitlines():
        if re.fullmatch(rf"{COUNT}(, {COUNT})*", line) and line.split(":")[0] in EFFORTS:
            for name, number in re.findall(r"([a-z][a-z ]*): (\d+)", line):
                counts[name] += int(number)
    return counts


def in_words(counts, names):
    return ", ".join(f"{name}: {counts[name]:,}" for name in counts if name in names)


summary = []
for line in sys.stdin:
    if summary or "% tests passed" in line:
        summary.append(line)
    else:
        print(line, end="", flush=True)
log = Path(sys.argv[1]).read_text(errors="replace")
for times in re.findall(r"^Time from .*", log, re.MULTILINE):
    print(times)
if counts := counts_of(log):
    print(
        f"Done: {in_words(counts, EFFORTS)}\n"
        f"Found: {in_words(counts, counts.keys() - EFFORTS)}\n"
    )
print("".join(summary), end="")
silent = list(silent_tests(log))
for name in silent:
    print(f"{name} has passed and does not say how much it has done: {', '.join(sorted(EFFORTS))}")
sys.exit(bool(silent))
