"""failing.py: tests that fail on one rank end on all, and those between them pass."""
import sys
import unittest

import torch

import guozhuang.torch as hvd
from guozhuang.testing import together


class Failing(unittest.TestCase):
    @together()
    def total(self):
        self.assertEqual(hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist(), [hvd.size()] * 2)

    test_0 = test_2 = test_5 = total

    @together()
    def test_1_before_its_operation(self):
        self.assertNotEqual(hvd.rank(), 1, "bad image 47.png")
        hvd.allreduce(torch.ones(2), name="losses")

    @together()
    def test_3_without_an_operation(self):
        self.assertEqual(hvd.rank(), 2)

    @together()
    def test_6_before_its_optimizer(self):
        self.assertNotEqual(hvd.rank(), 0, "too few images")
        self.train()

    @together()
    def test_7_that_trains(self):
        self.train()

    def train(self):
        layer = torch.nn.Linear(2, 1)
        hvd.broadcast_parameters(layer.state_dict())
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    @together()
    def test_4_that_is_skipped(self):
        self.skipTest("on all ranks")


def main():
    hvd.init()
    rank = hvd.rank()
    result = unittest.defaultTestLoader.loadTestsFromTestCase(Failing).run(unittest.TestResult())
    faults = {test.id().split(".")[-1]: text.splitlines()[-1]
              for test, text in result.failures + result.errors}
    said = faults["test_1_before_its_operation"]
    print(f"rank {rank}: {sorted(faults)} of {result.testsRun}: {said}\n", end="", flush=True)
    hvd.barrier()  # until then mpirun ends nobody
    sys.exit(1)


if __name__ == "__main__":
    main()
