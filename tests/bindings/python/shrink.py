"""shrink.py: the last of the ranks is killed in a batch, and the others go on without it. What
belongs to the old job is refused by name, and made anew."""
import contextlib
import functools
import os
import signal
import threading
import time

import torch

import guozhuang.torch as hvd

STEPS = 5


def fails(call, code, text):
    try:
        call()
    except hvd.Error as error:
        assert error.code == code and text in str(error), error
        return error
    raise AssertionError(f"no error that says '{text}'")


def refuses_as_old(call):
    fails(call, "not_initialised", "must be made anew")


def make_optimizer(model):
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))


def gradient_step(model, optimizer):
    optimizer.zero_grad()
    (model.weight.sum() * (1 + hvd.rank())).backward()
    optimizer.step()


def check_steps(model, optimizer):
    """Each step takes the mean of 1 to size() from every weight."""
    before = model.weight.detach().clone()
    for _ in range(STEPS):
        gradient_step(model, optimizer)
    assert torch.equal(before - model.weight, torch.full_like(before, STEPS * (hvd.size() + 1) / 2))


def check_operations():
    ranks = torch.arange(hvd.size())
    own = torch.tensor([hvd.rank()])
    assert torch.equal(hvd.allgather(own), ranks)
    assert hvd.allreduce(own, op=hvd.Sum).item() == ranks.sum()
    assert hvd.allgather_object({"rank": hvd.rank()}) == [{"rank": i} for i in range(hvd.size())]


def make_others():
    """They have ended a batch before the death. Returns what begins and ends another one, and what
    discards one of a module with buffers."""
    steps = []
    for op in (hvd.Average, hvd.Adasum):
        model = torch.nn.Linear(2, 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=op)
        steps.append(functools.partial(gradient_step, model, optimizer))
    for module in (torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(2)):
        parallel = hvd.DistributedDataParallel(module)
        steps.append(lambda parallel=parallel: parallel(torch.ones(2, 2)).sum().backward())
    for step in steps:
        step()
    return steps, functools.partial(parallel.discard, "")


def make_for(process_set):
    """An optimizer, on ranks outside of the set, too."""
    model = torch.nn.Linear(2, 1)
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0),
                                    process_set=process_set)


def shrink_interrupted(process_set):
    """Ctrl-C ends the wait for the others, but the session shrinks."""
    ctrl_c = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    ctrl_c.start()
    with contextlib.suppress(KeyboardInterrupt):
        hvd.shrink()
        ctrl_c.cancel()
    while process_set.process_set_id is not None:
        time.sleep(0.01)


def main():
    hvd.init(time_to_shrink=30)
    model = torch.nn.Linear(1000, 1, bias=False)
    torch.nn.init.constant_(model.weight, 64)
    optimizer = make_optimizer(model)
    others, discard = make_others()
    pair = hvd.add_process_set([0, 1])
    of_pair = make_for(pair)
    check_steps(model, optimizer)
    check_operations()
    gone = hvd.size() - 1
    survivors = hvd.add_process_set(range(gone))
    pids = hvd.allgather_object(os.getpid())
    while hvd.rank() == gone:
        time.sleep(1)
    pending = hvd.allreduce_async(torch.ones(1), name="pending")
    with contextlib.suppress(hvd.Error):  # over on rank 0 when all have come so far
        hvd.barrier(process_set=survivors)
    if hvd.rank() == 0:
        os.kill(pids[gone], signal.SIGKILL)
    error = fails(lambda: gradient_step(model, optimizer), "rank_died", f"rank {gone} ")
    assert list(error.ranks) == [gone], error.ranks
    if hvd.rank() == 0:
        shrink_interrupted(pair)
    else:
        time.sleep(1)
        hvd.shrink()
    rank = hvd.rank()
    assert (rank < gone, hvd.size(), hvd.local_size()) == (True, gone, gone)

    fails(lambda: hvd.synchronize(pending), "rank_died", "allreduce 'pending'")
    for step in (optimizer.step, of_pair.step, *others):
        refuses_as_old(step)
    if rank == 0:
        refuses_as_old(discard)  # without a broadcast, for which it would wait
    fails(lambda: hvd.barrier(process_set=pair), "invalid_argument", "is not in use")
    hvd.add_process_set(pair)
    if pair.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() == 2
    check_operations()
    check_steps(model, make_optimizer(model))
    hvd.shutdown()  # when all have come so far
    if rank == 0:
        print(f"{gone} ranks are through", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
