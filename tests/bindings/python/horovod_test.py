"""What scripts of Horovod's take for granted."""
import warnings
from unittest import mock

import numpy
import ranks
import torch

import guozhuang as gz
import guozhuang.torch as hvd
from guozhuang import features


NAMES = """
allgather allgather_async grouped_allgather grouped_allgather_async allgather_object
allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce grouped_allreduce_
grouped_allreduce_async grouped_allreduce_async_ sparse_allreduce_async alltoall alltoall_async
broadcast broadcast_ broadcast_async broadcast_async_ broadcast_object broadcast_parameters
broadcast_optimizer_state reducescatter reducescatter_async grouped_reducescatter
grouped_reducescatter_async barrier join poll synchronize init shutdown is_initialized
start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built
cuda_built rocm_built ProcessSet global_process_set add_process_set remove_process_set
Average Sum Adasum Min Max Product HorovodInternalError Compression DistributedOptimizer
SyncBatchNorm""".split()


class Names(ranks.RanksTest):
    def test_all_but_elastic_are_there(self):
        """As docs/python.md counts them."""
        self.assertEqual(len(set(NAMES)), 67 - 1)
        self.assertEqual(set(NAMES) - set(hvd.__all__), set())

    def test_what_goes_beyond_horovod(self):
        for op, expected in ((hvd.Min, 1), (hvd.Max, self.size)):
            given = torch.full((self.size,), self.rank + 1)
            self.assertEqual(hvd.reducescatter(given, op=op).tolist(), [expected])
        unused = hvd.ProcessSet([0])
        for call in (unused.size, unused.rank, unused.included):
            self.refused("is not in use", call)


class Starts(ranks.RanksTest):
    def test_init_of_all_ranks(self):
        for options in (dict(comm=[]), dict(process_sets="Dynamic"), dict(process_sets=[])):
            hvd.init(**options)  # calls are counted
            hvd.shutdown()
        self.refused("comm must be a communicator", hvd.init, comm=[0])
        self.assertTrue(hvd.is_initialized())

    def test_sets_are_printed(self):
        last = hvd.ProcessSet([self.size - 1])
        self.assertEqual(str(last), f"ProcessSet(process_set_id=None, ranks=[{self.size - 1}])")
        hvd.add_process_set(last, duplicate=True)
        self.assertRegex(str(last), r"^ProcessSet\(process_set_id=[1-9][0-9]*, ranks=\[")
        hvd.remove_process_set(last)
        self.assertEqual(str(hvd.global_process_set),
                         f"ProcessSet(process_set_id=0, ranks={list(range(self.size))})")


