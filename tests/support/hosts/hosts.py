#!/usr/bin/env python3
"""Runs a command on ranks on several hosts.

    hosts.py [--rate BITS] [--delay MS] [--loss PERCENT] [--no-udp] [--sysctl NAME=VALUE] [--count]
             [--strangers] CABLE MPIRUN RANKS COMMAND...

RANKS: how many on each host, "2,2". The hosts are network namespaces of this machine with names and
a /dev/shm of their own, so that MPI finds several hosts, and no way but TCP from one to the other.
CABLE (cable.cpp) moves their packets, with a rate in bits per second and a delay from host to host,
and loses some, or all datagrams. --sysctl (may be repeated) sets a variable of each host's kernel,
of those that belong to a network. With --count a line says at the end what each host has sent. With
--strangers the first address of each host leads to somebody silent.

Ends as the command does; with 77 and `SKIP: why` where this machine permits no such hosts, and with
1 where it permits them and has not the tools. MPIRUN: Open MPI's, whose agent (for rsh) it
replaces, or gzrun; options for it may come first in the command.
"""
import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
UDP = 17  # in an IP header
NETWORK = "10.213.77."  # nobody else's: it is in the namespaces alone
STRANGER = "10.213.78.1"
PORTS = range(33000, 33300)  # of the first host; the next one has as many after them
NEW_NETWORK, NEW_NAME, NEW_MOUNTS = 0x40000000, 0x04000000, 0x00020000  # of unshare and setns
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
LIBC = ctypes.CDLL(None, use_errno=True)


class Missing(Exception):
    """What the hosts need, and the machine has not got or does not permit."""


def require(*command):
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20
        )
    except OSError as error:
        raise Missing(f"{command[0]}: {error.strerror}; ./run test --all installs it") from None
    if done.returncode != 0:
        raise Missing(f"{shlex.join(command)}: {done.stdout.strip()}")
    return done.stdout


