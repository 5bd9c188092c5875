"""Ctrl-C at every bytecode: whatever it interrupts, no memory that an operation uses is freed."""
import gc
import sys
from pathlib import Path

import numpy
import ranks

import guozhuang as gz

FOLDER = str(Path(gz.__file__).parent)
COUNT = 30_000  # elements: small enough for an array to get the memory of another that was freed


class Interruption:
    """Raises KeyboardInterrupt before one bytecode of the package. Those of other code are not
    counted, which the package's calls do not run long."""

    def __init__(self, number):
        self.left, self.has_come = number, False

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        return self.count

    def count(self, frame, event, argument):
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                self.has_come = True
                raise KeyboardInterrupt
        return self.count


def interrupted(number, call):
    """Calls `call`, and whether it was interrupted at that bytecode."""
    interruption = Interruption(number)
    sys.settrace(interruption)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return interruption.has_come


class InterruptsTest(ranks.RanksTest):
    def setUp(self):
        self.unrelated = []
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # of __del__
        self.addCleanup(setattr, sys, "unraisablehook", hook)

    def start(self, name):
        """An operation that changes its array, which nobody else has."""
        array = numpy.full(COUNT, self.rank + 1, numpy.float64)
        return gz.allreduce_async_(array, name=name, op=gz.Sum)

    def fill_freed_memory(self):
        gc.collect()
        self.unrelated = [numpy.full(COUNT, 7, numpy.float64) for _ in range(8)]

    def at_each_bytecode(self, kind, scenario):
        """On rank 0 the scenario, given a number and names of two operations that are in flight
        when it ends, unless the interruption came before; then both operations on all ranks."""
        number, has_come, broken = 0, True, []
        while has_come:
            number += 1
            names = [f"{kind} {number} {which}" for which in ("first", "second")]
            if self.rank == 0:
                has_come = scenario(number, names)
                self.fill_freed_memory()
                for name in names:
                    try:
                        self.start(name)
                    except gz.UsageError as error:
                        self.assertEqual(error.code, "duplicate_name")
            has_come = gz.broadcast_object(has_come)
            if self.rank != 0:
                for name in names:
                    self.start(name)
            gz.barrier()
            gz.allreduce(numpy.ones(1))  # the log has come behind all of them
            if not all((array == 7).all() for array in self.unrelated):
                broken.append(number)
            handle = gz.allreduce_async(numpy.ones(3), op=gz.Sum)
            self.assertEqual(handle.wait().tolist(), [self.size] * 3)
        self.assertGreater(number, 30)
        self.assertEqual(broken, [], f"bytecodes of {kind} after which memory was freed in flight")

    def test_submission_that_sweeps(self):
        def scenario(number, names):
            self.start(names[0])  # its handle is dropped
            return interrupted(number, lambda: self.start(names[1]))

        self.at_each_bytecode("submit", scenario)

    def test_wait(self):
        def scenario(number, names):
            handle = self.start(names[0])
            ready = gz.allreduce_async(numpy.ones(1), process_set=self.own)

            def wait():
                ready.wait()
                handle.done()

            return interrupted(number, wait)

        self.own = gz.add_process_set([0], duplicate=True)
        self.addCleanup(gz.remove_process_set, self.own)
        self.at_each_bytecode("wait", scenario)

    def test_release(self):
        def scenario(number, names):
            handles = [self.start(names[0])]

            def release():
                handles.clear()
                gz.handles.sweep()
                self.start(names[1])
                gz.handles.sweep()

            return interrupted(number, release)

        self.at_each_bytecode("release", scenario)
