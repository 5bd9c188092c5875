#!/usr/bin/env python3
"""shrink.py PART GZRUN SHRINKING ELASTIC [CABLE [ROUNDS]]: jobs go on without the ranks that die.

    deaths    on this machine, of SHRINKING's ranks
    scenes    and whatever else that offers, and ELASTIC, the example
    hosts     the same deaths on two hosts that only CABLE connects; 77: not permitted
    cut       on those hosts, whose cable is set down; then on three, two of which are cut off from
              each other
    kills     on those hosts ranks are killed from outside, at random times, ROUNDS times
"""
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

PART, GZRUN, SHRINKING, ELASTIC = sys.argv[1:5]
CABLE = sys.argv[5] if len(sys.argv) > 5 else ""
ROUNDS = int(sys.argv[6]) if len(sys.argv) > 6 else 5
LIMIT_S = 300  # a job that takes longer hangs


def run(ranks, least, *program, code=0, says=(), hosts=None):
    """Returns its output. Each of `says` is somewhere in it. `least` 0: without --min-np."""
    options = [*(["--min-np", str(least)] if least else []), "--grace", "10", *program]
    command = hosts.command_of(GZRUN, options) if hosts else [GZRUN, "-np", str(ranks), *options]
    job = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    assert job.returncode == code, (command, job.returncode, job.stdout)
    for pattern in says:
        assert re.search(pattern, job.stdout), (pattern, job.stdout)
    return job.stdout


def through(ranks):
    return [f"rank {rank} of {ranks} is through" for rank in range(ranks)]


def check_deaths():
    for ranks, deaths, left in (2, "20:1", 1), (4, "20:1,40:0", 2), (7, "20:1,20:2,25:0,25:3", 3):
        run(ranks, left, SHRINKING, "steps", deaths, says=through(left))


def check_scenes():
    run(3, 2, SHRINKING, "old", says=through(2))
    run(3, 2, SHRINKING, "leave", says=through(2))
    run(3, 2, SHRINKING, "late", says=through(2))
    run(3, 3, SHRINKING, "stopped", code=128 + signal.SIGKILL,
        says=["shrink: rank 1 neither called it in time nor died"])
    run(4, 2, SHRINKING, "lost", says=through(2))
    run(3, 3, SHRINKING, "nobody", says=through(3))
    run(2, 2, SHRINKING, "unwanted", says=[*through(2), "made without SessionOptions::time_to"])
    said = run(3, 1, ELASTIC, "--steps", "60", "--kill-every", "25",
               says=["rank 2 .* died .*: 2 ranks go on", "rank 1 .* died .*: 1 ranks go on"])
    assert re.search("^accuracy=0[.][5-9][0-9]* ranks=1$", said, re.MULTILINE), said
    assert "time_to_shrink" not in said, said
    run(2, 0, SHRINKING, "steps", "20:9", says=["time_to_shrink: gzrun ends the ranks"])


def check_hosts(hosts):
    run(4, 2, SHRINKING, "steps", "20:2,40:0", says=through(2), hosts=hosts)
    run(4, 2, SHRINKING, "steps", "20:2,20:3", says=through(2), hosts=hosts)  # a whole host
    run(4, 1, SHRINKING, "steps", "20:1,20:2,20:3", says=through(1), hosts=hosts)
    run(4, 3, SHRINKING, "old", says=through(3), hosts=hosts)


def start(hosts, scene):
    """Returns the job, the pids of its ranks, and its lines so far."""
    command = hosts.command_of(GZRUN, ["--min-np", "2", "--grace", "10", SHRINKING, scene])
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids, lines = {}, []
    while len(pids) < sum(hosts.ranks):
        lines.append(job.stdout.readline())
        assert lines[-1], lines
        if found := re.match(r"rank (\d) has pid (\d+)$", lines[-1]):
            pids[found[1]] = int(found[2])
    return job, pids, lines


def set_cable(hosts, state):
    subprocess.run(["ip", "-n", hosts.names[1], "link", "set", "cable", state], check=True)


def check_cut(hosts):
    """Of two halves the one with rank 0 goes on. What the other says arrives when the cable is
    back."""
    os.environ["GUOZHUANG_HOST_LIMIT_S"] = "2"
    job, _, lines = start(hosts, "cut")
    with job:
        set_cable(hosts, "down")
        while not all(line + "\n" in lines for line in through(2)):
            lines.append(job.stdout.readline())
            assert lines[-1], lines
        time.sleep(3)  # for the other half to hear of its broken links
        set_cable(hosts, "up")
        lines += job.stdout
    said = "".join(lines)
    assert job.returncode == 0, (job.returncode, said)
    assert said.count("shrink: ranks 0,1 cannot be reached and may be alive") == 2, said


def check_cut_link(hosts):
    """If two ranks cannot reach each other, one goes on with the third."""
    job, _, lines = start(hosts, "cut")
    with job:
        hosts.lose(1, 2, 100)
        lines += job.stdout
    said = "".join(lines)
    assert job.returncode == 0 and all(line + "\n" in lines for line in through(2)), said
    assert len(re.findall("shrink: other ranks cannot reach this one, rank [12],", said)) == 1, said


def kill_and_watch(hosts, seed):
    """Kills a rank. Returns how long it took until the
    others went on, in seconds."""
    draw = random.Random(seed)
    job, pids, lines = start(hosts, "slow")
    with job:
        time.sleep(draw.random() / 2)
        subprocess.run(["kill", "-9", str(pids[draw.choice(sorted(pids))])], check=True)
        begin, end = time.monotonic(), None
        for line in job.stdout:
            lines.append(line)
            if re.match("rank . is rank . of 3", line):
                end = time.monotonic()
        assert job.wait() == 0 and end, (seed, job.returncode, "".join(lines))
        for line in through(3):
            assert line + "\n" in lines, (seed, line, "".join(lines))
        return end - begin


def check_kills(hosts):
    times = sorted(kill_and_watch(hosts, seed) for seed in range(ROUNDS))
    print(f"{ROUNDS} kills; seconds until all others had gone on: median "
          f"{times[ROUNDS // 2]:.3f}, the longest {times[-1]:.3f}")


def main():
    if PART in ("deaths", "scenes"):
        return {"deaths": check_deaths, "scenes": check_scenes}[PART]()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support/hosts"))
    import hosts as support  # pylint: disable=import-outside-toplevel

    try:
        with support.Hosts([2, 2], CABLE) as hosts:
            {"hosts": check_hosts, "cut": check_cut, "kills": check_kills}[PART](hosts)
        if PART == "cut":
            with support.Hosts([1, 1, 1], CABLE) as hosts:
                check_cut_link(hosts)
        return 0
    except support.Missing as why:
        return support.fail_or_skip(str(why))


sys.exit(main())
