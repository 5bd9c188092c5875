#!/usr/bin/env python3
"""links.py NM TABLE ROOMS_CMAKE ROOM OBJECT... [-- ROOM OBJECT...]...: no room needs a function or
variable of a room that the table (docs/decisions/001-rooms.md) does not give it. Includes cannot
tell: a function may be declared anywhere, and a public header's may be defined in any room.

What base defines outside its own namespace belongs to the public headers of values, which all have.
Prints what is wrong and ends with 1 if there is anything to print.
"""
import itertools
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lint"))
from house import Rooms  # noqa: E402


def symbols(nm, objects):
    """What the objects need, and what they define for others; inline functions are nobody's."""
    listed = subprocess.run([nm, "-C", "--extern-only", *objects], capture_output=True, text=True,
                            check=True).stdout
    needed, defined = set(), set()
    for kind, name in re.findall(r"^[0-9a-f ]{16} (\w) (.*guozhuang::.*)$", listed, re.MULTILINE):
        if kind == "U":
            needed.add(name)
        elif kind in "TDBR":
            defined.add(name)
    return needed, defined


def rooms_given_to(room, rooms):
    """Those to which the room's corridors lead; a folder has the rooms below it, too."""
    paths = {path for corridor in rooms.may_use[room] for path in rooms.corridors[corridor]}
    return {room} | {
        other
        for folder, other in rooms.folders.items()
        for path in paths
        if folder.removeprefix("src/").startswith(path + "/")
        or path.startswith(folder.removeprefix("src/"))
    }


nm, table, cmake, *lists = sys.argv[1:]
rooms = Rooms(Path(table).read_text(), Path(cmake).read_text())
groups = [list(group) for is_end, group in itertools.groupby(lists, "--".__eq__) if not is_end]
of = {room: symbols(nm, objects) for room, *objects in groups}
owners = {name: room for room, (_, defined) in of.items() for name in defined}
findings = [
    f"room {room} needs {name} of room {owners[name]} ({table})"
    for room, (needed, _) in of.items()
    if room != "training"  # needs what public headers declare
    for name in sorted(needed & owners.keys())
    if owners[name] not in rooms_given_to(room, rooms)
    and (owners[name] != "base" or "guozhuang::base::" in name)
]
print("\n".join(findings) or f"{len(owners)} symbols of {len(of)} rooms")
sys.exit(bool(findings))
