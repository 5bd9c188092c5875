"""A lack of memory at every line of the package, on one rank: the program catches it and goes on,
and gets the right result, or all ranks an error that says why the job has ended."""
import sys
import warnings
from pathlib import Path

import torch
from ranks import RanksTest

import guozhuang.torch as hvd

FOLDER = Path(hvd.__file__).parents[1]


class Lack:
    """Raises MemoryError before the line of that number, of all that its calls come to, each line
    counted once for each call; 0: never."""

    def __init__(self, number=0):
        self.left, self.seen, self.line = number, set(), ""

    def __call__(self, frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if FOLDER not in path.parents or path.name == "lacks.py":  # which is what sees to a lack
            return None
        line = f"{path.name}:{frame.f_lineno}"
        if event == "line" and not self.line and line not in self.seen:
            self.seen.add(line)
            self.left -= 1
            if self.left == 0:
                self.line = line
                raise MemoryError
        return self

    def once(self, function, *arguments, **options):
        self.seen.clear()
        sys.settrace(self if self.left > 0 else None)
        try:
            return function(*arguments, **options)
        finally:
            sys.settrace(None)

    def twice(self, function, *arguments, **options):
        """Makes a call again that has lacked memory, unless the job has ended by that."""
        try:
            return self.once(function, *arguments, **options)
        except MemoryError:
            if not hvd.is_initialized():
                raise
            return function(*arguments, **options)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.Embedding(4, 2, sparse=True)
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, inputs):
        return self.linear(self.embedding(inputs)).sum()


class LacksTest(RanksTest):
    def setUp(self):
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # of __del__
        self.addCleanup(setattr, sys, "unraisablehook", hook)
        filters = warnings.catch_warnings()
        filters.__enter__()
        self.addCleanup(filters.__exit__, None, None, None)
        warnings.filterwarnings("ignore", "optimizer.step.. called without")  # where it is retried

    def at_each_line(self, scenario, least):
        """The scenario, called with what makes the calls of the package, does the same on all
        ranks, and gives what can be compared. The last rank lacks memory at each of its lines in
        turn, which are more than `least`."""
        right, number, has_come = scenario(Lack()), 0, True
        while has_come:
            number += 1
            lack = Lack(number if self.rank == self.size - 1 else 0)
            try:
                self.assertEqual(scenario(lack), right, lack.line)
                hvd.barrier()
            except MemoryError:
                self.assertFalse(hvd.is_initialized(), lack.line)
            except hvd.Error as error:
                self.assertRegex(str(error), "not enough memory|MemoryError", lack.line)
                hvd.leave("its test has ended")
            if not hvd.is_initialized():
                hvd.init()
            has_come = any(hvd.allgather_object(lack.line))
        self.assertGreater(number, least)

    def test_operations(self):
        """Those that were made later are not paired with one that was made again."""
        def scenario(lack):
            again = lack.twice
            mine = torch.arange(self.size) + self.rank
            total = again(hvd.allreduce, mine, op=hvd.Sum, postscale_factor=2.0)
            column, splits = again(hvd.alltoall, mine, splits=[1] * self.size)
            self.assertEqual(column.tolist(), mine.tolist())
            handle = again(hvd.broadcast_async_, mine, 0)
            again(hvd.synchronize, handle)
            return [each.tolist() for each in (total, splits, mine)]

        self.at_each_line(scenario, 100)

    def test_sparse_allreduce(self):
        def scenario(lack):
            again = lack.twice
            given = torch.sparse_coo_tensor([[self.rank, 0]], [[1.0], [3.0]], (5, 1))
            handles = [again(hvd.sparse_allreduce_async, given, name, op)
                       for name, op in (("sparse", hvd.Sum), (None, hvd.Average))]
            return [again(hvd.synchronize, each).to_dense().tolist() for each in handles]

        self.at_each_line(scenario, 50)

    def test_objects_and_sets(self):
        def scenario(lack):
            again = lack.twice
            process_set = again(hvd.add_process_set, [0])
            found = [again(hvd.broadcast_object, self.rank, self.size - 1),
                     again(hvd.allgather_object, self.rank), process_set.ranks]
            again(hvd.remove_process_set, process_set)
            return found

        self.at_each_line(scenario, 100)

    def train(self, lack, optimizer, model, batch):
        """Until all ranks have stepped. One whose backward has failed gives the batch up on all."""
        again = lack.twice
        while True:
            again(optimizer.zero_grad)
            loss = model(torch.tensor([batch, self.rank]))
            try:
                lack.once(loss.backward)
            except MemoryError as error:
                if not hvd.is_initialized():
                    raise
                again(optimizer.discard, repr(error))
                continue
            try:
                again(optimizer.step)
                return
            except hvd.Error as error:
                if error.code != "discarded":
                    raise

    def test_optimizer(self):
        def scenario(lack):
            again = lack.twice
            model = Model()
            again(hvd.broadcast_parameters, model.state_dict())
            optimizer = again(hvd.DistributedOptimizer,
                              torch.optim.SGD(model.parameters(), lr=0.125),
                              [*model.named_parameters()], gradient_predivide_factor=2.0)
            for batch in range(2):
                self.train(lack, optimizer, model, batch)
            return [parameter.tolist() for parameter in model.parameters()]

        self.at_each_line(scenario, 300)

    def test_step_after_a_backward_that_lacked_memory(self):
        """It is not made of half of the gradients: the others get the reason, and all go on."""
        model = Model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        for batch in range(3):
            optimizer.zero_grad()
            loss = model(torch.tensor([batch, self.rank]))
            if batch != 1:
                loss.backward()
                optimizer.step()
            elif self.rank == 0:
                with self.assertRaises(MemoryError):
                    Lack(8).once(loss.backward)
                self.refused("discard.reason. gives the batch up", optimizer.zero_grad)
                self.assertRaises(MemoryError, optimizer.step)
            else:
                loss.backward()
                self.fails_everywhere(optimizer.step, "discarded", "rank 0: MemoryError")