def are_hosts_permitted():
    """Whether a process may have a network, mounts and a host's name of its own. Asked of the
    kernel, in a child, since no tool need be there."""
    child = os.fork()
    if child == 0:
        os._exit(0 if LIBC.unshare(NEW_MOUNTS | NEW_NAME | NEW_NETWORK) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def fail_or_skip(why):
    """What the kernel does not permit, or has not got, is skipped; all else is a defect of the test
    or of the machine's set-up."""
    if not are_hosts_permitted() or re.search(
        "not permitted|not supported|Permission denied|Unknown device type|No such device|"
        "Read-only file system", why
    ):
        print(f"SKIP: {why}")
        return SKIPPED
    print(f"This machine permits hosts of their own, and yet: {why}")
    return 1


def enter(network):
    if LIBC.setns(network, NEW_NETWORK) != 0:
        raise Missing(f"setns: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def within(name):
    with open("/proc/self/ns/net", "rb") as own, open(f"/run/netns/{name}", "rb") as network:
        enter(network.fileno())
        try:
            yield
        finally:
            enter(own.fileno())


def device_of(name, interface):
    """The device of a host, which carries the packets of an interface."""
    with within(name):
        try:
            if not os.path.exists("/dev/net/tun"):
                raise Missing("/dev/net/tun: not supported")
            device = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", interface, IFF_TUN | IFF_NO_PI))
            return device
        except OSError as error:
            raise Missing(f"/dev/net/tun: {error.strerror}") from None


def strangers_on(names):
    """Sockets that connect, and whose process never answers."""
    sockets = []
    for number, name in enumerate(names):
        with within(name):
            begin = PORTS.start + number * len(PORTS)
            try:
                Path("/proc/sys/net/ipv4/ip_local_port_range").write_text(
                    f"{begin} {begin + len(PORTS) - 1}")
            except OSError as error:
                raise Missing(f"{error.filename}: {error.strerror}") from None
            for port in range(PORTS.start, PORTS.start + len(names) * len(PORTS)):
                if not begin <= port < begin + len(PORTS):
                    sockets.append(socket.create_server((STRANGER, port)))
    return sockets


class Hosts:
    """They are there within a with statement."""

    def __init__(self, ranks, cable, rate=0, delay=0, loss=0, refused=-1, settings=(),
                 strangers=False):
        self.ranks = ranks
        self.names = [f"gz{os.getpid()}h{host}" for host in range(len(ranks))]
        self.addresses = [f"{NETWORK}{host + 1}" for host in range(len(ranks))]
        self.settings = settings
        self.command = [cable, *map(str, (rate, delay, loss, refused))]
        self.directory = tempfile.TemporaryDirectory()
        self.cable = None
        self.strangers = [] if strangers else None

    def __enter__(self):
        try:
            devices = [self.build(*host) for host in zip(self.names, self.addresses)]
            if self.strangers is not None:
                self.strangers += strangers_on(self.names)
            self.cable = subprocess.Popen(
                [*self.command, *map(str, devices)], stdin=subprocess.PIPE, pass_fds=devices
            )
            for device in devices:
                os.close(device)
            self.agent = self.write_agent()
        except BaseException:
            self.tear_down()
            raise
        return self

    def __exit__(self, *_):
        self.tear_down()

    def build(self, name, address):
        if Path("/run/netns", name).exists():  # of a process that was killed
            require("ip", "netns", "del", name)
        require("ip", "netns", "add", name)
        if self.strangers is not None:
            self.strangers.append(os.fdopen(device_of(name, b"other"), "rb", 0))
            require("ip", "-n", name, "addr", "add", f"{STRANGER}/32", "dev", "other")
            require("ip", "-n", name, "link", "set", "other", "up")
        device = device_of(name, b"cable")
        require("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "cable")
        require("ip", "-n", name, "link", "set", "lo", "up")
        # As long a queue as a cable may have; jumbo frames, which take less time of the machine.
        require("ip", "-n", name, "link", "set", "cable", "up", "mtu", "9000", "txqueuelen", "9999")
        for setting in self.settings:
            require("ip", "netns", "exec", name, "sysctl", "--quiet", "--write", setting)
        return device

    def tear_down(self):
        for each in self.strangers or []:
            each.close()
        if self.cable is not None:
            self.cable.stdin.close()
            self.cable.wait()
        for name in self.names if shutil.which("ip") else []:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)
        self.directory.cleanup()

    def lose(self, one, other, percent):
        """Sets the loss between two hosts, by number, in percent; 100 cuts the link."""
        self.cable.stdin.write(f"{one} {other} {percent}\n".encode())
        self.cable.stdin.flush()

    def sent(self):
        """The packets and bytes that each host has sent."""
        for name in self.names:
            shown = require("ip", "-n", name, "-s", "-j", "link", "show", "dev", "cable")
            counts = json.loads(shown)[0]["stats64"]["tx"]
            yield counts["packets"], counts["bytes"]

    def write_agent(self):
        """What mpirun calls in the place of rsh: AGENT ADDRESS COMMAND..."""
        cases = "\n".join(f"    {address}) host={name} ;;"
                          for address, name in zip(self.addresses, self.names))
        agent = Path(self.directory.name) / "agent"
        agent.write_text(f"""#!/bin/sh
case $1 in
{cases}
    *) echo "no host $1" >&2; exit 1 ;;
esac
shift
exec ip netns exec $host unshare --uts --mount sh -c 'hostname "$0" &&
    mount -t tmpfs tmpfs /dev/shm && exec sh -c "$*"' $host "$@"
""")
        agent.chmod(0o755)
        return agent

    def command_of(self, mpirun, command):
        """Runs it on all ranks. `mpirun` may be gzrun; the command begins with further options."""
        if Path(mpirun).name == "gzrun":
            return self.by_gzrun("openmpi4", mpirun, None, command)
        networks = f"{NETWORK}0/24"
        hosts = ",".join(map("{}:{}".format, self.addresses, self.ranks))
        options = [
            "--mca", "plm_rsh_agent", str(self.agent), "--mca", "pml", "ob1",
            "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
        ]
        ranks = ["-np", str(sum(self.ranks))]
        given = [
            *options, "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", networks,
            "--mca", "oob_tcp_if_include", networks, "--host", hosts, "--oversubscribe",
        ]
        job = shlex.join([mpirun, *ranks, *given, *command])
        return [str(self.agent), self.addresses[0], job]

    def by_gzrun(self, mpi, gzrun, launcher, command):
        """Runs it on all ranks, under an MPI by its name in tests/mpis. The command begins with
        further options of gzrun. `launcher`: None leaves it to gzrun or those options."""
        agent = f"-launcher rsh -launcher-exec {self.agent}"
        network, options = {
            "openmpi4": (f"{NETWORK}0/24", f"--mca plm_rsh_agent {self.agent}"),
            "openmpi5": ("cable", f"--prtemca plm_ssh_agent {self.agent}"),
            "mpich": ("cable", agent), "impi": ("cable", agent),
        }[mpi]
        if "open" in mpi:
            options += " --mca pml ob1 --bind-to none --mca mpi_yield_when_idle 1"
        hosts = ",".join(map("{}:{}".format, self.addresses, self.ranks))
        return [str(self.agent), self.addresses[0], shlex.join(map(str, (
            gzrun, *(["--mpirun", launcher] if launcher else []), "-np", sum(self.ranks),
            "--interface", network, "-H", hosts, "--launcher-options", options, *command,
        )))]

    def run(self, mpirun, command):
        """Returns how it has ended."""
        with subprocess.Popen(self.command_of(mpirun, command)) as running:
            try:
                return running.wait()
            finally:
                running.terminate()  # after Ctrl-C, for instance: mpirun then ends its ranks


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--loss", type=float, default=0)
    parser.add_argument("--no-udp", dest="refused", action="store_const", const=UDP, default=-1)
    parser.add_argument("--sysctl", action="append", default=[])
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--strangers", action="store_true")
    parser.add_argument("cable")
    parser.add_argument("mpirun")
    parser.add_argument("ranks")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the hosts are torn down
    try:
        mpirun = "mpirun" if Path(given.mpirun).name == "gzrun" else given.mpirun
        if not any(name in require(mpirun, "--version") for name in ("Open MPI", "OpenRTE")):
            print("SKIP: the mpirun is not Open MPI's")
            return SKIPPED
        with Hosts([int(ranks) for ranks in given.ranks.split(",")], given.cable, given.rate,
                   given.delay, given.loss, given.refused, given.sysctl,
                   given.strangers) as hosts:
            ended = hosts.run(given.mpirun, given.command)
            for number, (packets, sent) in enumerate(hosts.sent() if given.count else []):
                print(f"host {number} has sent {packets} packets, {sent} bytes")
            return ended
    except Missing as why:
        return fail_or_skip(str(why))


if __name__ == "__main__":
    sys.exit(main())
