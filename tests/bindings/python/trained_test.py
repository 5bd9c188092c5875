"""What is trained: parameters that are frozen, unfrozen, added or replaced on all ranks or some."""
import contextlib
import copy
import itertools

import torch
from scripts_test import Scripts
from training_test import Model, loss_of, momentum, sgd

import guozhuang as gz
import guozhuang.torch as hvd


class Trained(Scripts):
    @property
    def is_last(self):
        return self.rank == self.size - 1

    def refused_on_all(self, call, text, by_this_rank):
        """The ranks that see the mistake discard the batch; the others are told."""
        if by_this_rank:
            self.refused(text, call)
        else:
            self.fails_everywhere(call, "discarded", text)

    def differs(self, name, others_train, call, *arguments):
        """The call fails, since the last rank does not what the others do."""
        last, others = [self.size - 1], list(range(self.size - 1))
        having, lacking = (others, last) if others_train else (last, others)
        pattern = "'{}' requires a gradient on ranks? {}, but not on ranks? {}: all ranks".format(
            name, *(",".join(map(str, ranks)) for ranks in (having, lacking)))
        error = self.fails_everywhere(lambda: call(*arguments), "mismatch", pattern)
        self.assertEqual((error.tensor, error.ranks), (name, lacking))

    def expect_alike(self, model):
        self.expect_same(model, model)

    def two_layers(self, wraps, **options):
        """A model, what is called to compute with it, and its optimizer."""
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        if wraps:
            return model, hvd.DistributedDataParallel(model), sgd(model.parameters())
        return model, model, hvd.DistributedOptimizer(
            sgd(model.parameters()), model.named_parameters(), **options)

    def backward(self, module):
        module(torch.full((1, 2), self.rank + 1.0)).sum().backward()


