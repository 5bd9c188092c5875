#!/usr/bin/env python3
"""faults.py PART MPIRUN WORKER: puts faults into jobs of WORKER and looks at what comes of them.

    quick     every failpoint once: a rank is killed there; some stops, delays and errors
    starts    ranks that make no session, or late: what the others say of them
    ends      ranks that end in other ways than by a kill; what becomes of a program that lingers
              after a death, and of one that holds its end
    hosts     the same on two simulated hosts where the launcher ends nobody
    kills_of_3, kills_of_4
              every failpoint x victim (first, middle, last) x size (small, large), with so many
              ranks
    operations
              every operation that `train` does not repeat, in a process set and beside a joined
              rank, too: a rank is killed in the middle
    silent_kills
              the same in every allreduce algorithm over messages
    stops     every failpoint: a rank is stopped there for a while, also with four ranks for each
              core
    latency   200 kills of one of 4 ranks: the time until every survivor has its error
    resources what a machine may lack (scarcity.hpp), on one rank or on all: a slower path with one
              warning, or an error with the cause on every rank
    system_calls
              one call of each kind that the library makes fails on a rank: as with resources
    memory    allocations of a rank fail, one or all from there on, anywhere between the time when
              the others know it and the end

Prints counts, and ends with 1 unless every job behaved.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PART, MPIRUN, WORKER = sys.argv[1:4]
MOST_HANGS = 4
LIMIT_S = 60  # a job that takes longer hangs; by the time of an idle machine
HOST = re.escape(socket.gethostname())
ONCE = {"init", "connect", "handshake", "shutdown", "close", "closed"}  # passed once by each rank
SMALL, LARGE = 4, 1 << 22
AT_ONCE = 4  # jobs, where there are many: they spend most of their time on waiting for mpirun
counts = dict.fromkeys(
    (
        "jobs", "faults injected", "hangs", "wrong results", "unnamed culprits", "leftovers",
        "other failures",
    ),
    0,
)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def files_of_ours(folder):
    return {
        str(path) for where in ("/dev/shm", folder) for path in Path(where).rglob("*guozhuang*")
    }


def ends_in_time(process):
    """Time passes as slowly as the machine is loaded, as for the watchdog of tests/support."""
    spent = 0
    while spent < LIMIT_S:
        start = time.monotonic()
        try:
            process.communicate(timeout=1)
            return True
        except subprocess.TimeoutExpired:
            running = int(re.match(r"\S+ \S+ \S+ (\d+)/", Path("/proc/loadavg").read_text())[1])
            spent += (time.monotonic() - start) * min(1, os.cpu_count() / max(running, 1))
    return False


class Job:
    """One run of the worker under mpirun, and what it left behind."""

    def __init__(
        self, scene, ranks=3, size=SMALL, options=(), around=(), before=(), scarce=None, **settings
    ):
        """`around` is a command that runs mpirun, `before` one that runs each rank, `scarce` what
        ranks lack."""
        self.ranks = ranks
        self.what = " ".join([
            scene, f"np={ranks}", f"bytes={size}",
            *(f"{name}={value}" for name, value in settings.items()),
            *around, *before, scarce or "",
        ])
        self.folder = tempfile.TemporaryDirectory(prefix="faults-")
        environment = {
            **os.environ,
            "TMPDIR": self.folder.name,
            **{f"GUOZHUANG_{name}": value for name, value in settings.items()},
        }
        command = [
            *around, MPIRUN, "-np", str(ranks), "--oversubscribe", "--bind-to", "none",
            "--mca", "mpi_yield_when_idle", "1", *options, *before,
        ]
        before = files_of_ours(self.folder.name)
        with tempfile.NamedTemporaryFile("r", prefix="faults-") as said:
            start = time.monotonic()
            process = subprocess.Popen(
                [*command, WORKER, scene, str(size), said.name, *([scarce] if scarce else [])],
                env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.hangs = not ends_in_time(process)
            if self.hangs:
                os.killpg(process.pid, signal.SIGTERM)  # our own mpirun, which ends its ranks
            self.output, _ = process.communicate()
            self.seconds, self.code = time.monotonic() - start, process.returncode
            self.said = [json.loads(line) for line in said]
        self.pids = {each["rank"]: each["pid"] for each in self.said if "begins" in each}
        self.errors = [each for each in self.said if "waited_for" in each]
        deadline = time.monotonic() + 5
        while any(map(alive, self.pids.values())) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.leftovers = (
            [pid for pid in self.pids.values() if alive(pid)]
            + sorted(files_of_ours(self.folder.name) - before)
        )

    def has_failed(self):
        """Under --enable-recovery mpirun ends with 0 whatever happens."""
        return self.code != 0 or re.search(
            r"^guozhuang\[\d+\] (error|warning): ", self.output, re.MULTILINE
        )

    def survivors(self, victim):
        return [rank for rank in range(self.ranks) if rank != victim]

    def describe_death(self, victim, how=r"\(killed by signal 9 \(Killed\)\)"):
        doing = r"(during \S+.*|after it had submitted \S+.*|before its first operation)"
        # mpirun may have taken the status first.
        return (
            rf"rank {victim} \(host {HOST}, pid {self.pids.get(victim, 0)}\) died "
            rf"({how} )?{doing}"
        )


def several(*settings):
    """Pairs of each of these settings and its job."""
    counts["faults injected"] += len(settings)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            yield from zip(settings, pool.map(lambda each: Job(**each), settings))
        finally:
            pool.shutdown(cancel_futures=True)  # those that have not begun, if judge() has given up


def judge(job, problems):
    """Counts and prints what was wrong with a job: pairs of a count's name and a text."""
    problems = list(problems)
    counts["jobs"] += 1
    if job.hangs:
        problems = [("hangs", f"not over after {LIMIT_S} s")]
    problems += [("leftovers", str(left)) for left in job.leftovers]
    problems += [("wrong results", each["wrong"]) for each in job.said if "wrong" in each]
    problems += [
        ("other failures", crash)
        for crash in re.findall(r"signal (?:4|7|8|11) .*", job.output)
    ]
    for kind, text in problems:
        counts[kind] += 1
        print(f"{job.what}: {kind}: {text}")
    if problems:
        print(
            "    " + "\n    ".join([*map(json.dumps, job.said), *job.output.splitlines()]),
            flush=True,
        )
    if counts["hangs"] >= MOST_HANGS:
        sys.exit(f"{counts}: so many jobs hang that the rest is left out")


