"""PyTorch's part of tools/gpu/validate. Each rank of `torch_steps.py FOLDER` trains a small model
on its share of every batch, and a copy of it on the whole batch, by PyTorch alone; then rank 0
prints one JSON object: whose parameters differ, and times. On the emulation it is on the CPU."""
import contextlib
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed

import guozhuang.torch as hvd

ON_GPU = os.environ.get("EMULATED") != "1"
DEVICE = "cuda" if ON_GPU else "cpu"
STEPS, BATCH, FEATURES, CLASSES = 12, 32, 64, 10


def make_model(normalisation):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 512), normalisation(512), torch.nn.ReLU(),
        torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, CLASSES),
    ).to(DEVICE)


def batches():
    """The same on all ranks."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, FEATURES, generator=generator)
        yield inputs.to(DEVICE), torch.randint(CLASSES, (BATCH,), generator=generator).to(DEVICE)


def default_stream(step):
    return contextlib.nullcontext()


def streams(count):
    """For each step one of so many streams, other than the default one. A step begins when the
    work of the one before is done, as PyTorch asks of whoever changes streams."""
    own = [torch.cuda.Stream() for _ in range(count)] if ON_GPU else []

    @contextlib.contextmanager
    def choose(step):
        if not own:
            yield
            return
        stream = own[step % len(own)]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream().wait_stream(stream)

    return choose


def share(tensor):
    return tensor.chunk(hvd.size())[hvd.rank()]


def train(model, optimizer, on_stream, part=lambda tensor: tensor):
    for step, (inputs, labels) in enumerate(batches()):
        with on_stream(step):
            if ON_GPU:
                torch.cuda._sleep(2_000_000)  # what does not wait for this stream is too early
            loss = torch.nn.functional.cross_entropy(model(part(inputs)), part(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def difference(on_stream, is_module):
    """The largest difference of a parameter of the distributed training from the other one."""
    normalisation = torch.nn.BatchNorm1d if is_module else torch.nn.LayerNorm
    reference = make_model(normalisation)
    train(reference, sgd(reference), default_stream)
    model = make_model(hvd.SyncBatchNorm if is_module else normalisation)
    if is_module:
        trained = hvd.DistributedDataParallel(model)
        optimizer = sgd(model)
    else:
        trained = model
        optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    train(trained, optimizer, on_stream, share)
    if ON_GPU:
        torch.cuda.synchronize()
    pairs = zip(reference.state_dict().values(), model.state_dict().values())
    return max((a.double() - b.double()).abs().max().item() for a, b in pairs)


def microseconds(reduce, size):
    """The median of allreduces of so many bytes, each waited for, on the slowest rank."""
    tensor = torch.zeros(size // 4, device=DEVICE)
    samples = []
    for _ in range(12):
        hvd.barrier()
        start = time.perf_counter()
        reduce(tensor)
        if ON_GPU:
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e6)
    return max(hvd.allgather_object(statistics.median(samples[2:])))


def step_time(model, optimizer):
    inputs, labels = torch.randn(64, 2048, device=DEVICE), torch.zeros(
        64, dtype=torch.long, device=DEVICE)
    samples = []
    for _ in range(12):
        hvd.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if ON_GPU:
            torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e3)
    return max(hvd.allgather_object(statistics.median(samples[2:])))


def wide_model():
    width = 2048 if ON_GPU else 64
    return torch.nn.Sequential(torch.nn.Linear(2048, width), *(
        layer for _ in range(6) for layer in (torch.nn.ReLU(), torch.nn.Linear(width, width))
    )).to(DEVICE)


def times(folder):
    """Our times beside those of the PyTorch process group, in the same run."""
    found = {}
    sizes = (64 << 10, 16 << 20)
    for size in sizes:
        found[f"ours_{size >> 10}KiB_us"] = microseconds(
            lambda tensor: hvd.allreduce_(tensor, name="timed", op=hvd.Sum), size)
    model = wide_model()
    found["plain_step_ms"] = step_time(model, sgd(model))
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict())
    found["optimizer_step_ms"] = step_time(model, optimizer)
    model = wide_model()
    ours = hvd.DistributedDataParallel(model)
    found["module_step_ms"] = step_time(ours, sgd(model))
    try:
        torch.distributed.init_process_group(
            "nccl" if ON_GPU else "gloo", init_method=f"file://{folder}/group", rank=hvd.rank(),
            world_size=hvd.size())
        for size in sizes:
            found[f"torchs_{size >> 10}KiB_us"] = microseconds(torch.distributed.all_reduce, size)
        theirs = torch.nn.parallel.DistributedDataParallel(wide_model())
        found["torchs_module_step_ms"] = step_time(theirs, sgd(theirs))
        torch.distributed.destroy_process_group()
    except RuntimeError as reason:
        found["torchs"] = "no: " + str(reason).splitlines()[0]
    return found


def main():
    hvd.init()
    if ON_GPU:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.set_device(0)  # which the ranks share
    found = {"torch": torch.__version__, "ranks": hvd.size()}
    cases = {
        "default_stream": (default_stream, False), "side_stream": (streams(1), False),
        "changing_streams": (streams(3), False), "module": (default_stream, True),
        "module_side_stream": (streams(1), True), "module_changing_streams": (streams(3), True),
    }
    for name, (on_stream, is_module) in cases.items():
        found[name] = max(hvd.allgather_object(difference(on_stream, is_module)))
    found["wrong"] = [name for name in cases if not found[name] < 1e-4]
    found |= times(sys.argv[1])
    if hvd.rank() == 0:
        print(json.dumps(found), flush=True)
    hvd.shutdown()


main()