class Frozen(Trained):
    """After the first batch."""

    def test_on_all_ranks(self):
        """And trained again."""
        pair = self.pair(momentum)
        self.train(pair, (1, 3))
        before = pair[0][0].first.weight.detach().clone()
        for trains in (False, True):
            for model, *_ in pair:
                model.first.requires_grad_(trains)
                model.zero_grad(set_to_none=True)
            self.train(pair, (1, 3), set_to_none=True)
            self.assertNotEqual(torch.equal(before, pair[0][0].first.weight), trains)
            self.expect_pair(pair)

    def test_on_some_ranks(self):
        """Which contribute zeros, also with a gradient that they have kept."""
        if self.size == 1:
            self.skipTest("these are all ranks")
        for sparse, op, on_all_but_last in itertools.product(
                (False, True), (hvd.Sum, hvd.Average), (False, True)):
            model = Model(sparse)
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=op)
            loss_of(model, 1, self.rank, self.size).backward()
            optimizer.step()
            freezes = self.is_last != on_all_but_last
            model.embedding.requires_grad_(not freezes)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.grad = None
            loss_of(model, 3, self.rank, self.size).backward()
            mine = model.embedding.weight.grad
            mine = torch.zeros(7, 4).double() if freezes else mine.to_dense().clone()
            optimizer.step()
            self.assertTrue(torch.allclose(model.embedding.weight.grad.to_dense(),
                                           hvd.allreduce(mine, op=op)))
            self.expect_alike(model)

    def test_that_keep_a_gradient(self):
        """Of the last batch, or one that the script has set. It is left alone, since no rank uses
        the parameter."""
        for sparse, op in itertools.product((False, True), (hvd.Sum, hvd.Average)):
            model = Model(sparse)
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=op)
            loss_of(model, 1, self.rank, self.size).backward()
            optimizer.step()
            weight = model.embedding.weight
            kept = weight.grad.to_dense().clone()
            weight.requires_grad_(False)
            for step in range(4):
                if step == 2:
                    kept += 1
                    weight.grad = kept.clone()
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.grad = None
                loss_of(model, step, self.rank, self.size).backward()
                optimizer.step()
                self.assertTrue(torch.equal(weight.grad.to_dense(), kept))
            self.expect_alike(model)

    def test_when_backward_has_come_to_them(self):
        """In this pass or in one before: they are used in this batch."""
        for wraps, passes, before in itertools.product((False, True), (1, 2), (0, 2)):
            model, module, optimizer = self.two_layers(
                wraps, **({} if wraps else dict(backward_passes_per_step=passes)))
            for freezes in [False] * before + [True]:
                optimizer.zero_grad(set_to_none=True)
                if passes == 2:
                    with module.no_sync() if wraps else contextlib.nullcontext():
                        self.backward(module)
                    model[0].requires_grad_(not freezes)
                self.backward(module)
                model[0].requires_grad_(not freezes)
                optimizer.step()
                self.expect_alike(model)

    def test_before_a_batch_that_is_discarded(self):
        """On some ranks, while another discards it."""
        for wraps in (False, True):
            model, module, optimizer = self.two_layers(wraps)
            self.backward(module)
            optimizer.step()
            optimizer.zero_grad()
            model[0].requires_grad_(self.rank != self.size - 1)
            if self.rank == 0:
                (module if wraps else optimizer).discard("bad image 47.png")
            else:
                def step():
                    self.backward(module)
                    optimizer.step()

                self.fails_everywhere(step, "discarded", "bad image 47.png")
            model[0].requires_grad_(True)
            optimizer.zero_grad()
            self.backward(module)
            optimizer.step()
            self.expect_alike(model)

    def test_while_the_ranks_agree_again(self):
        """After a batch that is discarded. They are not new when they are trained again."""
        for sparse in (False, True):
            pair = self.pair(sparse=sparse)
            (model, optimizer, *_), _ = pair
            self.train(pair, (1,))
            for each, *_ in pair:
                each.embedding.requires_grad_(False)
            if self.is_last:
                optimizer.discard("bad image 47.png")
            else:
                loss_of(model, 3).backward()
                self.fails_everywhere(optimizer.step, "discarded", "bad image 47.png")
            self.train(pair, (3,), set_to_none=True)
            for each, *_ in pair:
                each.embedding.requires_grad_(True)
            self.train(pair, (1, 3))
            self.expect_pair(pair)
            self.assertEqual(model.embedding.weight.grad.is_sparse, sparse)

    def test_discarded_beside_a_sparse_mismatch(self):
        """All ranks agree again after it, also those for which the mismatch came first."""
        weight = torch.nn.Parameter(torch.ones(3, 2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])

        def step():
            weight.grad = None
            torch.nn.functional.embedding(torch.tensor([0]), weight, sparse=True).sum().backward()
            optimizer.step()

        step()
        weight.grad = None if self.is_last else torch.ones(3, 2).to_sparse(2)
        with self.assertRaises(gz.Error) if self.size > 1 else contextlib.nullcontext():
            optimizer.discard("bad image 47.png") if self.is_last else optimizer.step()
        step()
        self.assertEqual(weight.tolist(), [[-1, -1], [1, 1], [1, 1]])

    def test_whole_modules(self):
        """Which backward cannot come to, unless their inputs require a gradient."""
        wrapped = hvd.DistributedDataParallel(torch.nn.Linear(2, 1))
        head = torch.nn.Linear(1, 1)

        def backward(**options):
            head(wrapped(torch.ones(1, 2, **options))).sum().backward()

        backward()
        wrapped.requires_grad_(False)
        backward(requires_grad=True)
        with torch.no_grad():
            wrapped(torch.ones(1, 2))
        wrapped.eval()(torch.ones(1, 2))
        wrapped.train().requires_grad_(not self.is_last)
        self.refused_on_all(backward, "requires a gradient any more", self.is_last)
        wrapped.requires_grad_(True)
        wrapped.zero_grad()
        backward()
        self.assertEqual(wrapped.module.bias.grad.tolist(),
                         hvd.allreduce(head.weight.detach()).flatten().tolist())