def last_words_name(job, victim, pattern, ranks=None):
    """Every survivor's last line in the log names the culprit."""
    for rank in job.survivors(victim) if ranks is None else ranks:
        lines = [
            line
            for line in job.output.splitlines()
            if line.startswith((f"guozhuang[{rank}] error: ", f"guozhuang[{rank}] warning: "))
        ]
        if not lines or not re.search(pattern, lines[-1]):
            yield (
                "unnamed culprits",
                f"the last words of rank {rank} are {lines[-1:]}, not {pattern}",
            )


def errors_name(job, victim, pattern, code):
    """Whoever was in the middle of something got an error that names the culprit, the operation and
    the tensor."""
    for error in job.errors:
        named = (
            error["code"] == code
            and error["culprit"] == victim
            and re.search(pattern, error["text"])
        )
        operation = " waits for it" in error["text"]
        if not named or not operation or (error["tensor"] and error["tensor"] not in error["text"]):
            yield "unnamed culprits", f"rank {error['rank']}: {error['text']}"


def killed_at(point, victim, nth, scene="train", **job_settings):
    """What is killed where, for `kill_each`."""
    return {"scene": scene, "FAILPOINT": f"{point}@{victim}:{nth}=kill", **job_settings}


def victim_of(kill):
    return int(re.search(r"@(\d+):", kill["FAILPOINT"])[1])


def kill_each(*kills):
    for kill, job in several(*kills):
        judge(job, problems_of_kill(job, kill["FAILPOINT"].partition("@")[0], victim_of(kill)))


def problems_of_kill(job, point, victim):
    if not job.has_failed():
        yield "other failures", "the fault did not happen"
    if point in ("init", "closed"):  # nobody knows its process yet; nobody waits for it any more
        return
    if point.startswith("segment_"):
        yield from got_errors(job, victim)
    words = job.describe_death(victim)
    yield from last_words_name(job, victim, words)
    yield from errors_name(job, victim, words, "rank_died")


def disturb_each(*disturbances):
    for _, job in several(*({"scene": "train", **each} for each in disturbances)):
        problems = [] if job.code == 0 else [("wrong results", f"exit code {job.code}")]
        judge(job, problems + [("unnamed culprits", "a false death")] * ("died" in job.output))


def stopped_and_named(point, victim, nth, words, scene="train", size=SMALL):
    """A rank that is stopped for a while is named with its state, not declared dead, and the
    numbers are right."""
    counts["faults injected"] += 1
    job = Job(
        scene, size=size, FAILPOINT=f"{point}@{victim}:{nth}=stop:800", STALL_WARN_S="0.1"
    )
    named = re.search(
        rf"rank {victim} {words} \(pid {job.pids.get(victim, 0)}, stopped; ", job.output
    )
    problems = [] if job.code == 0 else [("wrong results", f"exit code {job.code}")]
    judge(job, problems + ([] if named else [("unnamed culprits", "the stopped rank")]))


