"""What scripts do with a DistributedDataParallel."""
import copy
import itertools

import torch
from scripts_test import Scripts
from torch.optim.swa_utils import AveragedModel
from training_test import Model, loss_of, sgd

import guozhuang.torch as hvd


class FailedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("bad image 47.png")


class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = torch.nn.Linear(3, 4)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(2))

    def forward(self, inputs, head, fails=False):
        hidden = self.trunk(inputs)
        return self.heads[head](FailedBackward.apply(hidden) if fails else hidden)


class Modules(Scripts):
    def test_two_modules_in_one_backward(self):
        """Whose gradients come in another order on each rank."""
        modules = [hvd.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
                   for _ in range(2)]
        for step in range(3):
            for module in modules:
                module.zero_grad()
            ordered = modules if (self.rank + step) % 2 else modules[::-1]
            inputs = torch.full((1, 2), self.rank + 1.0)
            sum(module(inputs).sum() for module in ordered).backward()
            for module in modules:
                self.assertEqual(module.module.weight.grad.tolist(), [[(self.size + 1) / 2] * 2])

    def test_arguments_of_pytorch(self):
        model = Model()
        wrapped = hvd.DistributedDataParallel(model, None, find_unused_parameters=True,
                                              gradient_as_bucket_view=True)
        loss_of(wrapped, 0, self.rank, self.size).backward()
        loss_of(other := Model(), 0).backward()
        self.assertTrue(torch.allclose(model.first.weight.grad, other.first.weight.grad))

    def test_backward_that_fails(self):
        wrapped = hvd.DistributedDataParallel(Model())
        last = self.size - 1
        for step in range(3):
            wrapped.zero_grad()
            loss = loss_of(wrapped, step, self.rank, self.size)
            if step == 1 and self.rank == last:
                hidden = FailedBackward.apply(wrapped.module.embedding(torch.arange(3)))
                loss = wrapped.module.first(hidden).sum()
                self.assertRaisesRegex(ValueError, "bad image", loss.backward)
                wrapped.discard("bad image 47.png")
            elif step == 1:
                self.fails_everywhere(loss.backward, "discarded", f"by rank {last}: bad image 47")
            else:
                loss.backward()
        loss_of(other := Model(), 2).backward()
        self.assertTrue(torch.allclose(wrapped.module.first.weight.grad, other.first.weight.grad))

    def test_backward_that_fails_on_all_ranks(self):
        """Some gradients may have been sent by then, of other heads on each rank."""
        wrapped, inputs = hvd.DistributedDataParallel(Heads()), torch.full((2, 3), self.rank + 1.0)
        for steps in range(3):  # before the one that fails
            for step in range(steps):
                wrapped.zero_grad()
                wrapped(inputs, step % 2).sum().backward()
            other = wrapped(inputs, self.rank % 2).sum()
            self.assertRaisesRegex(ValueError, "bad image",
                                   wrapped(inputs, self.rank % 2, True).sum().backward)
            self.refused(r"was computed again before .*into no_sync\(\).* requires_grad_"
                         r"\(False\) of these .*discard\(\) ends", other.backward)
            for each in (wrapped, wrapped.eval()):
                self.refused("has failed, or was interrupted: discard", each, inputs, 0)
            wrapped.train()
            with torch.no_grad():
                wrapped(inputs, 0)
            wrapped.discard("bad image 47.png")
            wrapped.zero_grad()
            wrapped(inputs, 0).sum().backward()
            weights = wrapped.module.heads[0].weight.detach()
            expected = hvd.allreduce(weights.T @ inputs.sum(0)[None])
            self.assertTrue(torch.allclose(wrapped.module.trunk.weight.grad, expected))

    def test_parameters_that_no_rank_uses(self):
        wrapped = hvd.DistributedDataParallel(Heads())
        heads, inputs = wrapped.module.heads, torch.ones(2, 3)
        optimizer = torch.optim.AdamW(wrapped.parameters(), weight_decay=0.5)
        for step in range(3):
            before = heads[1].weight.detach().clone()
            wrapped(inputs, 0).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.assertIsNone(heads[1].weight.grad)
            self.assertTrue(torch.equal(heads[1].weight, before))
        for head in (int(self.rank == 0), 0, 0):  # what has been used keeps its gradient then
            wrapped(inputs, head).sum().backward()
            self.assertAlmostEqual(heads[1].bias.grad.item(), 2 / self.size, 5)

    def test_discard_before_forward(self):
        """The other ranks wait there for buffers of the first rank, if they train these."""
        wrapped = hvd.DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
        culprits = (self.size - 1, None, 0, None, 0, self.size - 1, None)
        for trains, (step, culprit) in itertools.product((True, False), enumerate(culprits)):
            wrapped.train(trains).zero_grad()
            if self.rank == culprit:
                if step == 4:
                    wrapped(torch.randn(4, 3))
                wrapped.discard("bad image 47.png")
            elif culprit is None:
                wrapped(torch.randn(4, 3)).sum().backward()
            else:
                self.fails_everywhere(lambda: wrapped(torch.randn(4, 3)).sum().backward(),
                                      "discarded", "bad image 47.png")

    def test_no_sync_within_another(self):
        """And forward() in it sends nothing, so ranks may call it as often as they like."""
        wrapped = hvd.DistributedDataParallel(
            torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
        for _ in range(2):
            wrapped.zero_grad()
            with wrapped.no_sync():
                with wrapped.no_sync():
                    pass
                for _ in range(self.rank + 1):
                    wrapped(torch.randn(4, 3)).pow(3).sum().backward()
            wrapped(torch.randn(4, 3)).pow(3).sum().backward()
            weights = hvd.allgather(wrapped.module[0].weight.grad[None])
            self.assertTrue(torch.equal(weights, weights[:1].expand_as(weights)))

    def test_copies(self):
        """A copy trains with the others', too; a rank that only looks at one disturbs nobody."""
        wrapped = hvd.DistributedDataParallel(Model())
        loss_of(wrapped, 1, self.rank, self.size).backward()
        if self.rank == 0:
            self.assertEqual(len([*copy.deepcopy(wrapped).parameters()]),
                             len([*wrapped.parameters()]))
        copied, other = copy.deepcopy(wrapped), Model()
        self.assertIsNot(copied.module.first.weight, wrapped.module.first.weight)
        optimizer = hvd.DistributedOptimizer(sgd((later := Model()).parameters()))
        loss_of(later, 1, self.rank, self.size).backward()
        optimizer.step()
        for step in range(2):
            for each in (copied, wrapped, other):
                each.zero_grad()
                begin, stride = (0, 1) if each is other else (self.rank, self.size)
                loss_of(each, step, begin, stride).backward()
            for each in (copied, wrapped):
                self.assertTrue(torch.allclose(each.module.first.weight.grad,
                                               other.first.weight.grad))

    def test_averages_of_a_module(self):
        wrapped, alone = hvd.DistributedDataParallel(Model()), Model()
        averaged, expected = AveragedModel(wrapped), AveragedModel(alone)
        pairs = ((wrapped, averaged, self.rank, self.size), (alone, expected, 0, 1))
        for step in range(3):
            for model, average, begin, stride in pairs:
                model.zero_grad()
                loss_of(model, step, begin, stride).backward()
                sgd(model.parameters()).step()
                average.update_parameters(model)
        with torch.no_grad():
            self.assertAlmostEqual(loss_of(averaged, 1).item(), loss_of(expected, 1).item(), 9)

    def test_copy_of_a_module_of_a_process_set(self):
        """Sets of the job are not copied: what refers to one still does."""
        last = hvd.add_process_set([self.size - 1], duplicate=True)
        for process_set in (last, hvd.global_process_set):
            norm = copy.deepcopy(hvd.SyncBatchNorm(2, process_set=process_set))
            self.assertIs(norm.process_set, process_set)
        hvd.remove_process_set(last)

    def test_layout_of_gradients(self):
        """Is that of the parameter, in the buffers too, and in the same numbers."""
        inputs = torch.randn(12, 3, 5, 5, generator=torch.manual_seed(1))
        torch.manual_seed(2)
        alone = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 2, 1))
        for compression in (hvd.Compression.none, hvd.Compression.fp16):
            for wraps in (False, True):
                model = copy.deepcopy(alone).to(memory_format=torch.channels_last)
                mine = hvd.DistributedDataParallel(model) if wraps else model
                optimizer = sgd(model.parameters())
                if not wraps:
                    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
                for _ in range(3):
                    alone.zero_grad(set_to_none=False)
                    optimizer.zero_grad(set_to_none=False)
                    alone(inputs).square().mean().backward()
                    mine(inputs[self.rank::self.size]).square().mean().backward()
                    if not wraps:
                        optimizer.synchronize()
                    for here, there in zip(model.parameters(), alone.parameters()):
                        self.assertEqual(here.grad.stride(), here.stride())
                        self.assertTrue(torch.allclose(here.grad, there.grad, atol=1e-2))
                self.assertFalse(model[0].weight.grad.is_contiguous())

    def test_layouts_that_differ(self):
        if self.size == 1:
            self.skipTest("nobody differs")
        model = torch.nn.Conv2d(3, 4, 3)
        if self.rank == self.size - 1:
            model.to(memory_format=torch.channels_last)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        model(torch.ones(1, 3, 5, 5)).sum().backward()
        self.fails_everywhere(
            optimizer.step, "mismatch", r"dtypes of 'weight' differ: torch.float32 on ranks? 0.*; "
            rf"torch.float32 with strides \[27, 1, 9, 3\] on rank {self.size - 1}")
