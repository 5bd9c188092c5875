"""Arguments that are refused, and settings that differ between ranks."""
import copy
import pickle

import numpy
import torch
from training_test import Model, TrainingTest, loss_of, momentum, sgd

import guozhuang.torch as hvd


class Arguments(TrainingTest):
    def test_of_an_optimizer(self):
        inner, make = sgd(Model().parameters()), hvd.DistributedOptimizer
        for passes in (1.5, "2", None, 0):
            self.refused("1 at least", make, inner, backward_passes_per_step=passes)
        for factor in (0, -1.0, float("nan"), float("inf"), "a"):
            self.refused("a positive number", make, inner, gradient_predivide_factor=factor)
        for groups in (2.0, None):
            self.refused("must be a whole number, or lists", make, inner, num_groups=groups)
        for compression in (None, hvd.Compression, "fp16"):
            self.refused("compression must be", make, inner, compression=compression)
        for process_set in ([0], None):
            self.refused("must be a ProcessSet", make, inner, process_set=process_set)

    def test_that_are_numbers_of_numpy(self):
        model = Model()
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), num_groups=numpy.int64(2),
            backward_passes_per_step=numpy.float64(1), gradient_predivide_factor=numpy.float32(2))
        for _ in range(2):
            loss_of(model, 1).backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_of_a_module(self):
        wrap = hvd.DistributedDataParallel
        for megabytes in (0, -1, float("nan"), "a"):
            self.refused("a positive number", wrap, Model(), bucket_cap_mb=megabytes)
        self.refused("must be a ProcessSet", wrap, Model(), process_set=[0])
        self.refused("process_set says which", wrap, Model(), process_group=object())
        wrapped = wrap(Model(), process_group=None, bucket_cap_mb=None)
        loss_of(wrapped, 0).backward()

    def test_modules_with_another_state(self):
        class Extra(torch.nn.BatchNorm1d):
            def get_extra_state(self):
                return dict(anything="else")

            def set_extra_state(self, state):
                pass

        module = Extra(2)
        for tensor in (module.weight.data, module.running_mean):
            tensor.fill_(self.rank)
        hvd.DistributedDataParallel(module)
        self.assertEqual(module.weight.tolist() + module.running_mean.tolist(), [0.0] * 4)


class WithState(torch.optim.SGD):
    def __getstate__(self):
        return vars(self)


class MadeAnew(TrainingTest):
    """Of an optimizer of one process, while something still holds the last distributed one."""

    def test_with_other_parameters(self):
        first, second = (torch.nn.Parameter(torch.zeros(4)) for _ in range(2))
        second.requires_grad_(False)
        inner, options = torch.optim.SGD([first, second], lr=1.0), dict(op=hvd.Sum, num_groups=2)
        old = optimizer = hvd.DistributedOptimizer(inner, **options)
        for step in range(4):
            if step == 2:
                second.requires_grad_(True)
                optimizer = hvd.DistributedOptimizer(inner, **options)
            optimizer.zero_grad()
            (first.sum() + second.sum()).backward()
            optimizer.step()
            self.assertEqual(first.tolist(), [-self.size * (step + 1.0)] * 4)
        for call in (old.step, old.synchronize, lambda: old.discard("bad image 47.png")):
            self.refused("a new DistributedOptimizer has been made", call)

    def test_with_adasum(self):
        inner = sgd(Model().parameters())
        old = hvd.DistributedOptimizer(inner, op=hvd.Adasum)
        hvd.DistributedOptimizer(inner)
        self.refused("a new DistributedOptimizer has been made", old.step)

    def test_state_is_that_of_the_inner_one(self):
        for op in (hvd.Average, hvd.Adasum):
            inner = momentum(Model().parameters())
            optimizer = hvd.DistributedOptimizer(inner, op=op)
            optimizer.load_state_dict(optimizer.state_dict())
            optimizer.add_param_group(dict(params=[torch.nn.Parameter(torch.ones(1))]))
            self.assertIs(inner.state, optimizer.state)
            self.assertEqual(len(inner.param_groups), 2)
            self.assertEqual(len(copy.deepcopy(inner).param_groups), 2)

    def test_hooks_of_a_step_run_once(self):
        """After the reduction: loading a state wraps no second time what runs them."""
        for op in (hvd.Average, hvd.Adasum):
            optimizer = hvd.DistributedOptimizer(sgd(Model().parameters()), op=op)
            step = type(optimizer).step
            optimizer.load_state_dict(optimizer.state_dict())
            self.assertIs(type(optimizer).step, step)

    def test_copies_of_the_inner_one_are_others(self):
        inner = WithState(Model().parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(inner)
        hvd.DistributedOptimizer(pickle.loads(pickle.dumps(inner)))
        optimizer.step()  # has not been replaced


class ProcessSets(TrainingTest):
    def test_that_are_removed(self):
        """What was made for them says so, each time."""
        removed = hvd.add_process_set(range(self.size), duplicate=True)
        model = Model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), process_set=removed,
                                             num_groups=4)
        wrapped = hvd.DistributedDataParallel(Model(), process_set=removed, bucket_cap_mb=1e-4)

        def step():
            optimizer.zero_grad()
            loss_of(model, 1).backward()
            optimizer.step()

        def step_of_module():
            wrapped.zero_grad()
            loss_of(wrapped, 1).backward()

        for call in (step, step_of_module):
            call()
        hvd.remove_process_set(removed)
        for call in (step, step_of_module):
            for _ in range(3):
                with self.assertRaisesRegex(hvd.Error, "has been closed|is not in use"):
                    call()