def stopped_too_long(point, victim, nth, **job_settings):
    """A rank that is stopped for longer than the limit ends the job, by name."""
    counts["faults injected"] += 1
    stop = f"{point}@{victim}:{nth}=stop:8000"
    job = Job("train", FAILPOINT=stop, STALL_ERROR_S="1", **job_settings)
    named = (
        rf"its limit is 1.0 s\).* rank {victim} (has not submitted it|does not come forward) "
        rf"\(pid {job.pids.get(victim, 0)}, stopped; "
    )
    problems = [] if job.has_failed() else [("wrong results", "the job has ended well")]
    problems += [
        ("unnamed culprits", f"rank {error['rank']}: {error['text']}")
        for error in job.errors
        if error["rank"] != victim
        and (error["code"] != "timeout" or not re.search(named, error["text"]))
    ]
    judge(job, problems + list(last_words_name(job, victim, named)) + list(got_errors(job, victim)))


def errs_at(point, victim, nth, **job_settings):
    counts["faults injected"] += 1
    job = Job("train", FAILPOINT=f"{point}@{victim}:{nth}=error", **job_settings)
    problems = [] if job.has_failed() else [("other failures", "the fault did not happen")]
    judge(job, problems + list(last_words_name(job, victim, f"rank {victim} ")))


