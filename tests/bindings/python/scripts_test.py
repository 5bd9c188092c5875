"""What scripts do with a distributed optimizer besides calling step() after each backward()."""
import copy
import pickle
import threading
import time

import torch
from torch.utils.checkpoint import checkpoint
from training_test import STEPS, Model, TrainingTest, loss_of, momentum, sgd

import guozhuang.torch as hvd


def compute_gradients(model, loss):
    """Without backward, so that no hook runs."""
    trained = [each for each in model.parameters() if each.requires_grad]
    for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained)):
        parameter.grad = gradient


class Scripts(TrainingTest):
    def pair(self, make=sgd, sparse=False, **options):
        """A model and its distributed optimizer, and a model and its optimizer of one process."""
        model, other = Model(sparse), Model(sparse)
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(),
                                             **options)
        return (model, optimizer, self.rank, self.size), (other, make(other.parameters()), 0, 1)

    def train(self, pair, steps, **options):
        for step in steps:
            for model, optimizer, begin, stride in pair:
                optimizer.zero_grad(**options)
                loss_of(model, step, begin, stride).backward()
                optimizer.step()

    def expect_pair(self, pair, tolerance=1e-12):
        self.expect_same(pair[0][0], pair[1][0], tolerance)


class Buffers(Scripts):
    def test_gradients_lie_behind_each_other(self):
        """In the order of bundles, each in the layout of its parameter; a group has a buffer of its
        own, as has each dtype."""
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(),
                                    torch.nn.Linear(4, 2), torch.nn.Linear(2, 2, bias=False))
        model[0].to(memory_format=torch.channels_last)
        hvd.broadcast_parameters(model.state_dict())
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                             groups=[[model[2].weight, model[2].bias]])
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            model(torch.ones(1, 3, 3, 3)).sum().backward()
            optimizer.step()
            for parameters in ([model[3].weight, model[0].bias, model[0].weight],
                               [model[2].bias, model[2].weight]):
                end = parameters[0].grad.data_ptr()
                for parameter in parameters:
                    self.assertEqual(parameter.grad.data_ptr(), end)
                    self.assertEqual(parameter.grad.stride(), parameter.stride())
                    end += parameter.numel() * parameter.element_size()


class SparseGradients(Scripts):
    def test_optimizer_that_wants_sparse_gradients(self):
        """Which they are again when they have been sent dense."""
        for options in ({}, dict(sparse_as_dense=True)):
            embeddings = [torch.nn.Embedding(7, 3, sparse=True).double() for _ in range(2)]
            for each in embeddings:
                torch.nn.init.ones_(each.weight)
            mine, other = (torch.optim.SparseAdam(list(each.parameters())) for each in embeddings)
            optimizer = hvd.DistributedOptimizer(mine, op=hvd.Sum, **options)
            for step in range(3):
                optimizer.zero_grad()
                other.zero_grad()
                (embeddings[0](torch.tensor([self.rank + step])) ** 2).sum().backward()
                (embeddings[1](torch.arange(self.size) + step) ** 2).sum().backward()
                optimizer.step()
                other.step()
            self.assertTrue(torch.allclose(embeddings[0].weight, embeddings[1].weight))

    def test_discard_where_all_gradients_are_sparse(self):
        embedding = torch.nn.Embedding(4, 2, sparse=True)
        hvd.broadcast_parameters(embedding.state_dict())
        optimizer = hvd.DistributedOptimizer(sgd(embedding.parameters()))
        for step in range(3):
            before = embedding.weight.detach().clone()
            optimizer.zero_grad()
            if step < 2 and self.rank == self.size - 1:
                optimizer.discard("no such token")
            else:
                embedding(torch.tensor([1, 2])).sum().backward()
                if step < 2:
                    self.fails_everywhere(optimizer.step, "discarded", "no such token")
                else:
                    optimizer.step()
            changed = (embedding.weight.detach() != before).any(dim=1).tolist()
            self.assertEqual(changed, [False, step == 2, step == 2, False])

    def test_sparse_gradients_that_only_one_rank_has(self):
        embedding, linear = torch.nn.Embedding(5, 2, sparse=True), torch.nn.Linear(2, 1)
        torch.nn.init.ones_(embedding.weight)
        torch.nn.init.ones_(linear.weight)
        torch.nn.init.ones_(linear.bias)
        parameters = [*embedding.parameters(), *linear.parameters()]
        optimizer = hvd.DistributedOptimizer(sgd(parameters), op=hvd.Sum)
        for _ in range(2):
            optimizer.zero_grad()
            inputs = embedding(torch.tensor([3])) if self.rank == 0 else torch.ones(1, 2)
            linear(inputs).sum().backward()
            optimizer.step()
        weights = hvd.allgather(embedding.weight.detach()[None])
        self.assertTrue(torch.equal(weights, weights[:1].expand_as(weights)))
        self.assertLess(weights[0, 3, 0], 1)
        self.assertEqual(weights[0, 2, 0], 1)


