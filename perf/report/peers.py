"""Measures the library beside every MPI that can be had, and oneCCL: gz-perf is built against each
(perf/peers/install), so both take turns in one process, on the same buffers, between barriers that
are neither's (gz-perf --watch)."""
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

from tables import number, select, size, table

PERF = Path(__file__).resolve().parents[1]
TOP = PERF.parent
LIMIT_SECONDS, SCAN_LIMIT_SECONDS = 300, 60  # for one run: some settings never end


def tuned_open_mpi():
    """The variables that perf/mpi-tuned sets."""
    said = subprocess.run(
        [PERF / "mpi-tuned", "env"], env={"PATH": os.defpath}, check=True,
        stdout=subprocess.PIPE, text=True,
    ).stdout
    return dict(
        line.split("=", 1) for line in said.splitlines() if line.startswith(("OMPI_", "MALLOC_"))
    )


def open_mpi_settings():
    tuned = tuned_open_mpi()
    yield "mpi-tuned", tuned
    for algorithm in range(2, 7):
        also = {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_allreduce_algorithm": str(algorithm),
        }
        kept = {name: value for name, value in tuned.items() if "rules" not in name}
        yield f"mpi-tuned, allreduce_algorithm {algorithm}", kept | also


def intel_settings():
    for algorithm in range(1, 27):
        yield f"I_MPI_ADJUST_ALLREDUCE={algorithm}", {
            "I_MPI_FABRICS": "shm", "I_MPI_ADJUST_ALLREDUCE": str(algorithm)
        }


def variable_settings(variable, values):
    return [(f"{variable}={value}", {variable: value}) for value in values]


MPICH = "MPIR_CVAR_ALLREDUCE_"


class Baseline(NamedTuple):
    name: str
    mpi: str  # where perf/peers/install puts it; empty: what --program is linked to
    launcher: tuple
    always: dict  # variables that it needs to run as root, or well
    crowded: dict  # those that it needs where ranks share a core
    settings: tuple  # to scan: what somebody who knows it would try
    series: str = "mpi"
    program: str = "gz-perf"


OPEN_MPI = {
    "launcher": ("mpirun", "--oversubscribe", "--bind-to", "none"),
    "always": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    "crowded": {"OMPI_MCA_mpi_yield_when_idle": "1"},
    "settings": tuple(open_mpi_settings()),
}
INTEL = {
    "mpi": "impi",
    "launcher": ("mpiexec.hydra",),
    "always": {"I_MPI_PIN": "0"},
    "crowded": {"I_MPI_THREAD_YIELD": "2"},
}
ONECCL = {"I_MPI_FABRICS": "shm", "CCL_WORKER_OFFLOAD": "0", "CCL_LOG_LEVEL": "error"}
PEERS = {
    "system": Baseline("MPI of this system", mpi="", **OPEN_MPI),
    "openmpi": Baseline("Open MPI 5", mpi="openmpi", **OPEN_MPI),
    "mpich": Baseline(
        "MPICH", mpi="mpich", launcher=("mpiexec.hydra", "-bind-to", "none"),
        always={}, crowded={"MPIR_CVAR_POLLS_BEFORE_YIELD": "0"},
        settings=(
            *variable_settings(f"{MPICH}POSIX_INTRA_ALGORITHM", ["release_gather", "mpir"]),
            *variable_settings(
                f"{MPICH}INTRA_ALGORITHM",
                ["recursive_doubling", "reduce_scatter_allgather", "ring", "recexch"],
            ),
        ),
    ),
    "impi": Baseline("Intel MPI", **INTEL, settings=tuple(intel_settings())),
    # One core a rank, so no thread of its own: it would fight its caller for the core.
    "oneccl": Baseline(
        "oneCCL", **INTEL | {"always": INTEL["always"] | ONECCL}, series="oneccl",
        program="gz-perf-oneccl",
        settings=tuple(variable_settings(
            "CCL_ALLREDUCE", ["ring", "recursive_doubling", "rabenseifner", "nreduce"]
        )),
    ),
}
MEMORIES = ("private", "arena", "shared")
AS_IT_COMES = ("as it comes", {})
SETS = ("resnet50", "bert_base", "vgg16", "gpt2", "tiny1000")
MOST_KEPT = 3  # settings of a peer
SET_BYTES = 1 << 22  # bundles of gradient sets have some times as many


class Failed(Exception):
    pass


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- measuring ------------------------------------------------------------------------------------


def program_of(peer, options):
    folder = TOP / "build/peers" / peer.mpi / "bin" if peer.mpi else options.program.parent
    return folder / peer.program


def install(wanted, options):
    """Yields a line for each peer that cannot be had."""
    failed = set()
    for mpi in dict.fromkeys(PEERS[name].mpi for name in wanted if PEERS[name].mpi):
        say(f"installing {mpi}, and building gz-perf over it")
        run = subprocess.run(
            [PERF / "peers/install", mpi], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True,
        )
        if run.returncode != 0:
            say(run.stderr[-2000:])
            failed.add(mpi)
    for name in wanted:
        peer = PEERS[name]
        if peer.mpi in failed or not program_of(peer, options).exists():
            yield {"kind": "absent", "peer": name}


