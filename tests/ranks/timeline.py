#!/usr/bin/env python3
"""timeline.py RANKS GZ-TIMELINE JOB...: what a job under mpirun records, and what gz-timeline
makes of it."""
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ranks, gz_timeline, job = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
STEPS = 20  # of the job
scratch = tempfile.TemporaryDirectory()
top = Path(scratch.name)


def tool(*arguments):
    return subprocess.run(
        [gz_timeline, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600,
    )


def record(scene, read=lambda file: json.loads(file.read_text())):
    directory = top / scene
    code = subprocess.run([*job, scene, directory], timeout=600).returncode
    return directory, code, [read(directory / f"rank{rank}.json") for rank in range(ranks)]


def read_by_tool(file):
    """Of a rank that may not have come to the end of its file."""
    said = tool(file)
    assert said.returncode == 0, said
    return json.loads(said.stdout)


def begun(events, name):
    return sum(event["ph"] == "B" and event["name"] == name for event in events)


def look_at_rows(events):
    """On every row each end has its beginning, and times do not go back."""
    depth, last = Counter(), Counter()
    for event in events:
        row = event["pid"], event["tid"]
        if event["ph"] in "BE":
            depth[row] += 1 if event["ph"] == "B" else -1
            assert depth[row] >= 0 and event["ts"] >= last[row], event
            last[row] = event["ts"]
    assert not any(depth.values()), depth


def refused(expected, *arguments):
    said = tool(*arguments)
    assert said.returncode == 2 and expected in said.stderr and not said.stdout, said


# A job that ends well.
directory, code, traces = record("train")
assert code == 0
for rank, events in enumerate(traces):
    assert {event["pid"] for event in events} == {rank}, rank
    for layer in range(4):
        assert begun(events, f"layer{layer}") == STEPS, events
    for step in range(STEPS):
        assert begun(events, f"#{step + 1} barrier") == 1, events
    look_at_rows(events)
said = tool(directory)
assert said.returncode == 0 and said.stderr == "", said
merged = json.loads(said.stdout)
assert (
    len(merged) == sum(map(len, traces))
    and {event["pid"] for event in merged} == set(range(ranks))
)
look_at_rows(merged)
assert min(event["ts"] for event in merged if "ts" in event) >= 0
assert (
    tool(directory, "-o", top / "merged.json").returncode == 0
    and json.loads((top / "merged.json").read_text()) == merged
)
table = tool(directory, "--summary").stdout
assert sum(line.startswith("negotiate") for line in table.splitlines()) == ranks, table
last = [int(line.split()[7]) for line in table.splitlines() if "was the last to submit" in line]
assert sum(last) == 5 * STEPS or ranks == 1, table

# A name is known within its process set.
sets = top / "sets"
sets.mkdir()
requests = {0: [("set", 100), ("", 300)], 1: [("", 200)]}
for rank, begins in requests.items():
    head = {"name": "guozhuang", "args": {**traces[0][0]["args"], "rank": rank, "ranks": 2}}
    events = [
        {
            "name": "x", "ph": "B", "ts": at, "pid": rank, "tid": at,
            "args": {"set": name} if name else {},
        }
        for name, at in begins
    ]
    (sets / f"rank{rank}.json").write_text(
        "[\n" + ",\n".join(map(json.dumps, [head, *events])) + "\n]\n"
    )
assert "rank 0 was the last to submit 1 of 1 requests" in tool(sets, "--summary").stdout

# What gz-timeline makes of files that are not whole, or none of ours.
whole = (directory / "rank0.json").read_text()
cut = top / "cut"
cut.mkdir()
for position in (len(whole) - 1, len(whole) - 3, len(whole) - 30, len(whole) // 2):
    (cut / "rank0.json").write_text(whole[:position])
    said = tool(cut)
    assert (
        said.returncode == 0 and json.loads(said.stdout)[0]["name"] == "guozhuang"
    ), (position, said)
    assert ("ends early" in said.stderr) == (position < len(whole) - 2), said
    assert ("there is no timeline of rank 1" in said.stderr) == (ranks > 1), said
(cut / "rank0.json").write_text(whole.replace(",\n", ",\n}{\n", 5))
refused("is damaged in its middle", cut)
(cut / "rank0.json").write_text('[\n{"name":"another program"}\n]\n')
refused("is not a timeline that Guozhuang has recorded", cut)
(cut / "rank0.json").write_text("")
refused("is not a timeline that Guozhuang has recorded", cut)
refused("cannot be read", top / "nothing")
refused("are both of rank 0", directory / "rank0.json", directory / "rank0.json")
refused("paths is required")
(top / "empty").mkdir()
refused("holds no timeline", top / "empty")
assert tool("--help").returncode == 0
assert tool(directory, "-o", "/dev/full").returncode == 1

# A rank that an exception takes out of its session leaves a timeline without loose ends; mpirun may
# end the others.
directory, code, traces = record("left", read_by_tool)
assert code != 0 and begun(traces[-1], "what is left") == 1, traces[-1]
look_at_rows(json.loads((directory / f"rank{ranks - 1}.json").read_text()))

# A rank that is killed leaves an array that is not closed, as do those that mpirun ends for it:
# gz-timeline takes it, and says so.
if ranks > 1:
    directory, code, traces = record("killed", read_by_tool)
    assert code != 0 and begun(traces[-1], "the last one of all") == 1, traces
    said = tool(directory)
    assert (
        said.returncode == 0
        and f"rank{ranks - 1}.json ends early: rank {ranks - 1} was killed, "
        f"or ended because another rank was" in said.stderr
    ), said
