"""What it costs to use the library from Python: an allreduce and a replay of a training step beside
the same in C++ (gz-perf), and a step of training beside PyTorch's DistributedDataParallel over
Gloo.

mpirun -np 2 python3 perf/python/gz_perf_python.py step --network wide
python3 perf/python/gz_perf_python.py compare --gz-perf build/release/bin/gz-perf
"""
import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETS = Path(__file__).parents[1] / "gradient_sets"


def median_time(call, repetitions, begins_together=False):
    """In seconds, of the slowest rank each time."""
    times = []
    for _ in range(repetitions):
        if begins_together:
            guozhuang.barrier()
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(guozhuang.allreduce(numpy.array(times), op=guozhuang.Max))


def print_figure(series, seconds):
    """As a line for compare()."""
    if hvd.rank() == 0:
        print(json.dumps({"series": series, "seconds": seconds}), flush=True)


# --- beside gz-perf -------------------------------------------------------------------------------

def allreduce(arguments):
    """Of 4 bytes."""
    array, tensor = numpy.ones(1, numpy.float32), torch.ones(1)
    for series, call in {
        "numpy": lambda: guozhuang.allreduce_(array, op=guozhuang.Sum, name="numpy"),
        "torch": lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="torch"),
    }.items():
        median_time(call, 100)
        print_figure(series, median_time(call, arguments.repetitions))


def replay(arguments):
    """Of the gradients of a set, without compute: by the reducer of the optimizer and in its
    buffers, and by an operation for each gradient."""
    shapes = json.loads((SETS / f"{arguments.set}.json").read_text())
    values = [torch.ones(shape) for shape in shapes.values()]
    reducer = Reducer([*map(Gradient, shapes, values)], Options(hvd.global_process_set),
                      Arena(hvd.global_process_set), "gz-perf")

    def by_reducer():
        for index in reversed(range(len(values))):
            reducer.mark(index)
        reducer.synchronize()
        reducer.finish()

    def by_operations():
        for handle in [hvd.allreduce_async_(gradient, name=name)
                       for name, gradient in zip(reversed(shapes), reversed(values))]:
            hvd.synchronize(handle)

    for series, step in {"reducer": by_reducer, "operations": by_operations}.items():
        median_time(step, 3)
        print_figure(series, median_time(step, arguments.steps, begins_together=True))


def compare(arguments):
    """Runs the two above and gz-perf in turns, whose gradients are in an arena as the reducer's
    are."""
    mpirun = ["mpirun", "-np", str(arguments.ranks), "--oversubscribe"]
    python, cpp = [*mpirun, sys.executable, __file__], [*mpirun, arguments.gz_perf]
    repetitions = ["--repetitions", str(arguments.repetitions)]
    steps = ["--set", "resnet50", "--steps", str(arguments.steps)]
    print(f"{'':14} {'series':12} {'median':>9} {'min':>9} {'max':>9}")
    compare_one("4 bytes, us", arguments.rounds, 1e6, [*python, "allreduce", *repetitions],
                [*cpp, "allreduce", "--max-bytes", "4"], "p50_us")
    compare_one("resnet50, ms", arguments.rounds, 1e3, [*python, "replay", *steps],
                [*cpp, "replay", *steps, "--memory", "arena"], "step_p50_ms")


def compare_one(title, rounds, scale, python, cpp, field):
    """`scale` is how many of the title's units a second has; gz-perf's field is in them."""
    figures = {}
    for _ in range(rounds):
        for line in run(python).splitlines():
            figure = json.loads(line)
            figures.setdefault(figure["series"], []).append(scale * figure["seconds"])
        with tempfile.NamedTemporaryFile() as file:
            run([*cpp, "--json", file.name])
            last = json.loads(Path(file.name).read_text().splitlines()[-1])
        figures.setdefault("C++", []).append(last[field])
    for series, times in figures.items():
        print(f"{title:14} {series:12} {statistics.median(times):9.2f} {min(times):9.2f} "
              f"{max(times):9.2f}", flush=True)


def run(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


# --- beside PyTorch's DistributedDataParallel -----------------------------------------------------

def make_network(name):
    """As in gz-perf-torch: with little to communicate, or with much."""
    nn = torch.nn
    torch.manual_seed(7)
    if name == "convolutional":
        return nn.Sequential(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(),
                             nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
                             nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10))
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048),
                         nn.ReLU(), nn.Linear(2048, 10))


