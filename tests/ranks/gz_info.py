#!/usr/bin/env python3
"""gz_info.py RANKS COMMAND...: what gz-info says under mpirun. It speaks once, of all ranks, and
says once what it does not know."""
import json
import subprocess
import sys

ranks, command = sys.argv[1], sys.argv[2:]

text = subprocess.run(
    [*command, "--json"], check=True, stdout=subprocess.PIPE, text=True, timeout=600
).stdout
items = json.loads(text)
assert list(items) == ["build", "mpi", "topology", "devices", "configuration"], text
assert items["topology"]["job"].startswith(f"{ranks} ranks on "), text

refused = subprocess.run(
    [*command, "--unknown"],
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
)
assert refused.returncode == 2 and refused.stdout.count("--unknown") == 1, refused
