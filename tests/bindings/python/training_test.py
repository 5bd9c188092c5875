"""Trainers on several ranks against the same trainer in one process with the whole batch."""
import copy
import warnings

import ranks
import torch

import guozhuang.torch as hvd

STEPS, SAMPLES = 4, 12  # a batch that 1, 2, 3 and 4 ranks share evenly


class Model(torch.nn.Module):
    """Parameters of several shapes, one of which every other batch does not use, and others that
    are not trained."""

    def __init__(self, sparse=False):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = torch.nn.Embedding(7, 4, sparse=sparse)
        self.first, self.second = torch.nn.Linear(4, 5), torch.nn.Linear(5, 1)
        self.sometimes = torch.nn.Parameter(torch.ones(1))
        self.fixed = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.double()

    def forward(self, inputs, step):
        hidden = torch.tanh(self.first(self.embedding(inputs)))
        output = self.second(hidden).squeeze(1) * self.fixed
        return output * self.sometimes if step % 2 else output


def batch(step):
    inputs = torch.arange(SAMPLES) * (step + 3) % 7
    return inputs, torch.cos(torch.arange(SAMPLES, dtype=torch.float64) + step)


def loss_of(model, step, begin=0, stride=1):
    inputs, targets = (each[begin::stride] for each in batch(step))
    return ((model(inputs, step) - targets) ** 2).mean()


class TrainingTest(ranks.RanksTest):
    def trained(self, make_optimizer, model=None, **options):
        """The model after some steps of a distributed optimizer."""
        model = model or Model()
        optimizer = hvd.DistributedOptimizer(
            make_optimizer(model.parameters()), named_parameters=model.named_parameters(),
            **options)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, self.rank, self.size).backward()
            optimizer.step()
        return model

    def alone(self, make_optimizer, model=None):
        """The same of one process, with the whole batch."""
        model = model or Model()
        optimizer = make_optimizer(model.parameters())
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            for parameter in model.parameters():  # a gradient that is absent counts as zero
                if parameter.requires_grad and parameter.grad is None and not is_sparse(model):
                    parameter.grad = torch.zeros_like(parameter)
            loss_of(model, step).backward()
            optimizer.step()
        return model

    def expect_near(self, model, other, tolerance=1e-12):
        for (name, mine), theirs in zip(model.named_parameters(), other.parameters()):
            difference = (mine - theirs).abs().max().item()
            self.assertLessEqual(difference, tolerance, name)

    def expect_same(self, model, other, tolerance=1e-12):
        """And that all ranks have the same bits."""
        self.expect_near(model, other, tolerance)
        bits = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
        self.assertEqual(hvd.allgather_object(bits), [bits] * self.size)


def is_sparse(model):
    return model.embedding.sparse


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


