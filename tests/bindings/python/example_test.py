"""The example, and what its ranks hold at the end, with each of its options. The losses of each
step without options go to the file of the variable EXAMPLE_LOSSES."""
import os
import sys
from pathlib import Path

import ranks

import guozhuang.torch as hvd

sys.path.append(str(Path(__file__).parents[3] / "examples/python"))
import fashion_mnist  # noqa: E402

ONE_PROCESS = 0.62  # somewhat below the accuracy of one rank


class Example(ranks.RanksTest):
    def expect(self, accuracy_at_least, *arguments):
        options = fashion_mnist.parse(["--samples", "1536", "--batch-size", "32", *arguments])
        model, losses, accuracy = fashion_mnist.main(options)
        bits = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
        self.assertEqual(hvd.allgather_object(bits), [bits] * self.size)
        self.assertEqual(hvd.allgather_object(losses), [losses] * self.size)
        self.assertLess(losses[-1], losses[0])
        self.assertGreater(accuracy, accuracy_at_least)
        hvd.shutdown()  # main() has called init()

    def test_as_it_comes(self):
        self.expect(ONE_PROCESS, "--log-losses", os.environ["EXAMPLE_LOSSES"])

    def only_two(self):
        """The options need not run on all numbers of ranks."""
        if self.size != 2:
            self.skipTest("for two ranks")

    def test_fp16(self):
        self.only_two()
        self.expect(ONE_PROCESS, "--fp16-allreduce")

    def test_predivided(self):
        self.only_two()
        self.expect(ONE_PROCESS, "--gradient-predivide-factor", "2")

    def test_adasum(self):
        self.only_two()
        self.expect(0.5, "--use-adasum", "--epochs", "1")

