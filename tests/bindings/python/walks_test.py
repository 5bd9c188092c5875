"""Trainers that are drawn from a seed, options of the optimizer and what its script does from batch
to batch: against the same trainer in one process with the whole batch; and such as draw other
things on each rank."""
import random

import torch
from training_test import TrainingTest

import guozhuang.torch as hvd

WALKS, BATCHES, SAMPLES = 40, 7, 12
SEED = 20_000


class Model(torch.nn.Module):
    """Of which a batch may leave out the embedding, and one of two heads."""

    def __init__(self, seed, sparse):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(9, 3, sparse=sparse)
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(2))
        self.double()

    def loss(self, inputs, embeds, head):
        hidden = self.embedding(inputs) if embeds else inputs[:, None].double().expand(-1, 3) / 9
        hidden = torch.tanh(self.second(torch.tanh(self.first(hidden))))
        return (self.heads[head](hidden).squeeze(1) - torch.cos(inputs.double())).pow(2).mean()


class Walk:
    """One trainer, which all ranks draw alike: they train `model`, and each alone `other`."""

    def __init__(self, seed, rank, size):
        self.draw, self.rank, self.size = random.Random(seed), rank, size
        self.sparse = self.chance(0.5)
        self.model, self.other = (Model(seed, self.sparse) for _ in range(2))
        self.passes = self.draw.choice((1, 1, 2, 3))
        self.freeze, self.thaw = self.draw.sample(range(1, 2 * BATCHES), 2)  # if ever
        op = hvd.Sum if self.chance(0.2) else hvd.Average
        self.optimizer = hvd.DistributedOptimizer(
            self.make(self.model, 0.1 / (size if op == hvd.Sum else 1)),
            self.model.named_parameters() if self.chance(0.7) else None, op=op,
            backward_passes_per_step=self.passes, **self.options(op))
        self.alone = self.make(self.other, 0.1)

    def chance(self, probability):
        return self.draw.random() < probability

    @staticmethod
    def make(model, rate):
        momentum = 0.0 if model.embedding.sparse else 0.9
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)

    def options(self, op):
        options = dict(sparse_as_dense=self.chance(0.3))
        if op == hvd.Average and self.chance(0.3):
            options["gradient_predivide_factor"] = 4.0
        if not self.sparse and self.chance(0.5):
            model = self.model
            options["groups"] = self.draw.choice(
                (1, 3, [[model.first.weight, model.heads[0].bias], [model.second.weight]]))
        return options

    def train_second(self, trains):
        for model in (self.model, self.other):
            model.second.requires_grad_(trains)

    def batch(self, number):
        if number in (self.freeze, self.thaw):
            self.train_second(number == self.thaw)
        if self.chance(0.2):
            self.passes = self.draw.choice((1, 2))
            self.optimizer.set_backward_passes_per_step(self.passes)
        to_none, synchronizes, discards = self.chance(0.5), self.chance(0.2), self.chance(0.15)
        culprit, after = self.draw.randrange(self.size), self.draw.randrange(self.passes)
        passes = [self.draw_pass() for _ in range(self.passes - self.chance(0.2))] or [
            self.draw_pass()]
        to_none |= number == self.freeze  # after a batch that failed only some ranks have a `grad`
        for optimizer in (self.optimizer, self.alone):
            optimizer.zero_grad(set_to_none=to_none)
        if discards:
            self.discarded(passes[:after] if self.rank == culprit else passes, culprit)
        else:
            self.backward(self.model, passes, self.rank, self.size)
            self.backward(self.other, passes, 0, 1)
            self.step(synchronizes)

    def draw_pass(self):
        """Inputs, whether they are embedded, and by which head they go."""
        inputs = torch.tensor([self.draw.randrange(9) for _ in range(SAMPLES)])
        return inputs, self.chance(0.8), int(self.chance(0.3))

    @staticmethod
    def backward(model, passes, begin, stride):
        for inputs, embeds, head in passes:
            (model.loss(inputs[begin::stride], embeds, head) / len(passes)).backward()

    def discarded(self, passes, culprit):
        self.backward(self.model, passes, self.rank, self.size)
        if self.rank == culprit:
            self.optimizer.discard("drawn")
            return
        try:
            self.optimizer.step()
        except hvd.Error as error:
            assert error.code == "discarded", error
        else:
            raise AssertionError("a batch that was discarded, and a step")

    def step(self, synchronizes):
        for parameter in self.other.parameters():  # a gradient that is absent counts as zero
            is_sparse = parameter is self.other.embedding.weight and self.sparse
            if parameter.requires_grad and parameter.grad is None and not is_sparse:
                parameter.grad = torch.zeros_like(parameter)
        self.alone.step()
        if synchronizes:
            self.optimizer.synchronize()
            with self.optimizer.skip_synchronize():
                self.optimizer.step()
        else:
            self.optimizer.step()


class StrayingWalk:
    """Each rank freezes and unfreezes layers as it draws them itself, in half of the batches."""

    def __init__(self, seed, rank, size):
        self.shared, self.own = random.Random(seed), random.Random(f"{seed}, rank {rank}")
        self.rank, self.size = rank, size
        self.model = Model(seed, self.shared.random() < 0.5)
        self.layers = self.model.embedding, self.model.first, self.model.second
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05), self.model.named_parameters(),
            op=self.shared.choice((hvd.Average, hvd.Sum)), num_groups=self.shared.choice((0, 2)))
        self.model.first.requires_grad_(self.shared.random() < 0.7)

    def batch(self):
        """Returns whether this rank has stepped."""
        draw = self.own if self.shared.random() < 0.5 else self.shared
        culprit = self.shared.randrange(6 * self.size)
        for layer in self.layers:
            if draw.random() < 0.25:
                layer.requires_grad_(draw.random() < 0.6)
        late, embeds = draw.sample(self.layers, draw.randrange(2)), draw.random() < 0.7
        self.optimizer.zero_grad(set_to_none=True)
        try:
            if self.rank == culprit:
                self.optimizer.discard("drawn")
                return False
            self.model.loss(torch.tensor([self.rank, 1]), embeds, 0).backward()
            for layer in late:
                layer.requires_grad_(False)
            self.optimizer.step()
        except hvd.Error as error:
            assert error.code in ("discarded", "mismatch", "invalid_argument"), error
            return False
        return True


class Walks(TrainingTest):
    def test_walks(self):
        for seed in range(SEED, SEED + WALKS):
            with self.subTest(seed=seed):
                walk = Walk(seed, self.rank, self.size)
                for number in range(BATCHES):
                    walk.batch(number)
                    self.expect_same(walk.model, walk.other, 1e-11)

    def test_ranks_that_differ(self):
        """A batch ends alike on all ranks, and leaves the same model."""
        have_stepped = []
        for seed in range(SEED, SEED + WALKS):
            with self.subTest(seed=seed):
                walk = StrayingWalk(seed, self.rank, self.size)
                for _ in range(BATCHES):
                    outcomes = hvd.allgather_object(walk.batch())
                    self.assertEqual(outcomes, outcomes[:1] * self.size)
                    self.expect_same(walk.model, walk.model)
                    have_stepped.append(outcomes[0])
        self.assertEqual(set(have_stepped), {False, True})
