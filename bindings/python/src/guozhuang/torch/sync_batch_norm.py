"""Batch normalisation over the batches of all ranks."""
import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ..collectives import Sum
from ..errors import refuse
from ..lacks import once_submitted
from ..process_sets import global_process_set
from .operations import allreduce


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d, 2d and 3d, with mean and variance of the batches of all ranks, which
    may be of different size. Its arguments are theirs."""

    def __init__(self, *arguments, process_set=global_process_set, **options):
        super().__init__(*arguments, **options)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(cls, module, process_set=global_process_set):
        """Returns the module with a SyncBatchNorm of the same parameters, statistics and mode in
        place of each BatchNorm in it, as that of torch.nn.SyncBatchNorm does. To be called before
        an optimizer is made."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            converted = cls(module.num_features, module.eps, module.momentum, module.affine,
                            module.track_running_stats, process_set=process_set)
            converted.weight, converted.bias = module.weight, module.bias
            for name, buffer in module.named_buffers(recurse=False):
                setattr(converted, name, buffer)
            return converted.train(module.training)
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_set))
        return module

    def _check_input_dim(self, input):
        if input.dim() < 2:
            refuse(f"SyncBatchNorm: a tensor of {input.dim()} dimensions; it needs 2 at least")

    def forward(self, input):
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or self.process_set.size() == 1:
            return self._local(input, uses_batch)
        if input.dtype in (torch.float16, torch.bfloat16):  # too short for sums and counts
            return self._across_ranks(input.float()).to(input.dtype)
        return self._across_ranks(input)

    @once_submitted
    def _across_ranks(self, input):
        across = [0, *range(2, input.dim())]  # all but the channels
        shape = [1, -1, *[1] * (input.dim() - 2)]
        local = torch.cat([input.sum(across), input.new_tensor([input.numel() // input.shape[1]])])
        total = allreduce(local, op=Sum, process_set=self.process_set)
        count = total[-1].detach()
        if self.training and count <= 1:
            refuse("SyncBatchNorm: the ranks have one value for each channel together; a variance "
                   "needs more")
        mean = total[:-1] / count
        centred = input - mean.view(shape)
        squares = allreduce((centred * centred).sum(across), op=Sum, process_set=self.process_set)
        variance = squares / count
        if self.training and self.track_running_stats:
            self._follow(mean.detach(), (squares / (count - 1)).detach())
        output = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output

    def _local(self, input, uses_batch):
        factor = self._next_factor() if self.training and self.track_running_stats else 0.0
        return functional.batch_norm(input, self.running_mean, self.running_var, self.weight,
                                     self.bias, uses_batch, factor, self.eps)

    def _next_factor(self):
        self.num_batches_tracked.add_(1)
        return 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum

    def _follow(self, mean, variance):
        factor = self._next_factor()
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)
