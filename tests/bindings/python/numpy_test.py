"""Operations on numpy's arrays, as far as they are Python's own; tests/conformance has the rest."""
import gc
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import numpy
import ranks

import guozhuang as gz
from guozhuang import handles


class Workers(ranks.RanksTest):
    def test_init_in_a_process_that_a_rank_has_started(self):
        """As workers of a data loader do, when they import a script with init() at its top."""
        workers = multiprocessing.get_context("spawn")
        with workers.Pool(1) as pool:
            said = pool.apply(error_of_init)
        if "OMPI_COMM_WORLD_RANK" not in os.environ:
            self.assertEqual(said, "")
            return
        self.assertRegex(said, rf"^process \d+ was started by rank {self.rank} "
                         rf"\(process {os.getpid()}\), and is no rank .*`if __name__ == ")
        self.assertEqual(gz.allreduce(numpy.ones(1), op=gz.Sum)[0], self.size)


def error_of_init():
    try:
        gz.init()
    except gz.Error as error:
        return str(error)
    return ""


class Allreduce(ranks.RanksTest):
    def test_default_is_the_average(self):
        given = numpy.float64([self.rank, 1])
        self.assertEqual(gz.allreduce(given).tolist(), [(self.size - 1) / 2, 1])
        self.assertEqual(gz.allreduce(given, average=False)[1], self.size)
        rows = gz.reducescatter(numpy.ones(self.size))
        self.assertEqual(rows.tolist(), [1])

    def test_in_place(self):
        matrix = numpy.zeros((4, 6))
        matrix[:] = self.rank + 1
        total = self.size * (self.size + 1) / 2
        column = matrix[:, 1]  # is not contiguous
        self.assertIs(gz.allreduce_(column, op=gz.Sum), column)
        self.assertEqual(matrix[:, 1].tolist(), [total] * 4)
        self.assertEqual(matrix[:, 0].tolist(), [self.rank + 1] * 4)
        constant = numpy.ones(3)
        constant.flags.writeable = False
        self.refused("read-only", gz.allreduce_, constant)
        self.refused("only a numpy array", gz.allreduce_, [1.0, 2.0])

    def test_not_contiguous_and_other_byte_order(self):
        given = numpy.arange(12, dtype=">f4").reshape(3, 4).T
        total = gz.allreduce(given, op=gz.Sum)
        numpy.testing.assert_array_equal(total, given * self.size)
        self.assertEqual(gz.allreduce(1.5, op=gz.Sum).shape, ())


class Others(ranks.RanksTest):
    def test_results_outlive_their_handles(self):
        kept = [gz.allgather(numpy.full(1000, self.rank + 10 * i)) for i in range(20)]
        gc.collect()
        for i, each in enumerate(kept):
            self.assertEqual(each[0], 10 * i)
            each += 1  # is the program's own memory

    def test_objects(self):
        thing = {"rank": self.rank, "text": "x" * 1000 * self.rank}
        self.assertEqual(gz.broadcast_object(thing, 0), {"rank": 0, "text": ""})
        self.assertEqual([each["rank"] for each in gz.allgather_object(thing)],
                         list(range(self.size)))


class InPlace(ranks.RanksTest):
    def test_own_rows(self):
        splits = [5] + list(range(2, self.size + 1))
        begin = sum(splits[:self.rank])
        flat = numpy.arange(2.0 * sum(splits)).reshape(-1, 2)
        own = flat[begin:begin + splits[self.rank]]
        part = gz.reducescatter(flat, op=gz.Sum, output=own, splits=splits)
        self.assertIs(part, own)
        self.assertIs(gz.allgather(own, output=flat), flat)
        expected = self.size * numpy.arange(2.0 * sum(splits)).reshape(-1, 2)
        self.assertEqual(flat.tolist(), expected.tolist())

    def test_refused(self):
        flat = numpy.zeros((2 * self.size, 2))
        self.refused("only this rank's own block", gz.allgather, flat.reshape(-1, 1)[1:3],
                     output=flat.reshape(-1, 1)[2:])
        self.refused("must be contiguous", gz.allgather, flat, output=flat[:, 1:])
        self.refused("splits", gz.reducescatter, flat, splits=[1])


