#!/usr/bin/env python3
"""gz_info_check.py MPIRUN... GZ_INFO: what gz-info --check says of three ranks, on one host and on
three that are simulated. On these the last rank has a setting of its own. How fast the links are is
up to the machine, so a link may be odd or not; but the exit code, the marks and the findings must
say the same."""
import json
import subprocess
import sys

*mpirun, gz_info = sys.argv[1:]
RANK = "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
HOSTS = f'{RANK}; GUOZHUANG_HOST=$rank exec "$@"'
ODD_SETTING = f'{RANK}; [ $rank != 2 ] || export GUOZHUANG_SPIN_US=7; {HOSTS}'
SETTING = "host {}#2 is odd: GUOZHUANG_SPIN_US 7 where the others have auto"


def check(script, *options):
    """Exit code and output."""
    done = subprocess.run(
        [*mpirun, "sh", "-c", script, "sh", gz_info, "--check", *options],
        stdout=subprocess.PIPE, text=True, check=False, timeout=600,
    )
    print(done.stdout)
    return done.returncode, done.stdout


def marked(found):
    """Whether a link or a value of a fact is marked as odd."""
    values = sum(found["facts"].values(), [])
    return any(thing["odd"] for thing in (*values, *found["links"]))


code, text = check('exec "$@"')
assert code == 0 and "there is one host" in text and "nothing is odd" in text, (code, text)

code, text = check(HOSTS, "--json")
found = json.loads(text)
name = found["hosts"][0]["name"].removesuffix("#0")
assert found["hosts"] == [{"name": f"{name}#{rank}", "ranks": [rank]} for rank in range(3)]
assert [link["hosts"] for link in found["links"]] == [
    [f"{name}#{a}", f"{name}#{b}"] for a, b in ((0, 1), (0, 2), (1, 2))
]
assert all(link["latency_us"] > 0 and link["mb_per_s"] > 0 for link in found["links"])
assert list(found["facts"])[:4] == ["library", "MPI", "kernel", "machine"]
assert code == bool(found["odd"]) == marked(found), code

code, text = check(ODD_SETTING, "--json")
found = json.loads(text)
assert code == 1 and SETTING.format(name) in found["odd"], code
assert [(value["value"], value["odd"]) for value in found["facts"]["GUOZHUANG_SPIN_US"]] == [
    ("auto", False), ("7", True)
]

code, text = check(ODD_SETTING)
assert code == 1 and SETTING.format(name) in text.splitlines(), code
assert text.count(" MB/s\n") == 3, text