class Differing(TrainingTest):
    def setUp(self):
        if self.size == 1:
            self.skipTest("nobody differs")

    def differs(self, pattern, others, last):
        """Given the options of the last rank and of the others: all get an error, and go on."""
        model, is_last = Model(sparse=True), self.rank == self.size - 1
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                             **(last if is_last else others))
        for _ in range(2):
            loss_of(model, 1).backward()
            error = self.fails_everywhere(optimizer.step, "mismatch", pattern)
            self.assertEqual(error.ranks, [self.size - 1])
            optimizer.zero_grad()
        hvd.barrier()

    def test_options(self):
        names = [name for name, _ in Model().named_parameters()]
        self.assertIn("first.bias", names)
        for name, first, second in (
                ("op", hvd.Average, hvd.Sum), ("op", hvd.Sum, hvd.Adasum),
                ("compression", hvd.Compression.fp16, hvd.Compression.bf16),
                ("sparse_as_dense", False, True), ("gradient_predivide_factor", 1.0, 2.0),
                ("num_groups", 0, 4), ("num_groups", 2, 0)):
            self.differs(f"optimizers: values of .*{name}.* differ: .* on ranks? 0.*; .* on rank "
                         f"{self.size - 1}", {name: first}, {name: second})

    def test_groups(self):
        parameters = dict((model := Model(sparse=True)).named_parameters())
        optimizer = hvd.DistributedOptimizer(
            sgd(model.parameters()), model.named_parameters(), groups=[
                [parameters["first.bias" if self.rank == self.size - 1 else "first.weight"]]])
        loss_of(model, 1).backward()
        self.fails_everywhere(
            optimizer.step, "mismatch", "groups differ: .*'first.weight'.*on ranks? 0.*; "
            f".*'first.bias'.* on rank {self.size - 1}")

    def test_dtypes(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        if self.rank == self.size - 1:
            model.double()
        for op in (hvd.Average, hvd.Adasum):
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                                 num_groups=2, op=op)
            model(torch.ones(1, 3, dtype=model[0].weight.dtype)).sum().backward()
            self.fails_everywhere(
                optimizer.step, "mismatch", "dtypes of '0.weight' differ: torch.float32 on ranks? "
                f"0.*; torch.float64 on rank {self.size - 1}")

    def test_sizes_of_a_modules_bundles(self):
        wrapped = hvd.DistributedDataParallel(Model(), bucket_cap_mb=1e-4 if self.rank else 25)
        self.fails_everywhere(loss_of(wrapped, 0).backward, "mismatch", "bucket_cap_mb.*26214400")