class BeginLater(Trained):
    """To require a gradient, when the first batch is over: an error, after which they are trained,
    too."""

    def frozen_at_first(self, sparse, steps):
        pair = self.pair(sparse=sparse)
        for model, *_ in pair:
            model.embedding.requires_grad_(False)
        self.train(pair, steps)
        return pair

    def test_on_all_ranks_or_some(self):
        for sparse, all_do in itertools.product((False, True), (False, True)):
            pair = self.frozen_at_first(sparse, (1, 3))
            model = pair[0][0]
            model.embedding.requires_grad_(all_do or self.is_last)
            self.refused_on_all(lambda: self.train(pair[:1], (5,)),
                                "'embedding.weight' requires a gradient, but did not in the first "
                                "batch: after unfreezing.*make a new", all_do or self.is_last)
            if not all_do and self.size > 1:
                self.differs("embedding.weight", False, self.train, pair[:1], (5,))
            for each in pair:
                each[0].embedding.requires_grad_(True)
            self.train(pair, (3, 5))
            self.expect_pair(pair)

    def test_and_are_frozen_again_before_the_step(self):
        (model, optimizer, *_), _ = self.frozen_at_first(False, (1,))
        model.embedding.requires_grad_(self.is_last)
        loss_of(model, 3).backward()
        model.embedding.requires_grad_(False)
        self.refused_on_all(optimizer.step, "did not in the first batch", self.is_last)

    def test_before_the_first_batch(self):
        pair = self.frozen_at_first(False, ())
        for each in pair:
            each[0].embedding.requires_grad_(True)
        self.train(pair, (1, 3))
        self.expect_pair(pair)

    def test_in_a_batch_that_is_discarded(self):
        pair = self.frozen_at_first(True, (1,))
        (model, optimizer, *_), _ = pair
        for each in pair:
            each[0].embedding.requires_grad_(True)
        optimizer.zero_grad()
        if self.is_last:
            optimizer.discard("bad image 47.png")
        else:
            loss_of(model, 3).backward()
            self.refused("did not in the first batch", optimizer.step)
        self.train(pair, (1, 3))
        self.expect_pair(pair)

    def test_in_a_module(self):
        model, wrapped, optimizer = self.two_layers(True)
        model[0].requires_grad_(False)
        self.backward(wrapped)
        model[0].requires_grad_(self.is_last)

        def step():
            optimizer.zero_grad()
            self.backward(wrapped)
            optimizer.step()

        self.refused_on_all(step, "'0.weight' requires a gradient, but did not", self.is_last)
        if self.size > 1:
            self.differs("0.weight", False, step)
        model[0].requires_grad_(True)
        step()
        step()
        self.expect_alike(model)

    def test_groups_that_are_added(self):
        """To the optimizer that was wrapped: a new one goes on with its state."""
        for broadcasts in (False, True):
            self.groups_are_added(broadcasts)

    def groups_are_added(self, broadcasts):
        model = Model()
        inner = momentum(list(model.parameters())[-2:])
        other = momentum(list((alone := Model()).parameters())[-2:])
        optimizer = hvd.DistributedOptimizer(inner)
        self.train(((model, optimizer, self.rank, self.size), (alone, other, 0, 1)), (1,))
        if broadcasts:
            hvd.broadcast_optimizer_state(optimizer)
            optimizer.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 0.2
        for each, trained in ((optimizer, model), (other, alone)):
            each.add_param_group(dict(params=[*trained.first.parameters()], lr=0.05))
        loss_of(model, 3).backward()
        self.refused("'parameter 2' requires a gradient", optimizer.step)
        optimizer = hvd.DistributedOptimizer(inner)
        pair = (model, optimizer, self.rank, self.size), (alone, other, 0, 1)
        self.train(pair, (1, 3))
        self.expect_pair(pair)


class Replaced(Trained):
    def expect_averages(self, wrapped):
        wrapped.zero_grad()
        self.backward(wrapped)
        for parameter in wrapped.parameters():
            mine = torch.autograd.grad(wrapped.module(torch.full((1, 2), self.rank + 1.0)).sum(),
                                       parameter)[0]
            self.assertTrue(torch.allclose(parameter.grad, hvd.allreduce(mine)))

    def test_in_a_module_before_the_first_batch(self):
        model, wrapped, _ = self.two_layers(True)
        model[1] = torch.nn.Linear(2, 3)
        model.append(torch.nn.Linear(3, 1))
        hvd.broadcast_parameters(model.state_dict())
        for _ in range(2):
            self.expect_averages(wrapped)

    def test_in_a_module_later(self):
        model, wrapped, _ = self.two_layers(True)
        self.expect_averages(wrapped)
        model[1] = torch.nn.Linear(2, 1)
        hvd.broadcast_parameters(model.state_dict())
        self.refused("'1.weight' requires a gradient, but did not", self.backward, wrapped)
        for _ in range(2):
            self.expect_averages(wrapped)

    def test_in_groups_of_an_optimizer(self):
        """Whose parameters have numbers for names."""
        first, second, third = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
        optimizer = hvd.DistributedOptimizer(sgd([first, second]), op=hvd.Sum)

        def step(*parameters):
            optimizer.zero_grad()
            sum(parameter.sum() for parameter in parameters).backward()
            optimizer.step()

        step(first, second)
        optimizer.param_groups.clear()
        optimizer.add_param_group(dict(params=[second, third], lr=0.1))
        self.refused("did not in the first batch", step, second, third)
        for _ in range(2):
            step(second, third)
        for parameter, steps in ((first, 1), (second, 3), (third, 2)):
            self.assertTrue(torch.allclose(parameter, torch.tensor(1 - 0.1 * steps * self.size)))


