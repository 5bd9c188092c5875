"""For those who come from torch.nn.parallel.DistributedDataParallel."""
import contextlib

import torch

from ..process_sets import global_process_set
from .functions import broadcast_parameters
from .gradients import Gradients


class DistributedDataParallel(torch.nn.Module):
    """A module whose gradients are averages over all ranks when backward() returns, with any
    optimizer.

    Parameters and buffers are those of the first rank at the beginning, and buffers again before
    each forward() of a training module, unless `broadcast_buffers` is False. A parameter that
    backward has not reached on this rank counts as zero. `bucket_cap_mb` is the size of the bundles
    in which gradients travel.
    """

    def __init__(self, module, broadcast_buffers=True, bucket_cap_mb=25,
                 process_set=global_process_set):
        super().__init__()
        self.module = module
        self._broadcasts_buffers, self._process_set = broadcast_buffers, process_set
        self._root = process_set.ranks[0]
        broadcast_parameters(module.state_dict(), self._root, process_set)
        self._gradients = Gradients(module.named_parameters(),
                                    bundle_bytes=int(bucket_cap_mb * 2**20),
                                    process_set=process_set)
        self._gradients.on_begin = self._at_end_of_backward

    def _at_end_of_backward(self):
        torch.autograd.Variable._execution_engine.queue_callback(self._gradients.synchronize)

    def forward(self, *inputs, **options):
        sends = self._broadcasts_buffers and self.training and torch.is_grad_enabled()
        if sends and not self._gradients.is_paused:
            broadcast_parameters(self.module.named_buffers(), self._root, self._process_set)
        return self.module(*inputs, **options)

    @contextlib.contextmanager
    def no_sync(self):
        """Within it gradients only accumulate; the next backward() outside reduces them."""
        before, self._gradients.is_paused = self._gradients.is_paused, True
        try:
            yield
        finally:
            self._gradients.is_paused = before
