"""Operations on torch's tensors, as far as they are PyTorch's own (tests/conformance has the rest),
and their gradients."""
import collections
import ctypes
import gc
import mmap
import pickle
import sys
import threading
from unittest import mock

import ranks
import torch

import guozhuang.torch as hvd
from guozhuang.torch import tensors


Pair = collections.namedtuple("Pair", ("first", "second"))


def ramp(*shape, dtype=torch.float32, start=0):
    return (torch.arange(torch.Size(shape).numel()) + start).reshape(shape).to(dtype)


class Allreduce(ranks.RanksTest):
    def test_in_place(self):
        matrix = torch.zeros(4, 6)
        matrix[:, 1] = self.rank
        column, total = matrix[:, 1], sum(range(self.size))
        self.assertIs(hvd.allreduce_(column, op=hvd.Sum), column)
        self.assertEqual(matrix.sum(), 4 * total)
        weight = torch.nn.Parameter(torch.ones(3))
        hvd.synchronize(hvd.allreduce_async_(weight, average=False))
        self.assertEqual(weight.tolist(), [self.size] * 3)

    def test_rank_alone_writes_nothing(self):
        """Its tensor is in memory that it must not write to."""
        if self.size > 1:
            return
        tensor = torch.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), dtype=torch.float32)
        protect, address = ctypes.CDLL(None).mprotect, ctypes.c_void_p(tensor.data_ptr())
        self.assertEqual(protect(address, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ), 0)
        for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
            hvd.allreduce_(tensor, op=op)
            hvd.synchronize(hvd.grouped_allreduce_async_([tensor, tensor], op=op))
        hvd.broadcast_(tensor, 0)
        hvd.broadcast_parameters([("tensor", tensor)])

    def test_not_contiguous(self):
        given = ramp(3, 4).t()
        total = hvd.allreduce(given, op=hvd.Sum)
        self.assertTrue(torch.equal(total, given * self.size))
        expanded = torch.ones(1).expand(5)
        self.assertEqual(hvd.allreduce(expanded, op=hvd.Sum).tolist(), [self.size] * 5)
        self.assertEqual(hvd.allreduce(torch.tensor(2.0)).shape, ())
        self.assertEqual(hvd.allreduce(torch.ones(0, 3)).shape, (0, 3))
        self.refused("share memory", hvd.allreduce_, expanded)

    def test_negated(self):
        """Views of torch whose elements are the negatives of what is in memory."""
        def negated():
            view = torch.tensor([1 + 2j * (self.rank + 1)]).conj().imag
            self.assertTrue(view.is_neg() and view.is_contiguous())
            return view

        self.assertEqual(hvd.allreduce(negated(), op=hvd.Max).tolist(), [-2])
        self.assertEqual(hvd.allreduce_(negated(), op=hvd.Max).tolist(), [-2])
        self.assertEqual(hvd.allgather(negated()).tolist(),
                         [-2 * (rank + 1) for rank in range(self.size)])

    def test_compression(self):
        given = torch.tensor([1 / 3, 1000.123])
        for compression, dtype in ((hvd.Compression.fp16, torch.float16),
                                   (hvd.Compression.bf16, torch.bfloat16)):
            self.assertEqual(compression.compress(given)[0].dtype, dtype)
            self.assertEqual(compression.compress(torch.ones(1, dtype=torch.int8))[0].dtype,
                             torch.int8)
            average = hvd.allreduce(given, compression=compression)
            self.assertTrue(torch.equal(average, given.to(dtype).float()))
            self.assertFalse(torch.equal(average, given))

    def test_sparse(self):
        given = torch.sparse_coo_tensor([[self.rank, 0]], [[1.0, 2.0], [3.0, 4.0]], (5, 2))
        expected = hvd.allreduce(given.to_dense(), op=hvd.Sum)
        total = hvd.sparse_allreduce_async(given, "sparse", hvd.Sum)
        self.assertTrue(torch.equal(hvd.synchronize(total).to_dense(), expected))
        handle = hvd.sparse_allreduce_async(given, None, hvd.Average)
        self.assertTrue(torch.allclose(handle().to_dense(), expected / self.size))
        self.assertIs(handle(), handle())
        self.refused("layout torch.sparse_coo", hvd.allreduce, given)
        no_rows = torch.sparse_coo_tensor(torch.zeros(1, 0), torch.zeros(0, 2), (5, 2))
        last = hvd.sparse_allreduce_async(given if self.rank == 0 else no_rows, None, hvd.Sum)()
        self.assertEqual((last.sparse_dim(), last.to_dense()[0, 0]), (1, 4))


    def test_sparse_average_beside_a_joined_rank(self):
        if self.rank == self.size - 1:
            hvd.join()
            return
        given = torch.sparse_coo_tensor([[1, 2]], [1.0, self.rank], (4,))
        average = hvd.sparse_allreduce_async(given, "sparse", hvd.Average)()
        self.assertEqual(average.to_dense().tolist(), [0, 1, (self.size - 2) / 2, 0])
        hvd.join()