class Steps(Scripts):
    def test_mixed_precision(self):
        """With a GradScaler and clipping, as docs/python.md has it; of batches of which one rank's
        is infinite no rank takes the step."""
        has_scaler = hasattr(getattr(torch, "amp", None), "GradScaler")  # of torch 2.3, for CPUs
        pair = self.pair()
        for each in pair:
            each[0].float()
        scalers = [torch.amp.GradScaler("cpu", init_scale=256.0) if has_scaler
                   else torch.cuda.amp.GradScaler(enabled=False) for _ in pair]
        for step in range(STEPS):
            overflows = has_scaler and step == 2
            for (model, optimizer, begin, stride), scaler in zip(pair, scalers):
                before = model.first.weight.detach().clone()
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(model, step, begin, stride).float()
                loss = loss * float("inf") if overflows and begin == 0 else loss
                scaler.scale(loss).backward()
                self.clip_and_step(model, optimizer, scaler)
                self.assertEqual(torch.equal(before, model.first.weight), overflows)
        self.expect_pair(pair, 1e-2)
        self.assertGreater((pair[0][0].first.weight - Model().first.weight).abs().max(), 0.05)

    @staticmethod
    def clip_and_step(model, optimizer, scaler):
        if not hasattr(optimizer, "synchronize"):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
        else:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        scaler.update()

    def test_step_that_fails_on_one_rank(self):
        class Failing(torch.optim.SGD):
            fails = False

            def step(self, closure=None):
                if self.fails:
                    raise MemoryError
                return super().step(closure)

        (model, optimizer, *_), _ = self.pair(lambda parameters: Failing(parameters, lr=0.1))
        optimizer.fails = self.rank == self.size - 1
        loss_of(model, 1, self.rank, self.size).backward()
        if optimizer.fails:
            self.assertRaises(MemoryError, optimizer.step)
        else:
            optimizer.step()
        loss_of(model, 2, self.rank, self.size).backward()
        if self.size > 1:
            self.fails_everywhere(optimizer.step, "mismatch", "reduced and then left out differ")

    def test_steps_that_all_leave_out(self):
        pair = self.pair()
        self.train(pair, (1,))
        (model, optimizer, *_), _ = pair
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, 2, self.rank, self.size).backward()
            optimizer.synchronize()
        self.train(pair, (3,))
        self.expect_pair(pair)

    def test_parameters_that_are_concatenated(self):
        """Whose gradients are parts of one tensor, and each other's changes no change of theirs."""
        parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(sgd(parameters), backward_passes_per_step=2)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                (torch.cat(parameters) * torch.ones(4)).sum().backward()
            optimizer.step()
        self.assertTrue(torch.allclose(torch.cat(parameters), torch.tensor(0.6)))

    def test_discard_after_synchronize(self):
        """By all ranks, which go on with gradients that they have computed by themselves."""
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(sgd([parameter]), op=hvd.Sum)
        for _ in range(2):
            parameter.grad = torch.ones(2)
            optimizer.synchronize()
            optimizer.discard("nothing new")
            parameter.grad = torch.ones(2)
            optimizer.step()
            self.assertEqual(parameter.grad.tolist(), [self.size] * 2)

    def test_zero_grad_after_synchronize(self):
        """It begins a batch, whose gradients the script may compute by itself."""
        pair = self.pair()
        for model, optimizer, begin, stride in pair:
            loss_of(model, 1, begin, stride).backward()
            getattr(optimizer, "synchronize", lambda: None)()
            optimizer.zero_grad()
            compute_gradients(model, loss_of(model, 3, begin, stride))
            optimizer.step()
        self.expect_pair(pair)

    def test_changes_before_synchronize(self):
        """What clips or scales a gradient that is being reduced would change nothing."""
        (model, optimizer, *_), _ = self.pair()
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, 1, self.rank, self.size).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            self.refused("was changed after backward.*call synchronize",
                         optimizer.step)
            optimizer.zero_grad()
            loss_of(model, 1, self.rank, self.size).backward()
            optimizer.step()

    def test_change_of_one_gradient(self):
        """They lie in one buffer, but only the one that was changed is named."""
        (model, optimizer, *_), _ = self.pair()
        for changes in (False, True):
            optimizer.zero_grad(set_to_none=False)
            loss_of(model, 1, self.rank, self.size).backward()
            if changes:
                model.second.weight.grad.add_(1)
                self.refused("the gradient of 'second.weight' was changed", optimizer.step)
            else:
                optimizer.step()

    def test_steps_that_one_rank_leaves_out(self):
        """Of several reducers, whose next batch it discards."""
        model = Model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                             groups=[[model.first.weight], [model.second.weight]])

        def step(clips=False):
            optimizer.zero_grad()
            loss_of(model, 1, self.rank, self.size).backward()
            if clips:
                model.first.weight.grad.zero_()
            optimizer.step()

        step()
        if self.rank == 0:
            self.refused("was changed after backward", step, True)
            optimizer.discard("gives up")
        else:
            step()
            with self.assertRaises(hvd.Error):
                step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=self.size - 1)
        step()
        self.expect_same(model, model)

    def test_reduced_twice(self):
        model = Model()
        wrapped = hvd.DistributedDataParallel(model)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        loss_of(wrapped, 1).backward()
        self.refused("DistributedDataParallel and a DistributedOptimizer must not both",
                     optimizer.step)

    def test_closure_that_decides_by_the_loss(self):
        def search(parameters):
            return torch.optim.LBFGS(parameters, max_iter=4, line_search_fn="strong_wolfe")

        losses = []
        for model, optimizer, begin, stride in self.pair(search):
            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, 1, begin, stride)  # of this rank alone
                loss.backward()
                return loss if step else loss.item()

            for step in range(2):
                losses.append(torch.as_tensor(optimizer.step(closure)).item())
        self.assertAlmostEqual(losses[1], losses[3], 9)

    def test_gradients_without_backward(self):
        """Which a script has computed by itself, after a step with a closure, too."""
        pair = self.pair()
        for model, optimizer, begin, stride in pair:
            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, 1, begin, stride)
                loss.backward()
                return loss

            optimizer.step(closure)
            compute_gradients(model, loss_of(model, 3, begin, stride))
            optimizer.step()
        self.expect_pair(pair)

    def test_passes_are_set_between_steps(self):
        pair = self.pair()
        self.train(pair, (1,))
        (model, optimizer, *_), _ = pair
        loss_of(model, 1).backward()
        self.refused("are being reduced", optimizer.set_backward_passes_per_step, 2)
        optimizer.synchronize()

    def test_checkpointed_layers(self):
        """Whose backward runs another backward."""
        class Checkpointed(torch.nn.Module):
            def __init__(self, reentrant):
                super().__init__()
                torch.manual_seed(5)
                self.first, self.second = (torch.nn.Linear(3, 3).double() for _ in range(2))
                self.reentrant = reentrant

            def forward(self, inputs):
                return checkpoint(lambda each: self.second(each) * self.second(each).tanh(),
                                  self.first(inputs), use_reentrant=self.reentrant)

        everything = torch.randn(12, 3, dtype=torch.float64, generator=torch.manual_seed(1))
        for reentrant in (False, True):
            model, other = Checkpointed(reentrant), Checkpointed(reentrant)
            wrapped = hvd.DistributedDataParallel(Checkpointed(reentrant))
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
            for _ in range(2):
                for each, inputs in ((model, everything[self.rank::self.size]),
                                     (wrapped, everything[self.rank::self.size]),
                                     (other, everything)):
                    each.zero_grad()
                    before = wrapped._gradients.batch
                    (each(inputs) ** 2).mean().backward()
                    if each is wrapped and not reentrant:
                        self.assertEqual(wrapped._gradients.batch, before + 1)
                optimizer.synchronize()
                for each in (model, wrapped):
                    for mine, theirs in zip(each.parameters(), other.parameters()):
                        self.assertTrue(torch.allclose(mine.grad, theirs.grad))

    def test_optimizers_of_several_threads(self):
        pairs = [self.pair() for _ in range(4)]
        for index, pair in enumerate(pairs):
            for model, *_ in pair:
                for parameter in model.parameters():
                    parameter.data.mul_(1 + index / 8)
        threads = [threading.Thread(target=self.train, args=(pair, (1, 3))) for pair in pairs]
        for thread in [*threads[self.rank:], *threads[:self.rank]]:
            thread.start()
            time.sleep(0.05)  # so that each rank begins with another model
        for thread, pair in zip(threads, pairs):
            thread.join()
            self.expect_pair(pair)

    def test_copies(self):
        (model, optimizer, *_), _ = self.pair()
        self.refused("neither copied", copy.deepcopy, optimizer)
        self.refused("neither copied", pickle.dumps, optimizer)
        self.refused("cannot be pickled", pickle.dumps, hvd.DistributedDataParallel(model))
        self.assertEqual(len(copy.deepcopy(optimizer.state_dict())["param_groups"]), 1)
        self.expect_same(copy.deepcopy(model), model)

    def test_outside_the_process_set(self):
        """A rank that is not in the optimizer's process set trains for itself."""
        if self.size == 1:
            self.skipTest("there is no other set")
        late = hvd.add_process_set(range(1, self.size))
        for op in (hvd.Average, hvd.Adasum):
            model, other = Model(), Model()
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=op, process_set=late)
            loss_of(model, 1).backward()
            loss_of(other, 1).backward()
            optimizer.step()
            sgd(other.parameters()).step()
            self.expect_near(model, other)
        hvd.remove_process_set(late)