class Optimizers(TrainingTest):
    def test_trains_like_one_process(self):
        for make in (sgd, momentum, torch.optim.Adam):
            self.expect_same(self.trained(make), self.alone(make))
        start = Model()
        self.assertGreater((self.alone(sgd).first.weight - start.first.weight).abs().max(), 0.01)

    def test_options_that_change_nothing(self):
        expected = self.alone(momentum)
        model = Model()
        groups = [[model.first.weight, model.second.bias], [model.embedding.weight]]
        self.expect_same(self.trained(momentum, model, groups=groups), expected)
        for options in (dict(groups=3), dict(num_groups=2), dict(gradient_predivide_factor=4.0),
                        dict(sparse_as_dense=True)):
            self.expect_same(self.trained(momentum, **options), expected)

    def test_sum(self):
        def slower(parameters):
            return torch.optim.SGD(parameters, lr=0.1 / self.size)

        self.expect_same(self.trained(slower, op=hvd.Sum), self.alone(sgd))

    def test_compression(self):
        contexts = set()

        class Rounded(hvd.Compressor):
            """A user-defined compressor, with a context for each tensor. It changes how they
            lie in memory."""

            @staticmethod
            def compress(tensor):
                return tensor.float().t().contiguous().t(), bool(tensor.any())

            @staticmethod
            def decompress(tensor, ctx):
                contexts.add(ctx)
                return tensor.double()

        expected = self.alone(sgd)
        for compression, tolerance in ((hvd.Compression.fp16, 1e-3), (hvd.Compression.bf16, 1e-2),
                                       (Rounded, 1e-7)):
            model = self.trained(sgd, compression=compression)
            self.expect_same(model, expected, tolerance)
            self.assertGreater((model.first.weight - expected.first.weight).abs().max(), 1e-12)
        self.assertIn(True, contexts)

    def test_compression_of_the_shape(self):
        class Flat(hvd.Compression.none):
            @staticmethod
            def compress(tensor):
                return tensor.flatten(), None

        self.refused(r"compression must keep the shape of a gradient, \[\d+, \d+\], and made it",
                     self.trained, sgd, compression=Flat)

    def test_sparse_gradients(self):
        expected = self.alone(sgd)
        for options in ({}, dict(sparse_as_dense=True), dict(gradient_predivide_factor=2.0)):
            self.expect_same(self.trained(sgd, Model(sparse=True), **options), expected)

    def test_several_passes(self):
        model, other = Model(), Model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                             backward_passes_per_step=2)
        alone = sgd(other.parameters())
        for step in range(0, STEPS, 2):
            for each in (step, step + 1):
                (loss_of(model, each, self.rank, self.size) / 2).backward()
                (loss_of(other, each) / 2).backward()
            for each in (optimizer, alone):
                each.step()
                each.zero_grad()
        self.expect_same(model, other)
        optimizer.set_backward_passes_per_step(1)
        loss_of(model, 0, self.rank, self.size).backward()
        self.assertTrue(optimizer._gradients.in_flight)
        optimizer.step()
        self.refused("1 at least", optimizer.set_backward_passes_per_step, 0)

    def test_clipping(self):
        model, other = Model(), Model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        alone = sgd(other.parameters())
        for step in range(STEPS):
            loss_of(model, step, self.rank, self.size).backward()
            loss_of(other, step).backward()
            optimizer.synchronize()
            for each in (model, other):
                torch.nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
            alone.step()
            optimizer.zero_grad()
            alone.zero_grad()
        self.expect_same(model, other)

    def test_step_after_synchronize_reduces_once(self):
        model, other = Model(), Model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Sum)
        loss_of(model, 0).backward()
        loss_of(other, 0).backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        self.assertRegex(str(caught[0].message),  # by which scripts of Horovod's filter it
                         r"^optimizer.step\(\) called without optimizer.skip_synchronize\(\) "
                         r"context after optimizer.synchronize\(\)")
        torch.optim.SGD(other.parameters(), lr=0.1 * self.size).step()
        self.expect_same(model, other)

    def test_closure(self):
        model, other = Model(), Model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.LBFGS(model.parameters(), max_iter=3), model.named_parameters())
        alone = torch.optim.LBFGS(other.parameters(), max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, 1, self.rank, self.size)
            loss.backward()
            return hvd.allreduce(loss.detach(), name="loss")

        def closure_alone():
            alone.zero_grad()
            loss = loss_of(other, 1)
            loss.backward()
            return loss

        for _ in range(2):
            loss, loss_alone = optimizer.step(closure), alone.step(closure_alone)
            self.assertLess(abs(loss.item() - loss_alone.item()), 1e-9)
        self.expect_same(model, other, 1e-9)

    def test_adasum(self):
        model, start = Model(), Model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Adasum)
        loss_of(model, 1).backward()  # the same on all ranks, whose Adasum is the same again
        optimizer.step()
        loss_of(start, 1).backward()
        sgd(start.parameters()).step()
        self.expect_same(model, start)
        trained = self.trained(sgd, op=hvd.Adasum, compression=hvd.Compression.fp16)
        self.expect_same(trained, trained)
        if self.size > 1:
            self.refused("cannot be discarded", optimizer.discard, "bad image 47.png")
            self.refused("cannot skip", optimizer.skip_synchronize)
        losses = [loss_of(each, 0).item() for each in (Model(), trained)]
        self.assertLess(losses[1], losses[0])

    def test_what_users_see_of_it(self):
        model = Model()
        inner = momentum(model.parameters())
        scheduler_before = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
        self.assertIsInstance(optimizer, torch.optim.SGD)
        self.assertEqual(type(optimizer).__name__, "SGD")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        loss_of(model, 0, self.rank, self.size).backward()
        optimizer.step()
        scheduler.step()
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.05)
        state = copy.deepcopy(optimizer.state_dict())
        self.assertEqual(len(state["state"]), 6)  # as many parameters are trained
        optimizer.load_state_dict(state)
        self.assertIs(scheduler_before.optimizer.param_groups[0]["params"][0],
                      optimizer.param_groups[0]["params"][0])

    def test_two_optimizers(self):
        first, second = Model(), Model()
        optimizers = [hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
                      for model in (first, second)]
        for model, optimizer in zip((first, second), optimizers):
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, step, self.rank, self.size).backward()
                optimizer.step()
            self.expect_same(model, self.alone(sgd))

    def test_one_after_another(self):
        model = Model()
        for _ in range(3):  # hooks of those that are gone must not be called
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
            loss_of(model, 1, self.rank, self.size).backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_ranks_that_run_out_of_data(self):
        model = Model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        for step in range(2 + self.rank):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        last = hvd.join()
        self.assertEqual(last, self.size - 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        other = Model()
        alone = sgd(other.parameters())
        for step in range(2 + last):
            alone.zero_grad()
            loss_of(other, step).backward()
            alone.step()
        self.expect_same(model, other)

    def test_process_set(self):
        if self.size < 3:
            self.skipTest("there is no smaller set with two ranks")
        pair = hvd.add_process_set([1, 2])
        if pair.included():
            model = Model()
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), process_set=pair)
            loss_of(model, 0, pair.rank(), pair.size()).backward()
            optimizer.step()
            other = Model()
            loss_of(other, 0).backward()
            sgd(other.parameters()).step()
            self.assertTrue(torch.allclose(model.first.weight, other.first.weight))
            del optimizer
        hvd.remove_process_set(pair)