class Others(ranks.RanksTest):
    def test_results_outlive_their_handles(self):
        rows = torch.full((self.rank + 1, 2), self.rank, dtype=torch.bfloat16)
        kept = [hvd.allgather(rows + i) for i in range(20)]
        gc.collect()
        expected = [rank for rank in range(self.size) for _ in range(rank + 1)]
        for i, each in enumerate(kept):
            self.assertEqual((each[:, 1] - i).tolist(), expected)

    def test_splits(self):
        given = ramp(self.size, dtype=torch.int64)
        splits = torch.ones(self.size, dtype=torch.int32)
        for each in (splits, splits.tolist()):
            output, received = hvd.alltoall(given, each)
            self.assertEqual(output.tolist(), [self.rank] * self.size)
            self.assertEqual((received.dtype, received.tolist()), (torch.int32, [1] * self.size))
        self.refused("integers", hvd.alltoall, given, [0.5] * self.size)
        if self.size > 1:
            self.refused("cannot share", hvd.alltoall, ramp(self.size + 1))

    def test_reducescatter_with_compression(self):
        given = ramp(self.size)
        both = hvd.grouped_reducescatter([given, given + 1], compression=hvd.Compression.fp16)
        self.assertEqual((both[1].dtype, both[1].tolist()), (torch.float32, [self.rank + 1]))

    def test_bad_tensors(self):
        self.refused("torch.Tensor is wanted, not list", hvd.allreduce_, [1.0])
        self.refused("complex64 cannot be sent", hvd.allreduce, torch.ones(1, dtype=torch.cfloat))
        self.refused("on meta cannot be sent", hvd.allreduce, torch.ones(1, device="meta"))
        self.refused("not both", hvd.allreduce, torch.ones(1), average=True, op=hvd.Sum)
        for operation in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
            self.refused("the group has no tensors", operation, [])
        self.assertTrue(issubclass(hvd.HorovodInternalError, RuntimeError))

    def test_names_of_bad_tensors(self):
        """Among many, by number; nothing has been sent, so the names can be used."""
        complex64 = torch.ones(1, dtype=torch.cfloat)
        for bad, reason in (([1.0], "a torch.Tensor is wanted"), (complex64, "tensors of torch.c"),
                            (torch.ones(1, device="meta"), "tensors on meta")):
            for suffix in ("", "_async"):
                for operation, word in (("grouped_allreduce", "allreduce"),
                                        ("grouped_allgather", "all_gather"),
                                        ("grouped_reducescatter", "reduce_scatter")):
                    self.refused(f"^{word} 'states': tensor 217 of the group: {reason}",
                                 getattr(hvd, operation + suffix),
                                 [torch.ones(1)] * 217 + [bad] + [torch.ones(1)] * 82,
                                 name="states")
                for operation, word, *others in (
                        ("allreduce", "allreduce"), ("broadcast", "broadcast", 0),
                        ("allgather", "all_gather"), ("alltoall", "all_to_all"),
                        ("reducescatter", "reduce_scatter")):
                    self.refused(f"^{word} 'it': {reason}", getattr(hvd, operation + suffix), bad,
                                 *others, name="it")
        expanded = torch.ones(1).expand(3)
        self.refused("^allreduce 'it': an expanded tensor", hvd.allreduce_, expanded, name="it")
        self.refused("^allreduce: tensor 1 of the group: an expanded", hvd.grouped_allreduce_,
                     [torch.ones(1), expanded])
        with self.assertRaises(hvd.UsageError) as caught:
            hvd.allreduce(complex64, name="it")
        self.assertEqual((caught.exception.tensor, caught.exception.operation),
                         ("it", "allreduce"))

    def test_names_of_bad_parameters_and_states(self):
        good, bad = (torch.nn.Parameter(torch.ones(2, dtype=dtype))
                     for dtype in (torch.float32, torch.cfloat))
        inner = torch.optim.SGD([good, bad], lr=0.1, momentum=0.9)
        self.refused("^'phase': tensors of torch.complex64 cannot be sent",
                     hvd.DistributedOptimizer, inner, [("weight", good), ("phase", bad)])
        bad.grad = torch.ones_like(bad)
        inner.step()
        self.refused("^'state 1 momentum_buffer': tensors of torch.complex64",
                     hvd.broadcast_optimizer_state, inner)