def has_written(row):
    """Whether a row of a file is one of these, and not of a report without --peers."""
    return "setting" in row or row["kind"] == "absent"


def run(options, ranks, name, setting, arguments, limit=LIMIT_SECONDS):
    """The JSON lines of one run of gz-perf. Throws Failed."""
    peer = PEERS[name]
    environment = os.environ | peer.always | dict(setting[1])
    if peer.mpi:
        venv = TOP / "build/peers" / peer.mpi / "venv"
        environment["PATH"] = f"{venv}/bin:{environment['PATH']}"
        environment["I_MPI_ROOT"] = str(venv)
    if ranks > len(os.sched_getaffinity(0)):
        environment |= peer.crowded
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        command = [
            *peer.launcher, "-n", str(ranks), str(PERF / "peers/pinned"),
            str(program_of(peer, options)), *arguments, "--watch", "--peer", peer.series,
            "--json", file.name,
        ]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # the ranks, too: they spin
            process.communicate()
            raise Failed(f"not done in {limit} s") from error
        if process.returncode != 0:
            raise Failed(f"ended with {process.returncode}: {output[-300:]}")
        rows = [json.loads(line) for line in file]
    for row in rows:
        if "mpi" in row:
            row["mpi"] = " ".join(row["mpi"].split())
    return [row | {"peer": name, "setting": setting[0]} for row in rows]


def sweep(largest, seconds, memory="private"):
    return [
        "allreduce", "--max-bytes", largest, "--memory", memory, "--seconds", str(seconds),
    ]


def ratios(rows, series):
    """By size, how many times as long the peer takes, as a logarithm."""
    ours, theirs = (
        {row["bytes"]: row["p50_us"] for row in select(rows, series=each)}
        for each in ("guozhuang", series)
    )
    return {size: math.log(theirs[size] / ours[size]) for size in ours}


def fastest_together(found):
    """Of settings, each with its ratios: the fastest over all sizes, and then those that make the
    fastest of all faster by a fiftieth."""
    def mean_of_best(settings):
        return statistics.mean(map(min, zip(*(found[each].values() for each in settings))))

    kept = []
    for _ in range(min(MOST_KEPT, len(found))):
        more = min(set(found) - set(kept), key=lambda each: mean_of_best([*kept, each]))
        if kept and mean_of_best([*kept, more]) > mean_of_best(kept) - 0.02:
            break
        kept.append(more)
    return kept


def scan(options, ranks, name):
    """As it comes, and the settings that short runs have found to be worth measuring, the best
    first, each with its ratios. A setting that gives a wrong element, or does not end, is left
    out."""
    peer, found = PEERS[name], {}
    by_name = dict([AS_IT_COMES, *(peer.settings[:2] if options.quick else peer.settings)])
    arguments = [*sweep("64K" if options.quick else "64M", 0.1), "--factor", "16", "--check"]
    for setting in by_name.items():
        try:
            rows = run(options, ranks, name, setting, arguments, SCAN_LIMIT_SECONDS)
        except Failed as reason:
            say(f"  {peer.name}, {setting[0]}: {reason}")
            continue
        if not any(row["errors"] for row in select(rows, kind="sweep")):
            found[setting[0]] = ratios(rows, peer.series)
    kept = fastest_together(found)
    say(f"{ranks} ranks, {peer.name}: {'; '.join(kept) or 'nothing that works'}")
    if AS_IT_COMES[0] in found and AS_IT_COMES[0] not in kept:
        kept.append(AS_IT_COMES[0])
    return {(name, (each, tuple(by_name[each].items()))): found[each] for each in kept}


def measurements(options, scanned):
    """One round at a number of ranks: peer, setting and arguments of gz-perf, peers in turns. In
    shared memory only those settings take part that are together the fastest of all; with gradient
    sets those that are so from SET_BYTES on."""
    fastest = fastest_together(scanned)
    fastest_with_sets = fastest_together({
        who: {size: ratio for size, ratio in found.items() if size >= SET_BYTES} or found
        for who, found in scanned.items()
    })
    largest, seconds, steps = ("64K", 0.05, 3) if options.quick else ("64M", 0.3, 10)
    for what in (None, "tiny1000") if options.quick else (None, *SETS):
        for memory in MEMORIES:
            replay = ["replay", "--set", what, "--memory", memory, "--steps", str(steps)]
            arguments = replay if what else sweep(largest, seconds, memory)
            everywhere = scanned if memory == "private" else fastest
            for name, setting in fastest_with_sets if what else everywhere:
                yield name, setting, arguments


