"""Where gradients lie: in memory that the other ranks have mapped."""
import gc
import threading
from pathlib import Path
from unittest import mock

import torch
from training_test import Model, TrainingTest, loss_of, sgd

import guozhuang.torch as hvd
from guozhuang.torch import arena


def is_shared(tensor):
    """Whether it lies in one of the library's files, as the memory of an arena does."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(address, 16) for address in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return "/memfd:guozhuang" in line
    return False


class ArenaTest(TrainingTest):
    def step(self, model, optimizer, step=0):
        optimizer.zero_grad()
        loss_of(model, step, self.rank, self.size).backward()
        optimizer.step()

    def expect_shared(self, model, expected):
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        self.assertEqual(set(map(is_shared, gradients)), {expected})

    def make(self, **options):
        model = Model()
        return model, hvd.DistributedOptimizer(sgd(model.parameters()), **options)

    def test_of_an_optimizer(self):
        for grouped in (False, True):
            model = Model()
            optimizer = hvd.DistributedOptimizer(
                sgd(model.parameters()), groups=[[model.first.weight]] if grouped else 0)
            for step in range(2):
                self.step(model, optimizer, step)
                self.expect_shared(model, self.size > 1)

    def test_of_a_module(self):
        model = Model()
        wrapped = hvd.DistributedDataParallel(model)
        for _ in range(2):
            loss_of(wrapped, 1, self.rank, self.size).backward()
            self.expect_shared(model, self.size > 1)
            model.zero_grad(set_to_none=True)

    def test_of_a_process_set(self):
        """It is in memory that torch allocates."""
        process_set = hvd.add_process_set([*range(self.size)], duplicate=True)
        self.addCleanup(hvd.remove_process_set, process_set)
        model, optimizer = self.make(process_set=process_set)
        self.step(model, optimizer)
        self.expect_shared(model, False)

    def test_gradients_that_are_kept(self):
        """They outlive the optimizer, and what other optimizers do later."""
        model, optimizer = self.make()
        self.step(model, optimizer, 1)
        kept = [each.grad for each in model.parameters() if each.grad is not None]
        values = [each.clone() for each in kept]
        del model, optimizer
        gc.collect()
        for step in range(2):
            self.step(*self.make(), step)
        self.assertTrue(all(map(torch.equal, kept, values)))

    def test_optimizers_whose_threads_meet(self):
        """They make their arenas in another order on each rank."""
        def train(index):
            for step in range(2):
                self.step(*made[index], step)

        made = [self.make() for _ in range(3)]
        threads = [threading.Thread(target=train, args=(index,)) for index in range(3)]
        for thread in threads[self.rank % 3:] + threads[:self.rank % 3]:
            thread.start()
        for thread in threads:
            thread.join()
        expected = made[0][0]
        for model, _ in made:
            self.expect_same(model, expected)
            self.expect_shared(model, self.size > 1)

    def test_ctrl_c_while_ranks_make_one(self):
        """The making goes on, and so does the batch when synchronize() is called again."""
        def interrupt_once(function, *arguments):
            if not calls:
                calls.append(threading.Thread(target=function, args=arguments))
                calls[0].start()
                raise KeyboardInterrupt
            interruptibly(function, *arguments)

        if self.size == 1:
            self.skipTest("a rank alone makes none")
        calls, interruptibly = [], arena.interruptibly
        model, optimizer = self.make()
        loss_of(model, 1, self.rank, self.size).backward()
        if self.rank == 0:
            with mock.patch.object(arena, "interruptibly", interrupt_once):
                self.assertRaises(KeyboardInterrupt, optimizer.synchronize)
                optimizer.synchronize()
            calls[0].join()
        else:
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        self.expect_shared(model, True)
        other, its_optimizer = self.make()
        self.step(other, its_optimizer, 1)
        self.expect_same(model, other)