class Gradients(ranks.RanksTest):
    """By y = f(x) and a loss of sum(weights * y) on each rank."""

    def gradient(self, operation, *shape, weight=None):
        given = ramp(*shape).requires_grad_()
        output = operation(given)
        weight = self.rank + 1.0 if weight is None else weight
        output.backward(torch.full_like(output, weight))
        return given.grad

    def test_allreduce(self):
        total = self.size * (self.size + 1) / 2
        average = self.gradient(hvd.allreduce, 2, 3)
        self.assertTrue(torch.allclose(average, torch.full((2, 3), total / self.size)))
        scaled = self.gradient(
            lambda given: hvd.allreduce(given, op=hvd.Sum, postscale_factor=2.0), 4)
        self.assertEqual(scaled.tolist(), [2 * total] * 4)
        half = self.gradient(
            lambda given: hvd.allreduce(given, op=hvd.Sum, compression=hvd.Compression.fp16), 4)
        self.assertEqual((half.dtype, half.tolist()), (torch.float32, [total] * 4))

    def test_grouped_allreduce(self):
        first, second = ramp(2).requires_grad_(), ramp(3).requires_grad_()
        outputs = hvd.grouped_allreduce([first, second], op=hvd.Sum)
        (outputs[1] * (self.rank + 1)).sum().backward()
        self.assertEqual(first.grad.tolist(), [0, 0])
        self.assertEqual(second.grad.tolist(), [self.size * (self.size + 1) / 2] * 3)

    def test_allgather(self):
        given = ramp(self.rank + 1, 2).requires_grad_()
        output = hvd.allgather(given)
        expected = ramp(*output.shape)  # the same weights on all ranks: so is their average
        output.backward(expected)
        begin = sum(rank + 1 for rank in range(self.rank))
        self.assertTrue(torch.allclose(given.grad, expected[begin:begin + self.rank + 1]))

    def test_broadcast(self):
        gradient = self.gradient(lambda given: hvd.broadcast(given, 0), 3)
        average = (self.size + 1) / 2 if self.rank == 0 else 0.0
        self.assertTrue(torch.allclose(gradient, torch.full((3,), average)))

    def test_alltoall(self):
        expected = [float(rank + 1) for rank in range(self.size)]
        self.assertEqual(self.gradient(hvd.alltoall, self.size).tolist(), expected)
        splits = [1] * self.size
        gradient = self.gradient(lambda given: hvd.alltoall(given, splits)[0], self.size)
        self.assertEqual(gradient.tolist(), expected)
        rows = self.rank + 1  # for each rank
        gradient = self.gradient(hvd.alltoall, rows * self.size)
        self.assertEqual(gradient.tolist(), [each for each in expected for _ in range(rows)])

    def test_reducescatter(self):
        expected = [float(rank + 1) for rank in range(self.size) for _ in range(2)]
        gradient = self.gradient(hvd.reducescatter, 2 * self.size)
        self.assertEqual(gradient.tolist(), expected)
        gradient = self.gradient(lambda given: hvd.reducescatter(given, op=hvd.Sum),
                                 2 * self.size)
        self.assertEqual(gradient.tolist(), [self.size * each for each in expected])