def measure_all(options, first_round):
    """The rows of one run after the other, each with its peer, its setting and the number of its
    round. Peers alternate, so drift meets all alike."""
    wanted = list(PEERS) if "all" in options.peers else options.peers
    absent = list(install(wanted, options))
    yield [row | {"round": first_round} for row in absent]
    there = [name for name in wanted if name not in {row["peer"] for row in absent}]
    if not there:
        sys.exit("none of these peers can be had")
    scanned = {
        ranks: {who: found for name in there for who, found in scan(options, ranks, name).items()}
        for ranks in options.ranks
    }
    for number_of_round in range(first_round, first_round + options.rounds):
        for ranks in options.ranks:
            for name, setting, arguments in measurements(options, scanned[ranks]):
                say(f"{ranks} ranks, {PEERS[name].name}, {setting[0]}: {' '.join(arguments)}")
                try:
                    rows = run(options, ranks, name, setting, arguments)
                except Failed as reason:
                    say(f"  {reason}")
                    continue
                yield [row | {"round": number_of_round} for row in rows]


# --- tables ---------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """One run's figure of the library and of a peer beside it."""
    ours: float
    theirs: float
    disturbed: bool

    @property
    def ratio(self):
        return self.theirs / self.ours


def compared(rows, kind, key):
    """(ranks, memory, size or set) -> (peer, setting) -> the runs, undisturbed ones if there are
    any."""
    what = "bytes" if kind == "sweep" else "set"
    times, pairs = {}, {}
    for row in select(rows, kind=kind):
        case = (row["ranks"], row["memory"], row[what])
        run_of = (row["peer"], row["setting"], row["round"])
        times.setdefault((case, run_of), {})[row["series"]] = row
    for (case, (name, setting, _)), series in times.items():
        ours, theirs = series["guozhuang"], series[PEERS[name].series]
        pairs.setdefault(case, {}).setdefault((name, setting), []).append(
            Compared(ours[key], theirs[key], ours["disturbed"])
        )
    return {
        case: {
            who: [run for run in runs if not run.disturbed] or runs for who, runs in peers.items()
        }
        for case, peers in pairs.items()
    }


def median_ratio(runs):
    return statistics.median(run.ratio for run in runs)


def cells(peers):
    """Ours, the fastest peer, and how they compare, with the spread over the rounds."""
    (name, _), runs = min(peers.items(), key=lambda item: median_ratio(item[1]))
    low, high = min(run.ratio for run in runs), max(run.ratio for run in runs)
    yield number(statistics.median(run.ours for run in runs))
    yield f"{number(statistics.median(run.theirs for run in runs))} ({PEERS[name].name})"
    yield (
        f"{median_ratio(runs):.2f}" + (f" ({low:.2f}-{high:.2f})" if len(runs) > 1 else "")
        + (" *" if runs[0].disturbed else "")
    )


def fastest_table(found, ranks, unit, text_of):
    memories = [each for each in MEMORIES if any(case[:2] == (ranks, each) for case in found)]
    heads = (
        head
        for memory in memories
        for head in (f"{memory}: ours, {unit}", f"fastest peer, {unit}", "peer / ours")
    )
    order = dict.fromkeys(case[2] for case in found if case[0] == ranks)
    yield from table(
        ["" if unit == "ms" else "bytes", *heads],
        (
            [text_of(each), *(
                cell
                for memory in memories
                for cell in (
                    cells(found[ranks, memory, each]) if (ranks, memory, each) in found
                    else ("-", "-", "-")
                )
            )]
            for each in order
        ),
    )


def peers_table(found, ranks):
    """The best setting of each peer in private memory."""
    here = {case[2]: peers for case, peers in found.items() if case[:2] == (ranks, "private")}
    names = [each for each in PEERS if any(who[0] == each for peers in here.values()
                                           for who in peers)]

    def best(peers, name):
        of_it = [median_ratio(runs) for who, runs in peers.items() if who[0] == name]
        return f"{min(of_it):.2f}" if of_it else "-"

    yield from table(
        ["bytes", *(f"{PEERS[name].name} / ours" for name in names)],
        ([size(each), *(best(peers, name) for name in names)] for each, peers in here.items()),
    )


def wrapped(text):
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_on_hyphens=False,
                         break_long_words=False)


def libraries(rows):
    """What the peers say they are, and the settings that were measured."""
    for name, peer in PEERS.items():
        here = select(rows, peer=name, kind="run")
        if here:
            settings = "; ".join(sorted({row["setting"] for row in here}))
            yield wrapped(f"- {peer.name}, in a program over {here[0]['mpi']}: {settings}.")
        elif select(rows, peer=name):
            yield f"- {peer.name} was not measured: it cannot be had here."
    yield ""


def report(rows, about):
    yield wrapped(
        f"{about} A ratio above 1 says that the fastest peer takes longer. A star: other programs "
        f"disturbed every round, so the figures are not to be trusted."
    )
    yield ""
    yield from libraries(rows)
    sweeps, replays = compared(rows, "sweep", "p50_us"), compared(rows, "replay", "step_p50_ms")
    for ranks in sorted({case[0] for case in sweeps}):
        yield from (f"### The fastest peer beside ours, {ranks} ranks: allreduce of f32", "")
        yield from fastest_table(sweeps, ranks, "us", size)
        yield from ("Each peer, with the best of its settings, in private memory:", "")
        yield from peers_table(sweeps, ranks)
        if any(case[0] == ranks for case in replays):
            yield from (f"### The fastest peer beside ours, {ranks} ranks: gradient sets", "")
            yield from fastest_table(replays, ranks, "ms", str)