def points():
    return subprocess.run(
        [WORKER, "points"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()


def nth_of(point, later, ranks=3):
    """The first or third time; of messages, after those by which ranks of one host set up their
    stages."""
    before = 2 * (ranks - 1) if point.startswith("segment_") else 0
    return before + (1 if point in ONCE or not later else 3)


def quick():
    kill_each(*(
        killed_at(point, i % 3, nth_of(point, i % 2), size=(SMALL, LARGE)[i // 3 % 2])
        for i, point in enumerate(points())
    ))
    stops = (
        f"{point}@{i % 3}:1=stop:300"
        for i, point in enumerate(("control_send", "execute", "round_publish", "close"))
    )
    disturb_each(
        *({"FAILPOINT": stop, "size": LARGE} for stop in stops),
        {"FAILPOINT": "segment_send@1:6=delay:20000"},
    )
    setting_up()
    for victim in (0, 1):
        stopped_and_named("submit", victim, 3, "has not submitted it")
        stopped_and_named("round_publish", victim, 1, "does not come forward")
    # A call that is offered may go ahead or be negotiated: that depends on time.
    either = "(has not submitted it|does not come forward)"
    stopped_and_named("round_await", 1, 2, either, "allreduce", LARGE)
    stopped_too_long("submit", 1, 3)
    stopped_too_long("round_publish", 0, 1)
    for i, point in enumerate(("handshake", "submit", "execute", "shutdown")):
        errs_at(point, (i + 1) % 3, 1)


def setting_up():
    """A rank is killed while they set up their stages."""
    counts["faults injected"] += 1
    job = Job("train", FAILPOINT="segment_send@1:1=kill")
    judge(job, last_words_name(job, 1, job.describe_death(1)))


def kills(ranks):
    kill_each(*(
        killed_at(point, victim, nth_of(point, size == LARGE, ranks), ranks=ranks, size=size)
        for point in points()
        for victim in sorted({0, ranks // 2, ranks - 1})
        for size in (SMALL, LARGE)
    ))


def operations():
    over_messages = dict.fromkeys(("adasum",), "segment_receive")
    one_by_one = ("broadcast", "all_gather", "all_to_all", "reduce_scatter")
    staged = dict.fromkeys(
        (
            *one_by_one, "in_a_set", "group", "beside_a_joined_rank", "in_an_arena",
            "shared_in_place",
        ),
        "round_await",
    )
    kill_each(*(
        killed_at(point, 1 + (i + j) % 2, nth_of(point, False) + 1, scene, size=LARGE)
        for i, (scene, middle) in enumerate({**over_messages, **staged}.items())
        for j, point in enumerate(("execute", middle))
    ), killed_at("round_await", 1, nth_of("round_await", False) + 1, "allreduce", size=LARGE))


def hosts():
    """Two ranks on each of two simulated hosts, and a launcher that ends nobody: the survivors of
    both hosts name the culprit, and end."""
    placed = {
        "ranks": 4,
        "size": LARGE,
        "before": (
            "bash", "-c", 'GUOZHUANG_HOST=$((OMPI_COMM_WORLD_RANK / 2)) exec "$@"', "rank"
        ),
        "options": ["--enable-recovery"],
    }
    # The first eight messages of each rank at most set up their stages.
    middle = ("segment_send", "segment_receive", "round_publish", "round_await")
    kill_each(
        *(killed_at(point, victim, 9, **placed) for point in middle for victim in (1, 2)),
        *(
            killed_at(point, victim, 1, **placed)
            for point in ("handshake", "submit", "shutdown", "close")
            for victim in (0, 3)
        ),
    )
    # Within a host, and between them; an all-to-all has no rounds.
    scenes = ("allreduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
    kill_each(*(
        killed_at(point, victim, 12, scene, **placed)
        for point, count in (("round_await", 4), ("segment_send", 5))
        for victim, scene in zip((1, 2, 2, 1, 2), scenes[:count])
    ))
    # In the start of a session MPI_Abort ends those of the other host, who may have said nothing.
    for kill, job in several(*(killed_at("connect", victim, 1, **placed) for victim in (0, 3))):
        victim = victim_of(kill)
        judge(job, last_words_name(
            job, victim, job.describe_death(victim), ranks=[{0: 1, 3: 2}[victim]]
        ))
    for victim in (1, 2):
        errs_at("execute", victim, 3, **placed)
    for scene, words in {
        "quick_exit": r"rank 3 .*died \(exited with code 5\)",
        "throw": r"rank 3 has shut down \(.*data.bin\)",
    }.items():
        counts["faults injected"] += 1
        job = Job(scene, **placed)
        lingering = [
            ("other failures", f"rank {each['rank']} lingers")
            for each in job.said
            if "lingers" in each and scene == "quick_exit"
        ]
        judge(job, [
            *errors_name(job, 3, words, "rank_died" if scene == "quick_exit" else "departed"),
            *got_errors(job, 3),
            *lingering,
        ])
    behind_a_stopped_rank(**placed)
    stopped_too_long("submit", 2, 3, **placed)
    disturb_each(*(
        {"FAILPOINT": f"{point}@{1 + i % 2}:9=stop:300", **placed}
        for i, point in enumerate(middle)
    ))


def behind_a_stopped_rank(**placed):
    """Rank 3 dies while rank 2, the only other one of its host, is stopped: the other host hears
    of it at once, not when rank 2 goes on."""
    counts["faults injected"] += 1
    job = Job("late_exit", FAILPOINT="submit@2:2=stop:6000", **placed)
    heard = {error["rank"]: error["ms"] for error in job.errors}
    late = [rank for rank in (0, 1) if heard.get(rank, 0) > heard.get(2, 0) - 1000]
    judge(job, [
        *errors_name(job, 3, r"rank 3 .*died", "rank_died"),
        *got_errors(job, 3),
        *([("unnamed culprits", f"ranks {late} heard of it with rank 2: {heard}")] if late else []),
    ])


def lone_hosts():
    """One rank on each simulated host, and a launcher that ends nobody: nobody on its host is left
    to tell of a death."""
    placed = {
        "ranks": 2,
        "size": LARGE,
        "before": ("bash", "-c", 'GUOZHUANG_HOST=$OMPI_COMM_WORLD_RANK exec "$@"', "rank"),
        "options": ["--enable-recovery"],
    }
    kills = [
        killed_at(point, i % 2, nth, **placed)
        for i, (point, nth) in enumerate((
            ("connect", 1), ("connect", 1), ("handshake", 1), ("submit", 1), ("segment_send", 5),
            ("segment_receive", 5), ("execute", 3), ("shutdown", 1), ("close", 1),
        ))
    ]
    kills += [{**killed_at("execute", victim, 3, **placed), "ranks": 3} for victim in range(3)]
    for kill, job in several(*kills):
        victim = victim_of(kill)
        words = rf"rank {victim} \(host {HOST}, pid {job.pids.get(victim, 0)}\) died"
        judge(job, [
            *last_words_name(job, victim, words),
            *errors_name(job, victim, words, "rank_died"),
        ])
    for scene, words in {
        "quick_exit": r"rank 1 .*died",
        "throw": r"rank 1 has shut down \(.*data.bin\)",
    }.items():
        counts["faults injected"] += 1
        job = Job(scene, **placed)
        judge(job, [
            *errors_name(job, 1, words, "rank_died" if scene == "quick_exit" else "departed"),
            *got_errors(job, 1),
        ])
    disturb_each(*(
        {"FAILPOINT": f"{point}@{i % 2}:5=stop:1500", **placed}
        for i, point in enumerate(("segment_send", "segment_receive"))
    ))
    few = "socket: Too many open files"
    goes_on(
        {
            f"rank 0 .* cannot connect with this one: {few}": 1,
            "no TCP connection with rank 1 .*: it does not listen": 1,
            f"no TCP connection with rank 0 .*: {few}": 1,
            NO_MEMORY.format("memfd_create", ".*"): 1,
        },
        **placed, scarce="files@1:0",
    )


def starts():
    """A rank that makes no session: the lowest of those who wait for it says what its process does,
    if there is one."""
    waits = r"^the start of the session has been waiting for [\d.]+ s on ranks 0,1; "
    says = {
        "late_init": waits
        + r"rank 2 has made no session \(pid {pid}, sleeping: \S*faults_worker late_init .*\)$",
        "late_session": waits
        + r"rank 2 has made no session \(pid {pid}, sleeping: \S*faults_worker late_session .*\)$",
        "gone": waits + "rank 2 has no process here: ended, or never started$",
        "never": (
            r"^the start of the session is given up after 3\d\.\d s on ranks 0,1; "
            r"rank 2 has made no session \(pid {pid}, "
        ),
    }
    scenes = [
        {
            "scene": scene,
            "STALL_WARN_S": "1",
            **({"STALL_ERROR_S": "0.1"} if scene == "never" else {}),
        }
        for scene in says
    ]
    for (scene, words), (_, job) in zip(says.items(), several(*scenes)):
        said = [
            each
            for each in job.said
            if re.search(words.format(pid=job.pids.get(2)), each.get("warning", ""))
        ]
        problems = [] if said else [("unnamed culprits", f"not said: {words}")]
        problems += [
            ("other failures", f"rank {each['rank']} says it, too")
            for each in job.said
            if scene != "gone"
            and "the start of the session" in each.get("warning", "")
            and each["rank"] != 0
        ]
        judge(job, problems + (
            [] if (job.code == 0) == scene.startswith("late")
            else [("other failures", f"exit code {job.code}")]
        ))
    many_late_starts()
    ended_starts()
    two_deaths_in_a_start()


def many_late_starts():
    """Of many ranks that make no session, four are described, and the others are named."""
    script = '[ "$OMPI_COMM_WORLD_RANK" -lt 2 ] || sleep 4; exec "$0" "$@"'
    job = Job("train", ranks=12, before=["sh", "-c", script], STALL_WARN_S="1")
    late = "".join(rf"; rank {rank} has made no session \(pid \d+, .*\)"
                   for rank in range(2, 6))
    late += "; ranks 6,7,8,9,10,11 have not come either"
    words = rf"warning: the start of .* on ranks 0,1{late}$"
    judge(job, [] if job.code == 0 and re.search(words, job.output, re.MULTILINE) else [
        ("unnamed culprits", f"not said: {words}")
    ])


def ended_starts():
    """A process that was there and has ended before its session began, outside MPI_Init or in it,
    ends the start of the others where the launcher ends nobody. A slow one, or a wrapper, does
    not."""
    on_rank = '[ "$OMPI_COMM_WORLD_RANK" != {} ] || {}; '.format
    run, late = 'exec "$0" "$@"', on_rank(2, "{ sleep 8; exit 1; }")
    scripts = {
        on_rank(1, "{ sleep 2; kill -9 $$; }") + run: [0, 2],
        on_rank(1, "{ sleep 2; exit 1; }") + run: [0, 2],
        late + on_rank(1, "{ (sleep 2; kill -9 $$) & true; }") + run: [0],
        on_rank(1, "sleep 4") + run: [],
        on_rank(2, "sleep 3") + 'sleep 0.2; "$0" "$@"; true': [],
    }
    jobs = several(*(
        {
            "scene": "train",
            "before": ["sh", "-c", script],
            "options": ["--enable-recovery"] if waiting else [],
        }
        for script, waiting in scripts.items()
    ))
    for waiting, (_, job) in zip(scripts.values(), jobs):
        said = len(re.findall("error: .* given up .*the process of rank 1 has ended", job.output))
        judge(job, [] if said == len(waiting) and (waiting or job.code == 0) else [
            ("unnamed culprits", f"{said} ranks say that rank 1 has ended, not {waiting}")
        ])


def two_deaths_in_a_start():
    """Each of the others says once that a rank has died, whichever it heard of first, and ends:
    also if the two were on different hosts, and are watched in different ways."""
    jobs = several(*(
        {
            "scene": "train",
            "ranks": 4,
            "FAILPOINT": "connect@1:1=kill",
            "before": [
                "sh", "-c", f"export GUOZHUANG_HOST=$((OMPI_COMM_WORLD_RANK / {on_a_host})); "
                '[ "$OMPI_COMM_WORLD_RANK" != 2 ] || '
                'export GUOZHUANG_FAILPOINT=connect@2:1=kill; exec "$0" "$@"',
            ],
            "options": ["--enable-recovery"],
        }
        for on_a_host in (2, 4)
    ))
    for _, job in jobs:
        said = [
            len(re.findall(rf"^guozhuang.{rank}. error: rank [12] .* died .*during init$",
                           job.output, re.MULTILINE))
            for rank in (0, 3)
        ]
        judge(job, [] if said == [1, 1] else [
            ("unnamed culprits", f"ranks 0 and 3 say {said} times that a rank has died")
        ])


def message_algorithms():
    """Those that GUOZHUANG_ALGORITHM takes besides auto, by the table of configuration."""
    page = Path(__file__).resolve().parents[2] / "docs/configuration.md"
    (names,) = re.findall(
        r"^\| `GUOZHUANG_ALGORITHM` \|[^|]*\|([^|]*)\|", page.read_text(), re.MULTILINE
    )
    return [name for name in re.split(r", | or ", names.strip()) if name != "auto"]


def silent_kills():
    """Without shared memory nobody knows what the dead one was doing, and it is the survivors' own
    operation that is named."""
    without = [
        killed_at(point, victim, 1, size=size, ALGORITHM=algorithm, SHARED_MEMORY="0")
        for algorithm in message_algorithms()
        for point in ("segment_send", "segment_receive")
        for victim in (0, 1, 2)
        for size in (SMALL, LARGE)
    ]
    for kill, job in several(*without):
        victim = victim_of(kill)
        words = (
            rf"rank {victim} \(host {HOST}, pid {job.pids.get(victim, 0)}\) died"
            rf"(;|$| \(killed by signal 9 \(Killed\)\))"
        )
        judge(job, [
            *last_words_name(job, victim, words),
            *errors_name(job, victim, words, "rank_died"),
        ])


def stops():
    disturb_each(*(
        {
            "FAILPOINT": (
                f"{point}@{(0, ranks // 2, ranks - 1)[i % 3]}"
                f":{nth_of(point, i % 2, ranks)}=stop:300"
            ),
            "ranks": ranks,
            "size": (LARGE, SMALL)[i % 2],
        }
        for i, point in enumerate(points())
        for ranks in (3, 8)
    ))


def ends():
    victim = 2
    died = {
        "crash": r"\(killed by signal 6 \(Aborted\)\)",
        "quick_exit": r"\(exited with code 5\)",
    }
    left = {
        "exit": "its process has called exit() before the session was closed",
        "throw": "std::runtime_error: no such file data.bin",
        "leave": "enough",
    }
    for scene in (
        "exit_failing", "exit_from_a_thread", "exit_in_a_deleter", "exit_in_a_log_callback"
    ):
        left[scene] = left["exit"]
    for (scene, how), (_, job) in zip(died.items(), several(*({"scene": scene} for scene in died))):
        words = job.describe_death(victim, how)
        judge(job, [
            *last_words_name(job, victim, words),
            *errors_name(job, victim, words, "rank_died"),
            *got_errors(job, victim),
        ])
    for reason, (_, job) in zip(left.values(), several(*({"scene": scene} for scene in left))):
        words = rf"rank {victim} has shut down \({re.escape(reason)}\); \S+ '.*' waits for it"
        judge(job, [*errors_name(job, victim, words, "departed"), *got_errors(job, victim)])
    falls()
    for on_death in ("exit", "report"):
        lingers(victim, on_death)
    for scene, expected in {"saves": ["whole"] * 2, "saves_for_ever": []}.items():
        saves(victim, scene, expected)
    for fault in (None, "execute@1:3=kill"):
        side_by_side(fault)


def falls():
    """The last rank ends, and others because of it, one after the other: a late rank hears of the
    first of them. Nobody is ended meanwhile."""
    ends = ("closed", "closed_unwinding", "killed")
    alone = {"ranks": 4, "options": ["--enable-recovery"], "ON_DEATH": "report"}
    for _, job in several(*({"scene": f"falls_{end}", **alone} for end in ends)):
        late = [error for error in job.errors if error["rank"] == 2]
        judge(job, [("unnamed culprits", "rank 2 got no error")] * (not late) + [
            ("unnamed culprits", f"rank 2: {error['text']}")
            for error in late
            if error["culprit"] != 3 or "rank 3 " not in error["text"]
        ])


def side_by_side(fault):
    """Two jobs of the same program and names at once: one is in no hurry, and whatever befalls the
    other does not disturb it."""
    slow = {"FAILPOINT": "submit@0:3=delay:800000"}
    counts["faults injected"] += bool(fault)
    with ThreadPoolExecutor() as both:
        first, second = both.map(
            lambda settings: Job("train", **settings),
            (slow, {"FAILPOINT": fault} if fault else slow),
        )
    judge(first, [] if first.code == 0 else [
        ("wrong results", f"exit code {first.code} beside another job")
    ])
    judge(second, (
        problems_of_kill(second, "execute", 1) if fault
        else [] if second.code == 0
        else [("wrong results", f"exit code {second.code}")]
    ))


def got_errors(job, victim):
    for rank in job.survivors(victim):
        if not any(error["rank"] == rank for error in job.errors):
            yield "unnamed culprits", f"rank {rank} got no error"


def lingers(victim, on_death):
    """Where mpirun lets it live, a program that lingers after a death is ended, unless it wants to
    decide for itself."""
    counts["faults injected"] += 1
    job = Job("quick_exit", options=["--enable-recovery"], ON_DEATH=on_death)
    lingering = {each["rank"] for each in job.said if "lingers" in each}
    expected = set(job.survivors(victim)) if on_death == "report" else set()
    wrong = (
        [("other failures", f"those who lingered: {lingering}, not {expected}")]
        if lingering != expected else []
    )
    judge(job, wrong + list(
        last_words_name(job, victim, job.describe_death(victim, r"\(exited with code 5\)"))
    ))


def saves(victim, scene, expected):
    """Whoever holds the end of its process finishes what it does, if that does not take for
    ever."""
    counts["faults injected"] += 1
    job = Job(scene, options=["--enable-recovery"])
    saved = [each["checkpoint"] for each in job.said if "checkpoint" in each]
    wrong = [("other failures", f"saved: {saved}, not {expected}")] if saved != expected else []
    judge(job, wrong + list(
        last_words_name(job, victim, job.describe_death(victim, r"\(exited with code 5\)"))
    ))


def latency():
    times = []
    for settings, job in several(
        *({"scene": "killed", "ranks": 4, "size": number} for number in range(200))
    ):
        victim = settings["size"] % 4
        words = job.describe_death(victim)
        judge(job, [*errors_name(job, victim, words, "rank_died"), *got_errors(job, victim)])
        killed = [each["ms"] for each in job.said if "killed" in each]
        times += [error["ms"] - killed[0] for error in job.errors if killed]
    times.sort()
    if times:
        at = lambda share: times[min(len(times) - 1, int(share * len(times)))]
        print(
            f"Time from a kill to the error on a survivor, {AT_ONCE} jobs at once, ms: "
            f"p50 {at(0.5):.2f}, p99 {at(0.99):.2f}, max {times[-1]:.2f}, of {len(times)}"
        )
        if times[-1] > 10_000:
            counts["hangs"] += 1


def goes_on(warnings, scene="train", **job_settings):
    """The job does its work all the same, and each of these patterns is in as many warnings as
    said; there are no others."""
    counts["faults injected"] += 1
    job = Job(scene, **job_settings)
    judge(job, problems_going_on(job, warnings))
    return job


def problems_going_on(job, warnings):
    if job.code != 0:
        yield "other failures", f"exit code {job.code}"
    lines = re.findall(r"^guozhuang.* (?:warning|error): .*", job.output, re.MULTILINE)
    for pattern, times in warnings.items():
        found = [line for line in lines if re.search(pattern, line)]
        if len(found) != times:
            yield "other failures", f"{len(found)} warnings instead of {times}: {pattern}"
        lines = [line for line in lines if line not in found]
    for line in lines:
        yield "other failures", line


def fails_everywhere(why, culprit=None, echo="", **job_settings):
    """Every rank's last words have the cause; those of others than the culprit begin with the
    echo."""
    counts["faults injected"] += 1
    job = Job("train", **job_settings)
    own = [] if culprit is None else last_words_name(job, None, ": " + why, ranks=[culprit])
    judge(job, [
        *([] if job.code else [("other failures", "the fault did not happen")]),
        *own,
        *last_words_name(job, culprit, echo + why),
    ])


NO_MEMORY = r"no memory shared by the ranks of this host \({}: {}\)"
NO_THREAD = "the world: no thread for its coordinator: Resource temporarily unavailable"


def resources():
    few = "Too many open files"
    goes_on(
        {NO_MEMORY.format(r"/proc/\d+/fd/\d+", few): 1, f"pidfd_open: {few}": 1},
        scarce="files@1:0",
    )
    goes_on(
        {NO_MEMORY.format("memfd_create", few): 1, f"pidfd_open: {few}": 3},
        scarce="files@all:1", size=LARGE,
    )
    goes_on(
        {NO_MEMORY.format("ftruncate", "File too large"): 1}, scarce="file_bytes@0:0", size=LARGE
    )
    goes_on(
        {r"the world: no memory to stage in \(ftruncate: File too large\)": 1},
        scarce="file_bytes@0:4194304", size=LARGE,
    )
    goes_on(
        {"GradientArena is private: ftruncate: File too large": 4},  # there are four
        "in_an_arena", scarce="file_bytes@1:8388608", size=LARGE,
    )
    for threads in (0, 3):  # three watch the others: one at the start, two after each other
        fails_everywhere(
            NO_THREAD, culprit=1, echo="rank 1 has ended the job: ", scarce=f"threads@1:{threads}"
        )
    fails_everywhere(NO_THREAD, scarce="threads@all:3")
    fails_everywhere("rank 1 .*died|" + NO_THREAD, scarce="memory@1:0")
    wrong = "GUOZHUANG_FUSION_BYTES='abc' is not acceptable: it must be 0 to 1G bytes"
    fails_everywhere(wrong + ".*need be$", FUSION_BYTES="abc")
    fails_everywhere(
        wrong + r".*need be \(on rank 1\)$",
        before=on_rank_1("export GUOZHUANG_FUSION_BYTES=abc"),
    )
    timelines()
    small_mounts()


def on_rank_1(command):
    return ["sh", "-c", f'[ "$OMPI_COMM_WORLD_RANK" != 1 ] || {{ {command}; }}; exec "$0" "$@"']


def timelines():
    """A file that may not grow does not end a job."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        goes_on(
            {"no timeline is recorded in .*File too large.*on rank 2": 1},
            TIMELINE=f"{folder}/limited", scarce="file_bytes@2:0",
        )


def small_mounts():
    """What is mounted is seen by the job alone: that takes a privilege."""
    if subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"],
        stderr=subprocess.DEVNULL, check=False,
    ).returncode != 0:
        return print(
            "skipped, for lack of the right to mount: /dev/shm full or missing, "
            "a full disk for the timeline"
        )
    for options in ("size=64k", "ro,mode=0555"):
        goes_on(
            {},
            around=[
                "unshare", "-m", "sh", "-c",
                f'mount -t tmpfs -o {options} none /dev/shm && exec "$0" "$@"',
            ],
            size=LARGE,
        )
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        mount = (
            f'mkdir {folder}/disk && mount -t tmpfs -o size=16k none {folder}/disk && "$0" "$@"; '
            f'code=$?; cp -r {folder}/disk {folder}/kept; exit $code'
        )
        goes_on(
            {"the timeline .* ends early: .*No space left on device": 3},
            around=["unshare", "-m", "sh", "-c", mount], TIMELINE=f"{folder}/disk/",
        )
        for rank in range(3):
            json.loads(Path(f"{folder}/kept/rank{rank}.json").read_text())


CALLS = (
    "memfd_create", "ftruncate", "posix_fallocate", "mmap", "mremap", "madvise", "eventfd",
    "pidfd_open", "futex",
)


def system_calls():
    """The first, second or fourth call of each fails on rank 1, if it makes as many."""
    reached = set()
    for settings, job in several(*(
        {"scene": scene, "scarce": f"{call}@1:{nth}", "size": LARGE}
        for call in CALLS
        for scene in ("train", "in_an_arena", "shared_in_place")
        for nth in (0, 1, 3)
    )):
        call = settings["scarce"].partition("@")[0]
        has_failed = f"made {call} fail" in job.output
        counts["faults injected"] -= not has_failed
        reached |= {call} if has_failed else set()
        lacks = r"(Too many open files|No space left on device|Cannot allocate memory)"
        judge(job, [] if job.code == 0 else last_words_name(job, 1, f"{call}.*{lacks}"))
    if reached != set(CALLS):
        counts["other failures"] += 1
        print(f"no job made these calls: {sorted(set(CALLS) - reached)}")


def memory():
    for _, job in several(*(
        {"scene": "train", "scarce": f"{kind}@1:{number}"}
        for kind in ("allocation", "allocations")
        for number in range(0, 600, 37)
    )):
        counts["faults injected"] -= job.code == 0
        judge(job, problems_without_memory(job))
    if counts["faults injected"] < 10:
        counts["other failures"] += 1
        print("the faults did not happen")


def problems_without_memory(job):
    """Whoever has none left says so, where there is memory to say it, and the others name it. What
    is late enough may not be missed."""
    # An exception that nobody catches, or MPI's own end.
    dies = job.describe_death(1, r"\((killed by signal 6 \(Aborted\)|exited with code \d+)\)")
    return [] if job.code == 0 else last_words_name(
        job, 1, f"rank 1 has (ended the job|shut down).*(memory|bad_alloc)|{dies}"
    )


{
    "quick": quick, "kills_of_3": lambda: kills(3), "kills_of_4": lambda: kills(4),
    "operations": operations, "hosts": hosts, "lone_hosts": lone_hosts,
    "silent_kills": silent_kills, "stops": stops, "starts": starts, "ends": ends,
    "latency": latency, "resources": resources, "system_calls": system_calls, "memory": memory,
}[PART]()
print(", ".join(f"{name}: {count}" for name, count in counts.items()))
sys.exit(any(count for name, count in counts.items() if name not in ("jobs", "faults injected")))