class Differing(Trained):
    def setUp(self):
        if self.size == 1:
            self.skipTest("nobody differs")

    def test_in_the_first_batch(self):
        for sparse, trains in itertools.product((False, True), (False, True)):
            pair = self.pair(sparse=sparse)
            model = pair[0][0]
            model.embedding.requires_grad_(trains != self.is_last)
            for _ in range(2):
                self.differs("embedding.weight", trains, self.train, pair[:1], (1,))
            model.embedding.requires_grad_(True)
            self.train(pair, (3, 5))
            self.expect_pair(pair)

    def test_in_one_of_two_modules(self):
        self.in_modules(1)

    def test_in_both_of_two_modules(self):
        self.in_modules(2)

    def in_modules(self, count):
        """In one backward, which comes to them in another order on each rank."""
        modules = [hvd.DistributedDataParallel(torch.nn.Linear(2, 1)) for _ in range(2)]

        def backward():
            for module in modules:
                module.zero_grad()
            ordered = modules if self.rank % 2 else modules[::-1]
            inputs = torch.full((1, 2), self.rank + 1.0)
            sum(module(inputs).sum() for module in ordered).backward()

        for module in modules[:count]:
            module.module.bias.requires_grad_(not self.is_last)
        for _ in range(2):
            self.differs("bias", True, backward)
        for module in modules:
            module.module.bias.requires_grad_(True)
        for _ in range(2):
            backward()
            for module in modules:
                self.assertEqual(module.module.weight.grad.tolist(), [[(self.size + 1) / 2] * 2])

    def test_in_the_first_batch_after_a_join(self):
        for wraps in (False, True):
            model, module, optimizer = self.two_layers(wraps)

            def step():
                optimizer.zero_grad()
                self.backward(module)
                optimizer.step()

            step()
            hvd.join()
            model[0].requires_grad_(not self.is_last)
            self.differs("0.weight", True, step)
            model[0].requires_grad_(True)
            for _ in range(2):
                step()
            self.expect_alike(model)

    def test_with_adasum(self):
        model, optimizer, *_ = self.pair(op=hvd.Adasum)[0]
        start = copy.deepcopy(model)
        loss_of(model, 1).backward()
        model.first.bias.requires_grad_(not self.is_last)
        self.differs("first.bias", True, optimizer.step)
        self.expect_same(model, start)


class Joins(Trained):
    def test_before_the_first_batch(self):
        """A rank that had no data makes its first step when the others have made some, of which one
        has failed, and frozen parameters."""
        for sparse, fails in itertools.product((False, True), (False, True)):
            model = Model(sparse)
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())

            def step():
                optimizer.zero_grad()
                loss_of(model, 1, self.rank, self.size).backward()
                optimizer.step()

            if not self.is_last:
                model.first.requires_grad_(not fails)
                step()
                model.first.requires_grad_(True)
                if fails:
                    self.refused("did not in the first batch", step)
                step()
            last = hvd.join()
            hvd.broadcast_parameters(model.state_dict(), root_rank=last)
            step()
            model.second.requires_grad_(False)
            hvd.join()
            step()
            self.expect_alike(model)


class OtherTypes(Trained):
    """Module.half() and its like replace the memory of parameters and of their `grad`."""

    def test_of_an_optimizers_parameters(self):
        model, module, optimizer = self.two_layers(False)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            model.to(dtype)
            for _ in range(2):
                optimizer.zero_grad(set_to_none=False)
                module(torch.full((1, 2), self.rank + 1.0, dtype=dtype)).sum().backward()
                optimizer.step()
            module(torch.ones(1, 2, dtype=dtype)).sum().backward()
            self.refused("was computed again",
                         module(torch.ones(1, 2, dtype=dtype)).sum().backward)
            optimizer.discard("two backwards")
        self.assertEqual(model[0].weight.grad.dtype, torch.bfloat16)
        weights = hvd.allgather(model[0].weight.detach().flatten()[None])
        self.assertTrue(torch.equal(weights, weights[:1].expand_as(weights)))

    def test_of_a_modules_parameters(self):
        wrapped = hvd.DistributedDataParallel(torch.nn.Linear(2, 1))
        for dtype in (torch.float32, torch.float64, torch.float32):
            wrapped.bfloat16()
            wrapped.to(dtype)
            for _ in range(2):
                wrapped.zero_grad()
                wrapped(torch.full((1, 2), self.rank + 1.0, dtype=dtype)).sum().backward()
                self.assertEqual(wrapped.module.weight.grad.tolist(), [[(self.size + 1) / 2] * 2])