class BadTrainers(TrainingTest):
    def test_bad_arguments(self):
        model = Model()
        inner = sgd(model.parameters())
        names = list(model.named_parameters())
        make = hvd.DistributedOptimizer
        self.refused("are not among", make, inner, names[:2])
        self.refused("same name", make, inner, [("x", each) for _, each in names])
        self.refused("pairs", make, inner, model.parameters())
        self.refused("op=Average", make, inner, op=hvd.Sum, gradient_predivide_factor=2.0)
        self.refused("a positive number", make, inner, gradient_predivide_factor=0)
        self.refused("1 at least", make, inner, backward_passes_per_step=0)
        self.refused("op must be", make, inner, op="avg")
        for op in (hvd.Min, hvd.Max, hvd.Product, 17):
            self.refused("op must be Average, Sum, Adasum", make, inner, op=op)
        self.refused("of one process is wanted", make, model)
        self.refused("of one process is wanted", make, make(inner))
        self.refused("0 at least", make, inner, groups=-1)
        self.refused("each in one", make, inner, groups=[[names[0][1]], [names[0][1]]])

    def test_backward_twice_and_early_zero_grad(self):
        model = Model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        for _ in range(3):
            loss_of(model, 1).backward()
            self.refused(r"that are being reduced: call it after step.*discard\(reason\) gives",
                         optimizer.zero_grad)
            self.refused("are being reduced", optimizer.set_backward_passes_per_step, 2)
            self.refused(r"'.*' was computed again before.* say backward_passes_per_step "
                         r"\(it is 1\).*requires_grad_\(False\).* discard\(\)",
                         loss_of(model, 1).backward)
            optimizer.synchronize()
            optimizer.zero_grad()

    def test_discarded_batch(self):
        model = Model(sparse=True)
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            before = model.first.weight.detach().clone()
            if step % 2 == 1 and self.rank == self.size - 1:
                optimizer.discard("no such file 47.png")
                continue
            loss_of(model, step, self.rank, self.size).backward()
            if step % 2 == 0 or self.size == 1:
                optimizer.step()
            else:
                self.fails_everywhere(optimizer.step, "discarded",
                                      f"by rank {self.size - 1}: no such file 47.png")
                self.assertTrue(torch.equal(before, model.first.weight))
        self.expect_same(model, model)

    def test_parameters_that_differ(self):
        if self.size == 1:
            self.skipTest("nobody differs")
        model = Model()
        with torch.no_grad():
            model.second.bias += self.rank
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        loss_of(model, 1).backward()
        self.fails_everywhere(optimizer.step, "mismatch", "second.bias.*broadcast_parameters")
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer.zero_grad()
        loss_of(model, 1).backward()
        optimizer.step()
        self.expect_same(model, model)