class States(ranks.RanksTest):
    def test_broadcast_parameters(self):
        for form in (lambda model: model.state_dict(), lambda model: model.named_parameters(),
                     lambda model: list(model.parameters())):
            torch.manual_seed(self.rank)
            model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
            hvd.broadcast_parameters(form(model), root_rank=0)
            torch.manual_seed(0)
            expected = torch.nn.Linear(3, 4)
            self.assertTrue(torch.equal(model[0].weight, expected.weight))
        self.refused("'epoch': a torch.Tensor is wanted", hvd.broadcast_parameters, {"epoch": 3})
        state = {f"layer{i}": torch.full((3,), float(self.rank)) for i in range(300)}
        state["layer299"] = torch.zeros(3, dtype=torch.complex64)
        self.refused("'layer299': tensors of torch.complex64", hvd.broadcast_parameters, state)
        state["layer299"] = torch.zeros(1).expand(3)
        self.refused("'layer299': an expanded tensor", hvd.broadcast_parameters, state)
        self.assertEqual(state["layer0"].tolist(), [self.rank] * 3)  # nothing was sent
        self.refused("takes a state_dict", hvd.broadcast_parameters, 3)

    def test_broadcast_optimizer_state(self):
        for make in (lambda p: torch.optim.SGD(p, lr=0.1 + self.rank, momentum=0.9),
                     lambda p: torch.optim.Adam(p, lr=0.1 + self.rank, amsgrad=True),
                     lambda p: torch.optim.NAdam(p, lr=0.1 + self.rank),  # has a float32 of its own
                     lambda p: torch.optim.LBFGS(p, lr=0.1 + self.rank)):
            parameter = torch.nn.Parameter(ramp(4, dtype=torch.float64))
            optimizer = make([parameter])
            if self.rank == 0:  # the others have no state yet
                parameter.grad = ramp(4, dtype=torch.float64, start=1)
                optimizer.step(lambda: (parameter ** 2).sum())
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)
            states = hvd.allgather_object(str(optimizer.state_dict()))
            self.assertEqual(states, [states[0]] * self.size)
            self.assertGreater(len(optimizer.state), 0)

    def test_options_that_are_tuples(self):
        parameter = torch.nn.Parameter(ramp(2))
        pair = Pair(torch.tensor(0.1 + self.rank), self.rank)
        optimizer = torch.optim.SGD([dict(params=[parameter], pair=pair)], lr=0.1)
        hvd.broadcast_optimizer_state(optimizer, self.size - 1)
        first, second = optimizer.param_groups[0]["pair"]
        self.assertEqual((int(first), second), (self.size - 1, self.size - 1))

    def test_objects(self):
        thing = {"rank": self.rank, "tensor": torch.full((2,), self.rank)}
        self.assertEqual(hvd.broadcast_object(thing, 0)["tensor"].tolist(), [0, 0])
        self.assertEqual([each["rank"] for each in hvd.allgather_object(thing)],
                         list(range(self.size)))


        last, lock = self.size - 1, threading.Lock()
        reason = f"of rank {last} cannot be pickled: .*_thread.lock"
        self.refused(reason, hvd.broadcast_object, lock, last)
        self.refused(reason, hvd.allgather_object, lock if self.rank == last else 1)

    def test_objects_by_cloudpickle(self):
        """If it is there, here a module that stands for it."""
        stands_for_it = mock.Mock(dumps=lambda thing: pickle.dumps(["by cloudpickle", self.rank]))
        with mock.patch.dict(sys.modules, cloudpickle=stands_for_it):
            self.assertEqual(hvd.allgather_object(lambda: 1),
                             [["by cloudpickle", rank] for rank in range(self.size)])
        with mock.patch.dict(sys.modules, cloudpickle=None):
            self.refused("cannot be pickled: .*local object", hvd.allgather_object, lambda: 1)


class ProcessSets(ranks.RanksTest):
    def test_operations_of_some_ranks(self):
        if self.size == 1:
            self.skipTest("there is no other set")
        late = hvd.add_process_set(hvd.ProcessSet(range(1, self.size)))
        if late.included():
            given = torch.ones(2, late.size()).requires_grad_()
            total = hvd.allreduce(given, op=hvd.Sum, process_set=late)
            self.assertEqual(total[0, 0], late.size())
            hvd.allgather(hvd.alltoall(total.t(), process_set=late), process_set=late).sum(
            ).backward()
            self.assertTrue(torch.allclose(given.grad, torch.full_like(given, late.size())))
            parameter = torch.full((3,), float(self.rank))
            hvd.broadcast_parameters([("p", parameter)], 1, late)
            self.assertEqual(parameter.tolist(), [1, 1, 1])
        else:
            self.refused("rank 0 is not in", hvd.allreduce, torch.ones(1), process_set=late)
        self.assertTrue(hvd.remove_process_set(late))