def start_gloo():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # which is free then
    port = hvd.broadcast_object(port, 0)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}",
                                         rank=hvd.rank(), world_size=hvd.size())


class Series:
    """One way of training the network; `wrap` and `optimize` make it a distributed one."""

    def __init__(self, network_name, wrap=lambda network: network,
                 optimize=lambda optimizer, network: optimizer):
        self.network = make_network(network_name)
        self.model = wrap(self.network)
        sgd = torch.optim.SGD(self.network.parameters(), lr=0.01)
        self.optimizer = optimize(sgd, self.network)
        self.times = []

    def step(self, images, labels):
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()


def step(arguments):
    torch.set_num_threads(1)
    start_gloo()
    torch.manual_seed(1)
    size, own = hvd.size() * arguments.batch, slice(hvd.rank() * arguments.batch,
                                                    (hvd.rank() + 1) * arguments.batch)
    images, labels = torch.randn(size, 1, 28, 28), torch.randint(10, (size,))
    all_series = {
        "guozhuang": Series(arguments.network, optimize=lambda sgd, network:
                            hvd.DistributedOptimizer(sgd, network.named_parameters())),
        "DDP + gloo": Series(arguments.network, torch.nn.parallel.DistributedDataParallel),
        "without": Series(arguments.network),
        "one process": Series(arguments.network),  # takes the whole batch, on rank 0 alone
    }
    for turn in range(1 + arguments.rounds):  # the first one to warm up
        for name, series in all_series.items():
            is_alone = name == "one process"
            batch = (images, labels) if is_alone else (images[own], labels[own])
            hvd.barrier()
            begin = time.perf_counter()
            for _ in range(arguments.steps if not is_alone or hvd.rank() == 0 else 0):
                series.step(*batch)
            seconds = numpy.array((time.perf_counter() - begin) / arguments.steps)
            guozhuang.allreduce_(seconds, op=guozhuang.Max)
            if turn > 0:
                series.times.append(float(seconds))
        if turn == 0:
            check_equal(all_series["guozhuang"], all_series["DDP + gloo"])
    if hvd.rank() == 0:
        print_steps(arguments, all_series)


def check_equal(series, other):
    for (name, own), theirs in zip(series.network.named_parameters(), other.network.parameters()):
        if not torch.allclose(own, theirs, 1e-3, 1e-4):
            raise RuntimeError(f"{name} differs between the two ways of training")


def print_steps(arguments, all_series):
    print(f"{arguments.network} network, {hvd.size()} ranks, batch {hvd.size()} x "
          f"{arguments.batch}, {arguments.rounds} rounds of {arguments.steps} steps; in ms")
    print(f"{'series':12} {'median':>9} {'min':>9} {'max':>9} {'communication':>14}")
    without = statistics.median(all_series["without"].times)
    for name, series in all_series.items():
        median = statistics.median(series.times)
        is_distributed = name in ("guozhuang", "DDP + gloo")
        communication = f"{1e3 * (median - without):14.3f}" if is_distributed else ""
        print(f"{name:12} {1e3*median:9.3f} {1e3*min(series.times):9.3f} "
              f"{1e3*max(series.times):9.3f} {communication}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(function, **options):
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(run=function)
        for name, default in options.items():
            command.add_argument("--" + name.replace("_", "-"), type=type(default),
                                 default=default)
        return command

    add(allreduce, repetitions=2000)
    add(replay, set="resnet50", steps=20)
    add(step, network="wide", batch=16, rounds=15, steps=10)
    add(compare, gz_perf="gz-perf", ranks=2, rounds=5, repetitions=2000, steps=20)
    return parser.parse_args()


if __name__ == "__main__":
    given = parse()
    if given.command != "compare":
        import numpy
        import torch

        import guozhuang
        import guozhuang.torch as hvd
        from guozhuang.torch.agreement import Options
        from guozhuang.torch.arena import Arena
        from guozhuang.torch.gradient import Gradient
        from guozhuang.torch.reducer import Reducer
        hvd.init()
    given.run(given)
