"""Tensors on a device. There is no GPU: those of the host stand for tensors of the fake device,
whose streams run by themselves."""
import ctypes
from unittest import mock

import ranks
import torch

import guozhuang.torch as hvd
from guozhuang import _c
from guozhuang.torch import tensors

ctypes.CDLL("libguozhuang_fake_device.so")  # replaces CUDA


class Devices(ranks.RanksTest):
    def setUp(self):
        fake = _c.Device(_c.CUDA, 0)
        for name, function in (("_device_of", lambda tensor: fake),
                               ("stream", lambda tensor: _c.Stream(fake, None))):
            patch = mock.patch.object(tensors, name, function)
            patch.start()
            self.addCleanup(patch.stop)

    def without_waits(self, call, *arguments):
        """The host may wait until something is enqueued, but not for its end."""
        fault = AssertionError("the host waits for the device")
        with mock.patch.object(_c.lib, "gz_handle_wait_for", side_effect=fault):
            call(*arguments)

    def expect(self, tensors, value):
        """On all ranks, once the stream has come there."""
        for tensor in tensors:
            hvd.allreduce_(tensor, op=hvd.Sum)
            self.assertTrue(torch.equal(tensor, torch.full_like(tensor, self.size * value)))

    def test_all_parts_of_a_sparse_tensor_are_on_its_device(self):
        tensor = torch.eye(3).to_sparse(1)
        with mock.patch.object(torch, "ones", side_effect=torch.ones) as ones:
            total = hvd.sparse_allreduce_async(tensor, "sparse", hvd.Sum)()
        self.assertEqual([call.kwargs["device"] for call in ones.mock_calls], [tensor.device])
        self.assertTrue(torch.equal(total.to_dense(), self.size * torch.eye(3)))

    def test_operations(self):
        given = torch.full((3,), self.rank + 1.0)
        self.assertEqual(hvd.allreduce(given, op=hvd.Sum).tolist(),
                         [self.size * (self.size + 1) / 2] * 3)
        self.assertEqual(hvd.allgather(given[:1]).tolist(), [*range(1, self.size + 1)])

    def test_results_are_freed_without_the_interpreters_lock(self):
        """For cudaFree() waits for the GPU. Only functions of ctypes.PyDLL are called with it."""
        self.assertFalse(_c.lib.gz_result_free._flags_ & ctypes._FUNCFLAG_PYTHONAPI)

    def test_broadcast_parameters(self):
        named = {str(count): torch.full((count,), float(self.rank)) for count in (0, 1, 1000)}
        self.without_waits(hvd.broadcast_parameters, named, self.size - 1)
        self.expect(named.values(), self.size - 1)

    def test_stream_that_is_current(self):
        """At every mark and wait, whatever was current when the reducer was made."""
        fake, current, followed, calls = _c.Device(_c.CUDA, 0), None, None, set()
        torch.manual_seed(5)
        model = torch.nn.Linear(2, 3)  # which stays as it is: the host does not wait for averages
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0),
                                             named_parameters=model.named_parameters())

        def train():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        def follow(_, stream):  # there is none of that address: the reducer stays where it is
            nonlocal followed
            followed = stream._obj.native

        def recorded(name):
            function = getattr(_c.lib, f"gz_reducer_{name}")

            def call(*arguments):
                nonlocal current
                calls.add((name, followed == current))
                current += 1  # for the next call
                return function(*arguments)

            return mock.patch.object(_c.lib, f"gz_reducer_{name}", call)

        train()  # makes the reducer
        current = 1
        with mock.patch.object(tensors, "stream", lambda tensor: _c.Stream(fake, current)), \
                mock.patch.object(_c.lib, "gz_reducer_set_stream", follow), \
                recorded("mark"), recorded("synchronize_for"), recorded("finish_pass"):
            for _ in range(3):
                train()
        self.assertEqual(calls, {("mark", True), ("synchronize_for", True), ("finish_pass", True)})
        self.expect([torch.ones(1)], 1)  # the stream has come to the end

    def test_buffers_of_a_module(self):
        """Before each forward()."""
        wrapped = hvd.DistributedDataParallel(torch.nn.BatchNorm1d(2))
        buffers = [*wrapped.module.buffers()]
        for _ in range(2):
            for buffer in buffers:
                hvd.allreduce_(buffer)  # until then the stream may write to it
                buffer.fill_(self.rank + 1)
            self.without_waits(wrapped._broadcast_buffers)
            self.expect(buffers, 1)
