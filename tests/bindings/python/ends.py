"""ends.py HOW: programs that end in other ways than by shutdown()."""
import atexit
import sys
import threading
import time

import torch

import guozhuang.torch as hvd
from guozhuang import handles

LARGE = 1 << 20  # elements, which take a while to move


def optimizer_in_backward():
    model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 1))
    hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 1000)).sum().backward()
        optimizer.step()
    return model, optimizer


def exception():
    """One rank raises in backward; it stays a moment, or mpirun ends the others first."""
    model, optimizer = optimizer_in_backward()

    def fail(_):
        raise ValueError("bad image 47\udce9.png")  # from a name that is no UTF-8

    optimizer.zero_grad()
    output = model(torch.ones(1, 1000)).sum()
    if hvd.rank() == 1:
        atexit.register(time.sleep, 4)
        output.register_hook(fail)
    output.backward()
    optimizer.step()


def exit_code():
    """One rank calls sys.exit(3) while the others wait for it."""
    if hvd.rank() == 1:
        sys.exit(3)
    try:
        hvd.allreduce(torch.ones(1), name="waits")
    finally:
        time.sleep(0.5)


def in_flight():
    """All ranks end while much is on its way: operations that all have submitted, whose handles
    live or were dropped; one that only rank 0 has submitted; gradients after backward; and a thread
    that waits for what nobody else submits."""
    model, optimizer = optimizer_in_backward()
    model(torch.ones(1, 1000)).sum().backward()
    kept = [hvd.allreduce_async(torch.ones(LARGE), name=f"kept {i}") for i in range(8)]
    for i in range(8):
        hvd.allgather_async(torch.ones(LARGE), name=f"dropped {i}")
    if hvd.rank() == 0:
        kept.append(hvd.allreduce_async(torch.ones(LARGE), name="lonely"))
    threading.Thread(target=hvd.allreduce, args=(torch.ones(1), None, f"of rank {hvd.rank()}"),
                     daemon=True).start()
    while not handles._waiting:  # a daemon thread must not be within torch when a program ends
        time.sleep(0.01)
    print(f"rank {hvd.rank()} ends, with gradients in flight: {optimizer._gradients.in_flight}",
          flush=True)
    in_flight.kept = optimizer, kept


if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    globals()[sys.argv[1]]()
