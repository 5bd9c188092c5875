#!/usr/bin/env python3
"""wrong_sessions.py PAGE COMMAND...: the sessions that the page shows, under "# mpirun ... SCENE",
are what COMMAND SCENE prints, but for times and processes; and every rank that lives says what is
wrong."""
import os
import re
import subprocess
import sys
from pathlib import Path

page, command = Path(sys.argv[1]), sys.argv[2:]
RANKS, DEAD = 4, {"kill": 2}


def lines_of(text):
    """Those of the library, without what differs from run to run."""
    lines = [line for line in text.splitlines() if line.startswith("guozhuang[")]
    return [
        re.sub(r"[\d.]+ s\b", "... s", re.sub(r"host [^,]+, pid \d+", "host ..., pid ...", line))
        for line in lines
    ]


scenes = re.findall(r"```text\n# mpirun [^\n]* (\w+)\n(.*?)```", page.read_text(), re.DOTALL)
assert {scene for scene, _ in scenes} == {"shape", "missing", "typo", "kill"}, scenes
for scene, session in scenes:
    limits = {"GUOZHUANG_STALL_WARN_S": "0.5", "GUOZHUANG_STALL_ERROR_S": "1.5"}
    job = subprocess.run(
        [*command, scene], env={**os.environ, **limits},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    )
    printed = lines_of(job.stdout)
    for line in lines_of(session):
        assert line in printed, f"{scene}: {page} has\n{line}\nbut printed was\n{job.stdout}"
    for rank in range(RANKS):
        errors = [line for line in printed if line.startswith(f"guozhuang[{rank}] error: ")]
        assert len(errors) == (rank != DEAD.get(scene)), (
            f"{scene}: rank {rank} says {errors}\n{job.stdout}"
        )
    assert job.returncode != 0, scene
