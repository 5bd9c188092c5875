"""Waits: Ctrl-C ends each of them, other threads go on meanwhile; and children of fork()."""
import atexit
import os
import signal
import threading
import time

import ranks
import torch
from torch.utils.data import DataLoader, Dataset

import guozhuang.torch as hvd
from guozhuang import handles


def training():
    """A parameter of ones that each step halves, its optimizer, and the step."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.25))

    def step():
        optimizer.zero_grad()
        (parameter * parameter).sum().backward()
        optimizer.step()

    return parameter, optimizer, step


class WaitsTest(ranks.RanksTest):
    def setUp(self):
        if self.size == 1:
            self.skipTest("there is nobody to wait for")

    def interrupted(self, call, *arguments):
        """On rank 0 the call waits for the other ranks until Ctrl-C; then all ranks make it."""
        if self.rank == 0:
            self.interrupt(call, *arguments)
        hvd.barrier()

    def interrupt(self, call, *arguments):
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        self.assertRaises(KeyboardInterrupt, call, *arguments)
        self.assertTrue(0.2 < time.monotonic() - begin < 5)
        timer.join()

    def test_synchronize(self):
        handles = []

        def wait():
            handles.append(hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum))
            hvd.synchronize(handles[0])

        self.interrupted(wait)
        if self.rank != 0:
            handles = [hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)]
        self.assertEqual(hvd.synchronize(handles[0]).tolist(), [self.size] * 2)

    def test_blocking_forms(self):
        self.interrupted(hvd.allgather, torch.ones(2), "lonely")
        if self.rank == 0:
            operation, = handles._dropped
            self.assertEqual(operation.owners[0].tolist(), [1, 1])  # kept, since it will be sent
        if self.rank != 0:  # what rank 0 has submitted goes on
            hvd.allgather(torch.ones(2), "lonely")

    def test_process_set(self):
        self.interrupted(hvd.add_process_set, [0])
        if self.rank != 0:  # rank 0 still creates it on the thread that was waiting
            hvd.add_process_set([0])

    def test_join(self):
        """It goes on, and its rank makes the next step with the others when all have joined."""
        parameter, _, step = training()
        step()
        if self.rank == 0:
            self.interrupt(hvd.join)
        else:
            hvd.barrier()  # returns when rank 0 has joined
            time.sleep(1)
            hvd.join()
        while True:
            try:
                hvd.barrier()
                break
            except hvd.UsageError:  # this rank has joined, and some other has not
                time.sleep(0.01)
        step()
        self.assertEqual(parameter.tolist(), [0.25] * 3)

    def test_optimizer(self):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.5))
        (parameter * parameter).sum().backward()
        self.interrupted(optimizer.step)
        optimizer.step()
        self.assertEqual(parameter.tolist(), [0, 0, 0])

    def test_parameter_that_is_unfrozen_while_a_step_waits(self):
        """It is new in the next batch."""
        first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=0.25))
        second.requires_grad_(False)
        for interrupts in (False, True):
            optimizer.zero_grad()
            (first * first).sum().backward()
            if interrupts:
                self.interrupted(optimizer.step)
                second.requires_grad_(self.rank == 0)
            optimizer.step()
        self.assertEqual(first.tolist(), [0.25] * 3)

    def test_discard_of_a_batch_that_is_sent(self):
        """The other ranks step with it, so this one has parted from them until a broadcast."""
        parameter, optimizer, step = training()
        step()
        self.interrupted(step)
        if self.rank == 0:
            optimizer.discard("Ctrl-C")
        else:
            step()
        for reason in ("then left out differ: 1 on rank 0", "broadcast_parameters makes them"):
            self.fails_everywhere(step, "mismatch", reason)
        hvd.broadcast_parameters([parameter], root_rank=1)
        step()
        self.assertEqual(parameter.tolist(), [0.125] * 3)

    def test_other_threads_go_on(self):
        """While rank 0 waits, another of its threads computes; so nobody holds the lock."""
        if self.rank == 0:
            counts, is_over = [0], threading.Event()

            def count():
                while not is_over.is_set():
                    counts[0] += 1

            thread = threading.Thread(target=count)
            thread.start()
            hvd.allreduce(torch.ones(1), name="waits")
            is_over.set()
            thread.join()
            self.assertGreater(counts[0], 10_000)
        else:
            time.sleep(0.5)
            hvd.allreduce(torch.ones(1), name="waits")


class UsesRanks(Dataset):
    """Whose samples are made in a worker that calls what only a rank can."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return hvd.allreduce(torch.tensor([float(index)]))


class Plain(UsesRanks):
    """Whose samples are made by the rank's own random numbers, say."""

    def __getitem__(self, index):
        return index + 10 * hvd.rank() + 100 * hvd.size()


class Forks(ranks.RanksTest):
    def test_workers_of_a_loader(self):
        pending = hvd.allreduce_async(torch.ones(10), name="pending", op=hvd.Sum)
        first = 10 * self.rank + 100 * self.size
        self.assertEqual([int(each) for each in DataLoader(Plain(), num_workers=1)],
                         [first, first + 1, first + 2, first + 3])
        with self.assertRaisesRegex(RuntimeError, "was made by fork.. and is no rank of the job"):
            list(DataLoader(UsesRanks(), num_workers=1))
        self.assertEqual(hvd.synchronize(pending)[0], self.size)

    def test_child_frees_nothing(self):
        handle = hvd.allreduce_async(torch.ones(10), name="in flight", op=hvd.Sum)
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.5))
        parameter.sum().backward()
        optimizer.step()
        child = os.fork()
        if child == 0:
            del handle, optimizer
            os._exit(7)
        self.assertEqual(os.waitpid(child, 0)[1] >> 8, 7)
        self.assertEqual(hvd.synchronize(handle)[0], self.size)

    def test_child_ends_while_a_thread_of_its_parent_waits(self):
        if self.size == 1:
            self.skipTest("there is nobody to wait for")
        name = f"of rank {self.rank}"
        thread = threading.Thread(target=hvd.allreduce, args=(torch.ones(1), None, name))
        thread.start()
        while not handles._waiting:
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            atexit._run_exitfuncs()
            os._exit(7)
        self.assertEqual(os.waitpid(child, 0)[1] >> 8, 7)
        hvd.barrier()  # until then nobody ends what another rank's thread waits for
        for rank in range(self.size):
            if rank != self.rank:
                hvd.allreduce(torch.ones(1), name=f"of rank {rank}")
        thread.join()