class IntegerFactors(ranks.RanksTest):
    """Which multiply and truncate on each rank, before and after the reduction."""

    def test_of_allreduces(self):
        total = sum(range(1, self.size + 1))
        for make, operations in ((numpy.array, gz), (torch.tensor, hvd)):
            def given():
                return make([3, -3, 10]) * (self.rank + 1)

            halves = [sum(int(value * (rank + 1) * 0.5) for rank in range(self.size))
                      for value in (3, -3, 10)]
            values = given()
            result = operations.allreduce(values, op=gz.Sum, prescale_factor=0.5)
            self.assertEqual((result.dtype, result.tolist()), (values.dtype, halves))
            self.assertEqual(values.tolist(), given().tolist())
            result = operations.allreduce_(values, op=gz.Sum, postscale_factor=0.5)
            self.assertIs(result, values)
            self.assertEqual(values.tolist(),
                             [int(each * total * 0.5) for each in (3, -3, 10)])
            # truncated once: a half of an average is no average that is truncated before
            result = operations.allreduce(make([3]), postscale_factor=2.0)
            self.assertEqual(result.tolist(), [6])
            only_one = make([7 if self.rank == 0 else 0])
            self.assertEqual(operations.allreduce(only_one, postscale_factor=2.0).tolist(),
                             [int(14 / self.size)])
            self.assertEqual(operations.allreduce(make([5]), op=gz.Max, prescale_factor=1.5,
                                                  postscale_factor=2.0).tolist(), [14])

    def test_without_dimensions(self):
        for make, operations in ((numpy.array, gz), (torch.tensor, hvd)):
            given = make(3)
            result = operations.allreduce(given, op=gz.Sum, postscale_factor=0.5)
            self.assertEqual(int(result), int(3 * self.size * 0.5))
            self.assertEqual(int(given), 3)
            operations.allreduce_(given, op=gz.Sum, prescale_factor=2.0)
            self.assertEqual(int(given), 6 * self.size)

    def test_only_what_has_a_factor_is_rounded(self):
        """In float64, which has not every integer of 64 bits."""
        for make, operations in ((numpy.array, gz), (torch.tensor, hvd)):
            given = make([1 << 54 if self.rank == 0 else 2])
            result = operations.allreduce(given, op=gz.Sum, prescale_factor=0.5)
            self.assertEqual(result.tolist(), [(1 << 53) + self.size - 1])

    def test_in_place_of_what_is_not_contiguous(self):
        matrix = torch.full((2, 3), 3, dtype=torch.int64)
        column = matrix[:, 1]
        self.assertIs(hvd.allreduce_(column, op=hvd.Sum, prescale_factor=0.5), column)
        self.assertEqual(matrix.tolist(), [[3, self.size, 3]] * 2)

    def test_of_groups(self):
        """Whose other tensors have them in their own type."""
        counts, weights = torch.tensor([3]), torch.tensor([3.0])
        result = hvd.grouped_allreduce([counts, weights], op=hvd.Sum, prescale_factor=0.5,
                                       postscale_factor=2.0)
        self.assertEqual([each.tolist() for each in result], [[2 * self.size], [3.0 * self.size]])
        hvd.grouped_allreduce_([counts, weights], op=hvd.Sum, prescale_factor=0.5)
        self.assertEqual((counts.tolist(), weights.tolist()),
                         ([self.size], [1.5 * self.size]))

    def test_of_reducescatter(self):
        given = torch.full((self.size, 2), 3)
        for result in (
                hvd.reducescatter(given, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
                *hvd.grouped_reducescatter([given], op=hvd.Sum, prescale_factor=0.5,
                                           postscale_factor=3.0)):
            self.assertEqual(result.tolist(), [[3 * self.size] * 2])
        self.assertEqual(given.tolist(), [[3, 3]] * self.size)

    def test_of_booleans(self):
        self.refused("scales must be 1 on bool", hvd.allreduce, torch.tensor([True]), op=hvd.Max,
                     prescale_factor=0.5)


class Joined(ranks.RanksTest):
    def test_operations_beside_a_joined_rank(self):
        """Averages are those of the others, or of all, as Horovod's; what Horovod refuses works,
        where it needs nothing of that rank."""
        if self.size == 1:
            self.skipTest("there is nobody beside it")
        if self.rank == 0:
            hvd.join()
            return
        others = self.size - 1
        self.assertEqual(hvd.allreduce(torch.full((2,), 6.0)).tolist(), [6, 6])
        of_all = hvd.allreduce(torch.full((2,), 6.0), op=hvd.Sum, postscale_factor=1 / self.size)
        self.assertTrue(torch.allclose(of_all, torch.tensor(6.0 * others / self.size)))
        self.assertEqual(hvd.allgather(torch.ones(1)).shape, (others,))
        self.assertEqual(hvd.broadcast(torch.ones(1), 1).tolist(), [1])
        self.fails_everywhere(lambda: hvd.broadcast(torch.ones(1), 0), "departed",
                              "its root, rank 0, has joined")
        self.fails_everywhere(lambda: hvd.alltoall(torch.ones(self.size)), "departed",
                              "has joined")
        hvd.join()


class Adasum(ranks.RanksTest):
    def test_learning_rate_of_scripts_that_ask_for_nccl(self):
        """By which Horovod's Adasum wants it multiplied by local_size(); here that is too much."""
        for version, size in ((0, 0), (22809, self.size)):
            with mock.patch.object(features, "_find_nccl", lambda: version), \
                    mock.patch.object(features, "told_nccl", 0), \
                    warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for has_asked in (False, True):
                    if has_asked:
                        self.assertEqual(hvd.nccl_built(), version)
                    inner = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
                    hvd.DistributedOptimizer(inner)
                    hvd.DistributedOptimizer(inner, op=hvd.Adasum)
                    says = [str(each.message) for each in caught]
                    self.assertEqual(len(says), has_asked and size > 1 and self.rank == 0)
            for text in says:
                self.assertRegex(text, r"multiplied by local_size\(\) for that is too large")


class States(ranks.RanksTest):
    def test_optimizer_that_has_not_stepped(self):
        """On any rank: there is no state, no gradient, and none is made; options are the root's."""
        for make in (lambda p: torch.optim.Adam(p, lr=0.1 + self.rank),
                     lambda p: torch.optim.SGD(p, lr=0.1 + self.rank, momentum=0.9)):
            parameter = torch.nn.Parameter(torch.full((2,), 1.0 + self.rank))
            optimizer = make([parameter])
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            self.assertIsNone(parameter.grad)
            self.assertEqual(parameter.tolist(), [1.0 + self.rank] * 2)
            self.assertEqual((optimizer.param_groups[0]["lr"], len(optimizer.state)), (0.1, 0))
