#!/usr/bin/env python3
"""two_hosts.py MPIRUN RANKS COMMAND...: runs the command on that many ranks on each of two hosts.
The hosts are network namespaces of this machine with a cable between them, each with a name of its
own, so that MPI finds two hosts, and no way but TCP from one to the other.

Ends as the command does; with 77 and `SKIP: why` where this machine permits no such hosts, and with
1 where it permits them and has not the tools. Open MPI's mpirun, whose agent (for rsh) it replaces.
"""
import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
NETWORK = "10.213.77."  # nobody else's: it is in the namespaces alone
NAMES = [f"gz{os.getpid()}h{host}" for host in (0, 1)]
ADDRESSES = [f"{NETWORK}{host + 1}" for host in (0, 1)]

# What mpirun calls in the place of rsh: AGENT ADDRESS COMMAND...
AGENT = f"""#!/bin/sh
case $1 in
    {ADDRESSES[0]}) host={NAMES[0]} ;;
    {ADDRESSES[1]}) host={NAMES[1]} ;;
    *) echo "no host $1" >&2; exit 1 ;;
esac
shift
exec ip netns exec $host unshare --uts sh -c 'hostname "$0" && exec sh -c "$*"' $host "$@"
"""


def require(*command):
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20
        )
    except OSError as error:
        sys.exit(fail_or_skip(f"{command[0]}: {error.strerror}; ./run test --all installs it"))
    if done.returncode != 0:
        sys.exit(fail_or_skip(f"{shlex.join(command)}: {done.stdout.strip()}"))
    return done.stdout


def are_hosts_permitted():
    """Whether a process may have a network, mounts and a host's name of its own. Asked of the
    kernel, in a child, since no tool need be there."""
    new_mounts, new_name, new_network = 0x00020000, 0x04000000, 0x40000000
    child = os.fork()
    if child == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(new_mounts | new_name | new_network) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def fail_or_skip(why):
    """What the kernel does not permit, or has not got, is skipped; all else is a defect of the test
    or of the machine's set-up."""
    if not are_hosts_permitted() or re.search(
        "not permitted|not supported|Permission denied|Unknown device type", why
    ):
        return skip(why)
    print(f"This machine permits hosts of their own, and yet: {why}")
    return 1


def skip(why):
    print(f"SKIP: {why}")
    return SKIPPED


def build():
    for name in NAMES:
        require("ip", "netns", "add", name)
    require(
        "ip", "link", "add", "cable", "netns", NAMES[0],
        "type", "veth", "peer", "name", "cable", "netns", NAMES[1],
    )
    for name, address in zip(NAMES, ADDRESSES):
        require("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "cable")
        require("ip", "-n", name, "link", "set", "lo", "up")
        require("ip", "-n", name, "link", "set", "cable", "up")
        require("ip", "netns", "exec", name, "unshare", "--uts", "hostname", name)


def tear_down():
    for name in NAMES if shutil.which("ip") else []:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def run(mpirun, ranks, command):
    with tempfile.TemporaryDirectory() as directory:
        agent = Path(directory) / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        networks = [f"{NETWORK}0/24"]
        options = [
            "--mca", "plm_rsh_agent", str(agent), "--mca", "pml", "ob1",
            "--mca", "btl", "self,vader,tcp",
            "--mca", "btl_tcp_if_include", *networks, "--mca", "oob_tcp_if_include", *networks,
            "--host", ",".join(f"{address}:{ranks}" for address in ADDRESSES),
            "-np", str(2 * ranks), "--oversubscribe", "--bind-to", "none",
            "--mca", "mpi_yield_when_idle", "1",
        ]
        job = shlex.join([mpirun, *options, *command])
        return subprocess.run([str(agent), ADDRESSES[0], job], check=False).returncode


def main():
    mpirun, ranks, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if not any(name in require(mpirun, "--version") for name in ("Open MPI", "OpenRTE")):
        return skip("the mpirun is not Open MPI's")
    try:
        build()
        return run(mpirun, ranks, command)
    finally:
        tear_down()


sys.exit(main())