class Modules(TrainingTest):
    def test_distributed_data_parallel(self):
        model = Model()
        with torch.no_grad():
            model.second.bias += self.rank  # is broadcast
        wrapped = hvd.DistributedDataParallel(model, bucket_cap_mb=1e-4)
        optimizer = momentum(wrapped.parameters())
        alone = momentum((other := Model()).parameters())
        for step in range(STEPS):
            for each in (optimizer, alone):
                each.zero_grad(set_to_none=step % 2 == 0)
            loss_of(wrapped, step, self.rank, self.size).backward()
            loss_of(other, step).backward()
            optimizer.step()
            alone.step()
        self.expect_same(model, other)
        self.assertIn("module.second.bias", wrapped.state_dict())

    def test_no_sync(self):
        model, other = Model(), Model()
        wrapped = hvd.DistributedDataParallel(model)
        for _ in range(2):
            with wrapped.no_sync():
                loss_of(wrapped, 1, self.rank, self.size).backward()
            loss_of(wrapped, 2, self.rank, self.size).backward()
            (loss_of(other, 1) + loss_of(other, 2)).backward()
            for mine, theirs in zip(model.parameters(), other.parameters()):
                if mine.requires_grad:
                    self.assertTrue(torch.allclose(mine.grad, theirs.grad))
                    mine.grad.zero_()
                    theirs.grad.zero_()

    def test_values_between_two_backwards(self):
        """Each rank changes them in its own way, and restores them before the step."""
        model = Model()
        wrapped = hvd.DistributedDataParallel(model)
        for step in range(2):
            with wrapped.no_sync():
                loss_of(wrapped, step, self.rank, self.size).backward()
            before = copy.deepcopy(model.state_dict())
            with torch.no_grad():
                model.first.weight.add_(self.rank)
            loss_of(wrapped, step, self.rank, self.size).backward()
            model.load_state_dict(before)
            self.assertTrue(all(each.grad is not None for each in model.first.parameters()))

    def test_check_values(self):
        layer = torch.nn.Linear(2, 1)
        with torch.no_grad():
            layer.weight.fill_(self.rank)

        def step(**options):
            sgd = torch.optim.SGD(layer.parameters(), 0)
            optimizer = hvd.DistributedOptimizer(sgd, layer.named_parameters(), **options)
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        if self.size > 1:
            with self.assertRaisesRegex(hvd.Error, "'weight': values .*check_values=False"):
                step()
        step(check_values=False)

    def test_buffers(self):
        wrapped = hvd.DistributedDataParallel(torch.nn.BatchNorm1d(2).double())
        wrapped.module.running_mean.fill_(self.rank)
        wrapped.module.momentum = 0.0
        wrapped(torch.ones(3, 2).double()).sum().backward()
        self.assertEqual(wrapped.module.running_mean.tolist(), [0, 0])

    def test_sync_batch_norm(self):
        torch.manual_seed(3)
        everything = torch.randn(SAMPLES, 3, 2, dtype=torch.float64)
        mine = everything[self.rank::self.size].clone().requires_grad_()
        everything.requires_grad_()
        weights = torch.randn(SAMPLES, 3, 2, dtype=torch.float64)
        for options in ({}, dict(momentum=None), dict(affine=False),
                        dict(track_running_stats=False)):
            norm = hvd.SyncBatchNorm(3, **options).double()
            whole = torch.nn.BatchNorm1d(3, **options).double()
            mine.grad = everything.grad = None
            for _ in range(2):
                output, expected = norm(mine), whole(everything)
            self.assertTrue(torch.allclose(output, expected[self.rank::self.size]))
            (output * weights[self.rank::self.size]).sum().backward()
            (expected * weights).sum().backward()
            self.assertTrue(torch.allclose(mine.grad, everything.grad[self.rank::self.size]))
            for name, buffer in norm.named_buffers():
                self.assertTrue(torch.allclose(buffer.double(), whole.get_buffer(name).double()))
            norm.eval(), whole.eval()
            if whole.track_running_stats:
                self.assertTrue(torch.allclose(norm(mine), whole(mine)))
        self.refused("2 at least", norm, torch.ones(3))

    def test_convert_sync_batchnorm(self):
        torch.manual_seed(4)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4, momentum=0.3),
            torch.nn.Sequential(torch.nn.BatchNorm1d(4, affine=False)),
        )
        model[1].weight.data.normal_()
        model.eval()
        everything = torch.randn(2 * self.size, 3)
        expected, names = model(everything), list(model.state_dict())
        self.assertIs(hvd.SyncBatchNorm.convert_sync_batchnorm(model), model)
        self.assertEqual([type(model[1]), type(model[2][0])], [hvd.SyncBatchNorm] * 2)
        self.assertEqual(list(model.state_dict()), names)
        self.assertTrue(torch.equal(model(everything), expected))
        lone = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm2d(2))
        self.assertTrue(isinstance(lone, hvd.SyncBatchNorm) and lone.training)
        self.assertIs(hvd.SyncBatchNorm.convert_sync_batchnorm(lone), lone)

    def test_sync_batch_norm_with_one_value_per_channel(self):
        """On each rank that is enough, on all together it is not, and all ranks say so."""
        if self.size == 1:
            self.skipTest("it is PyTorch's own")
        norm, whole = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
        everything = torch.arange(3.0 * self.size).reshape(-1, 3)
        mine = slice(self.rank, self.rank + 1)
        self.assertTrue(torch.allclose(norm(everything[mine]), whole(everything)[mine]))
        before = norm.running_var.clone()
        only_last = everything[self.size - 1:][:self.rank + 1 == self.size]
        self.refused("one value for each channel together", norm, only_last)
        self.assertTrue(torch.equal(norm.running_var, before))
        self.assertEqual(norm.eval()(only_last).shape, only_last.shape)

    def test_sync_batch_norm_of_short_floats(self):
        """There are more elements of a channel than float16 has numbers for."""
        if self.size == 1:
            self.skipTest("it is PyTorch's own")
        everything = torch.randn(2 * SAMPLES, 2, 60, 60, generator=torch.manual_seed(3)) + 1
        for dtype in (torch.float16, torch.bfloat16):
            given = everything.to(dtype)
            mine = given[self.rank::self.size].requires_grad_()
            norm, whole = hvd.SyncBatchNorm(2), torch.nn.BatchNorm2d(2)
            output, expected = norm(mine), whole(given.float())[self.rank::self.size]
            self.assertTrue(torch.allclose(output.float(), expected, rtol=1e-2, atol=1e-2))
            self.assertTrue(torch.allclose(norm.running_mean, whole.running_mean, atol=1e-5))
            output.float().pow(2).sum().backward()
            self.assertEqual((output.dtype, mine.grad.dtype), (dtype, dtype))
