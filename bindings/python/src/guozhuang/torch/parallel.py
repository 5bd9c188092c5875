"""For those who come from torch.nn.parallel.DistributedDataParallel."""
import contextlib
import math

import torch

from ..errors import refuse, refuse_unless_positive
from ..lacks import once_submitted
from ..process_sets import global_process_set, pointer_of
from .agreement import Options
from .functions import broadcast_parameters
from .gradients import Gradients


class DistributedDataParallel(torch.nn.Module):
    """A module whose gradients are averages over all ranks when backward() returns, with any
    optimizer.

    Parameters and buffers are those of the first rank at the beginning, and buffers again before
    each forward() of a training module, unless `broadcast_buffers` is False. A parameter that
    backward has not reached on this rank counts as zero; one that it has reached on none keeps its
    `grad`; one that only becomes trainable after the first batch is refused. `bucket_cap_mb` is the
    size of the bundles in which gradients travel. The first batch compares the parameters over the
    ranks, as they are at its first backward, unless `check_values` is False.

    The other arguments are PyTorch's, and not needed: the module and its inputs stay on the device
    where they are, and any parameter may be left unused. torch.utils.checkpoint belongs within the
    module, and needs use_reentrant=False, else each of its blocks is reduced by itself.
    """

    @once_submitted
    def __init__(self, module, device_ids=None, output_device=None, dim=0, broadcast_buffers=True,
                 process_set=global_process_set, bucket_cap_mb=25, find_unused_parameters=False,
                 gradient_as_bucket_view=False, static_graph=False, process_group=None,
                 check_values=True):
        if process_group is not None:
            refuse("process_group is PyTorch's; process_set says which ranks train together")
        pointer_of(process_set)  # refuses what is none
        bucket_cap_mb = 25 if bucket_cap_mb is None else bucket_cap_mb
        refuse_unless_positive("bucket_cap_mb", bucket_cap_mb)
        super().__init__()
        self.module = module
        self._broadcasts_buffers, self._process_set = broadcast_buffers, process_set
        self._root, self._broadcast_in = process_set.ranks[0], None
        broadcast_parameters([*module.named_parameters(), *module.named_buffers()], self._root,
                             process_set)
        self._options = Options(process_set, bundle_bytes=math.ceil(bucket_cap_mb * 2**20),
                                check_values=check_values, ends_with_backward=True)
        self._gradients = Gradients(module.named_parameters(), self._options)

    def forward(self, *inputs, **options):
        if torch.is_grad_enabled():
            self._options.refuse_old()
            self._gradients.add(self.module.named_parameters())
            if self._gradients.has_begun and not self._gradients.is_paused:
                refuse("backward() has failed, or was interrupted: discard(reason) ends its batch")
            if self.training and not self._gradients.is_paused:
                if self._broadcasts_buffers:
                    self._broadcast_buffers()
                self._refuse_changes(*inputs, *options.values())
        return self.module(*inputs, **options)

    def _broadcast_buffers(self):
        label = self._gradients.label
        named = [(f"{label}: {name}", buffer) for name, buffer in self.module.named_buffers()]
        broadcast_parameters(named, self._root, self._process_set)
        self._broadcast_in = self._gradients.batch

    def _refuse_changes(self, *inputs):
        """Of what is trained. Where backward does not come to the module its batch cannot end."""
        self._gradients.refuse_new()
        needs_backward = any(isinstance(each, torch.Tensor) and each.requires_grad
                             for each in inputs)
        if self._gradients.is_frozen and not needs_backward:
            self._gradients.give_up("no parameter of the DistributedDataParallel requires a "
                                    "gradient any more: call its `module` instead")

    def discard(self, reason):
        """On a rank whose backward() has failed, or that does not come to it: on the other ranks
        theirs raises an error with the reason. All go on with the next batch."""
        self._options.refuse_old()
        if (self.training and self._broadcasts_buffers
                and self._broadcast_in != self._gradients.batch):
            self._broadcast_buffers()  # for which the others wait in forward()
        self._gradients.discard(reason)

    @contextlib.contextmanager
    def no_sync(self):
        """Within it gradients only accumulate; the next backward() outside reduces them."""
        before, self._gradients.is_paused = self._gradients.is_paused, True
        try:
            yield
        finally:
            self._gradients.is_paused = before