class Handles(ranks.RanksTest):
    def test_many_at_once(self):
        pending = [gz.allreduce_async(numpy.full(10, i), name=f"many {i}", op=gz.Sum)
                   for i in range(50)]
        for i, handle in enumerate(pending):
            self.assertEqual(gz.synchronize(handle)[0], i * self.size)
            self.assertTrue(gz.poll(handle))
            self.assertIs(gz.synchronize(handle), gz.synchronize(handle))
        self.refused("no handle", gz.poll, 3)

    def test_submitting_does_not_wait(self):
        if self.size == 1:
            self.skipTest("there is nobody to wait for")
        handle = None
        if self.rank == 0:
            handle = gz.allreduce_async(numpy.ones(1), name="late")
            self.assertFalse(gz.poll(handle))
            self.refused("still pending", gz.allreduce, numpy.ones(1), name="late")
        gz.barrier()
        if handle is None:
            handle = gz.allreduce_async(numpy.ones(1), name="late")
        self.assertEqual(gz.synchronize(handle).tolist(), [1])

    def test_arrays_outlive_dropped_handles(self):
        for i in range(10):
            handle = gz.allreduce_async(numpy.ones(100_000), name=f"dropped {i}")
            del handle
        gz.barrier()
        for i in range(1000):
            gz.allreduce(numpy.ones(1))
            if not handles._dropped:
                break
        self.assertFalse(handles._dropped)

    def test_few_looks_at_dropped_handles(self):
        """However many are in flight: here all of rank 0, until the others submit them too."""
        def drop_many():
            for i in range(count):
                gz.allreduce_async(numpy.ones(1), name=f"one of many {i}")

        count = 200
        with mock.patch.object(handles, "_is_over", wraps=handles._is_over) as looks:
            if self.rank == 0:
                drop_many()
            gz.barrier()
            if self.rank != 0:
                drop_many()
            gz.allreduce(numpy.ones(1))  # behind all of them in the log
        self.assertLessEqual(looks.call_count, 3 * count)
        for _ in range(1000):
            handles.sweep()
            if not handles._dropped:
                break
            time.sleep(0.01)
        self.assertFalse(handles._dropped)

    def test_threads(self):
        sums = {}

        def reduce(name):
            for _ in range(20):
                sums[name] = gz.allreduce(numpy.ones(4), name=name, op=gz.Sum)[0]

        threads = [threading.Thread(target=reduce, args=(f"thread {i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(list(sums.values()), [self.size] * 4)


class Errors(ranks.RanksTest):
    def test_bad_arguments(self):
        self.refused("root 77 is not a rank", gz.broadcast, numpy.ones(1), 77)
        self.refused("is not a rank", gz.broadcast, numpy.ones(1), 1 << 32)
        self.refused("must be a rank", gz.broadcast, numpy.ones(1), "0")
        self.refused("complex128 cannot be sent", gz.allreduce, numpy.zeros(1, complex))
        self.refused("not both", gz.allreduce, numpy.ones(1), average=True, op=gz.Sum)
        self.refused("op must be", gz.allreduce, numpy.ones(1), op="sum")
        self.refused("no reduce op 17", gz.allreduce, numpy.ones(1), op=17)
        self.refused("must be a ProcessSet", gz.allreduce, numpy.ones(1), process_set=[0])
        self.refused("is not in use", gz.barrier, gz.ProcessSet([0]))
        for bad in (0, [0.5], ["0"]):
            self.refused("as a list of ranks", gz.add_process_set, bad)
        self.refused("must be a ProcessSet", gz.remove_process_set, [0])
        self.refused("begin with #", gz.allreduce, numpy.ones(1), name="#1")
        self.assertRaises(TypeError, gz.broadcast, numpy.ones(1))


class Timelines(ranks.RanksTest):
    def test_one_of_an_operation(self):
        """With the arguments that Horovod takes."""
        folder = gz.broadcast_object(tempfile.mkdtemp())
        self.assertTrue(gz.start_timeline(folder, mark_cycles=True))
        gz.allreduce(numpy.ones(3), name="is recorded")
        gz.stop_timeline()
        self.assertIn("is recorded", Path(folder, f"rank{self.rank}.json").read_text())
        gz.barrier()
        if self.rank == 0:
            shutil.rmtree(folder)


class ProcessSets(ranks.RanksTest):
    def test_operations_of_some_ranks(self):
        odd = gz.ProcessSet(range(1, self.size, 2))
        if self.size == 1:
            self.refused("no ranks|at least", gz.add_process_set, odd)
            return
        self.assertIs(gz.add_process_set(odd), odd)
        self.assertEqual(odd.included(), self.rank % 2 == 1)
        self.assertEqual((odd.size(), odd.ranks), (self.size // 2, [*range(1, self.size, 2)]))
        for again in (odd, odd.ranks, range(self.size)):
            self.refused("already", gz.add_process_set, again)
        other = gz.add_process_set(odd.ranks, duplicate=True)
        self.assertNotEqual(other.process_set_id, odd.process_set_id)
        gz.remove_process_set(other)
        if odd.included():
            self.assertEqual(odd.rank(), self.rank // 2)
            total = gz.allreduce(numpy.ones(2), op=gz.Sum, process_set=odd)
            self.assertEqual(total.tolist(), [odd.size()] * 2)
            self.assertEqual(gz.broadcast_object(self.rank, 1, process_set=odd), 1)
        else:
            self.refused(f"rank {self.rank} is not in", gz.allreduce, numpy.ones(2),
                         process_set=odd)
        self.assertTrue(gz.remove_process_set(odd))
        self.assertFalse(gz.remove_process_set(odd))
        self.assertFalse(gz.remove_process_set(gz.global_process_set))

    def test_sets_of_init(self):
        last = gz.ProcessSet([self.size - 1])
        if self.size == 1:
            self.refused("comm must be a communicator", gz.init, comm=[0, 1])
            return
        gz.init(process_sets=[last])  # calls are counted
        self.assertEqual(last.included(), self.rank == self.size - 1)
        gz.remove_process_set(last)
        gz.shutdown()
        self.assertTrue(gz.is_initialized())

    def test_sets_of_one_session_after_another(self):
        if self.size == 1:
            self.refused("these ranks has been added already", gz.add_process_set, [0])
        last = gz.add_process_set(numpy.array([self.size - 1]), duplicate=self.size == 1)
        gz.shutdown()
        self.assertFalse(gz.is_initialized())
        self.refused("is not in use", last.size)
        gz.init(process_sets=[last] if self.size > 1 else [])
        self.assertEqual(last.process_set_id is None, self.size == 1)
        if self.size > 1:
            self.assertEqual((last.size(), last.ranks), (1, [self.size - 1]))
            gz.remove_process_set(last)

    def test_ranks_that_are_no_int_of_c(self):
        for rank in (1 << 31, 1 << 32, -(1 << 32)):
            self.refused(f"rank {rank} does not exist", gz.add_process_set, [0, rank])

    def test_global(self):
        self.assertEqual(gz.global_process_set.ranks, list(range(self.size)))
        self.assertEqual(gz.global_process_set.rank(), self.rank)
        self.assertTrue(gz.global_process_set.included())

