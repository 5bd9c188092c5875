#!/usr/bin/env python3
"""conformance.py INTERFACE MPIRUN -n RANKS OPTION... -- PROGRAM...: runs a program with all cases
of cases.txt on that many ranks, and compares what it writes with what must come out. INTERFACE is
what the program goes by in interfaces.txt, which says what it cannot do."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import cases
from tensors import readable

HERE = Path(__file__).parent
MOST_RANKS, MOST_SHOWN = 4, 20


def run(launcher, program, lines, folder):
    """Each rank is given its lines, and a file for what comes out. Returns the status of the
    launcher, and for each rank the outcomes by number."""
    mpirun, flag, _, *options = launcher
    command = [mpirun, *options]
    for rank, own in enumerate(lines):
        (folder / f"cases{rank}").write_text("\n".join(own) + "\n")
        command += [":"] * (rank > 0) + [flag, "1", *program, str(folder / f"cases{rank}"),
                                         str(folder / f"outcomes{rank}")]
    status = subprocess.run(command).returncode
    return status, [outcomes_in(folder / f"outcomes{rank}") for rank in range(len(lines))]


def outcomes_in(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return {int(number): outcome for number, _, outcome in (line.partition(" ") for line in lines)}


def agrees(outcome, wanted):
    """A * in what is wanted is any text."""
    return re.fullmatch(".*".join(map(re.escape, wanted.split("*"))), outcome) is not None


def words_of(line):
    return {part for word in line.split() for part in (word, word.partition(":")[0])}


class Gaps:
    """What an interface cannot do, by interfaces.txt, and by the outcomes of a rank's lines where
    that depends on its version."""

    def __init__(self, interface, lines, outcomes):
        rows = [line.split(None, 2) for line in (HERE / "interfaces.txt").read_text().splitlines()
                if not line.startswith("#")]
        firsts = {word: int(line.split()[0]) for line in reversed(lines) for word in words_of(line)}
        self._gaps = {words.rstrip("?") for interfaces, words, _ in rows
                      if interface in interfaces.split(",")
                      and ("?" not in words or outcomes.get(firsts[words[:-1]]) == "cannot")}
        if interface == "cpp" and self._gaps:
            sys.exit(f"interfaces.txt: what not even C++ can do is no case: {self._gaps}")
        self.unmet = set(self._gaps)  # that no case asks for

    def meets(self, line):
        """Whether a line asks for what the interface cannot do."""
        met = {gap for gap in self._gaps if set(gap.split("+")) <= words_of(line)}
        self.unmet -= met
        return bool(met)

    def without_rows(self, wanted, outcome):
        """What is wanted, less the rows where the interface does not say them."""
        if "rows" not in self._gaps or "rows=" in outcome:
            return wanted
        self.unmet.discard("rows")
        return re.sub(r" rows=\S+", "", wanted)


def differences(lines, all_wanted, outcomes, gaps):
    """Of one rank: the case, what was wanted, and what came out. None after a line that nothing
    came of."""
    not_begun = set()
    for line in lines:
        number, operation, *words = line.split()
        case, wanted = all_wanted[int(number)]
        outcome = outcomes.get(int(number), "nothing")
        name = {word for word in words if word.startswith("name=")}
        if gaps.meets(line) or (operation == "wait" and name <= not_begun):
            wanted = "cannot"
            not_begun |= name
        else:
            not_begun -= name
        if not agrees(outcome, gaps.without_rows(wanted, outcome)):
            yield case, wanted, outcome
        if outcome == "nothing":
            return


def in_words(rank, case, wanted, outcome):
    return (f"rank {rank}, cases.txt:{case.line}: {case.text}\n"
            f"  wanted:   {readable(wanted)}\n  came out: {readable(outcome)}")


def idle_lines(text):
    """Lines of the list that make no case on any number of ranks."""
    lines = {number for number, line in enumerate(text.splitlines(), 1) if re.match("[a-z{]", line)}
    for ranks in range(1, MOST_RANKS + 1):
        lines -= {case.line for case in cases.read(text, ranks)}
    return lines


def main():
    interface, *words = sys.argv[1:]
    launcher, program = words[:words.index("--")], words[words.index("--") + 1:]
    ranks, text = int(launcher[2]), (HERE / "cases.txt").read_text()
    script = cases.Script(cases.read(text, ranks), ranks, interface)
    with tempfile.TemporaryDirectory() as folder:
        status, all_outcomes = run(launcher, program, script.lines, Path(folder))
    gaps = Gaps(interface, script.lines[0], all_outcomes[0])
    found = [in_words(rank, *difference) for rank, outcomes in enumerate(all_outcomes)
             for difference in differences(script.lines[rank], script.wanted[rank], outcomes, gaps)]
    found[:0] = [*(f"cases.txt:{line}: makes no case" for line in idle_lines(text)),
                 *(f"interfaces.txt: no case asks {interface} for {gap}" for gap in gaps.unmet)]
    print(*found[:MOST_SHOWN], sep="\n")
    if status:
        print(f"the program has ended with {status}")
    print(f"outcomes compared: {sum(map(len, script.lines))}, differences: {len(found)}")
    sys.exit(bool(found or status))


if __name__ == "__main__":
    main()
