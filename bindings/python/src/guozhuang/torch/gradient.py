"""The gradient of one parameter."""
import functools
import weakref

import torch

from ..errors import refuse
from .operations import scaled, sparse_allreduce_async
from .tensors import require_sendable


class Gradient:
    """Knows where it is reduced, and what has become of it in this batch."""

    def __init__(self, name, parameter):
        if parameter.requires_grad:
            require_sendable(parameter, name)
        self.name, self.parameter = str(name), parameter
        self.is_trained = self.is_sparse = False  # as the ranks have agreed
        self.buffer = self.context = None  # where it is sent dense, and of its compression
        self._hook = self._node = None  # of the graph, which has the hook before torch 2.1
        self.start_batch()

    def start_batch(self):
        self.passes = 0  # of backward, but for those in no_sync()
        self.has_run = False  # its hook
        self._sparse = None  # the handle of a sparse one that is sent
        self.seen = None  # `grad` and its version, as the last hook left them
        self.first_value = None  # a copy from the first no_sync()

    @property
    def is_used(self):
        """Whether this rank contributes to it. A parameter that is frozen it does not use, unless
        backward came to it before."""
        return self.has_run or self.parameter.requires_grad

    @property
    def value(self):
        """The parameter as it was at the first backward of the batch."""
        is_first = self.first_value is None or torch.equal(self.first_value, self.parameter)
        return self.parameter if is_first else self.first_value

    def see(self):
        self.seen = self.parameter.grad, self._version()

    @property
    def has_changed(self):
        """Whether somebody has changed `grad` after its last hook."""
        return self.seen is not None and (
            self.parameter.grad is not self.seen[0] or self._version() != self.seen[1])

    def _version(self):
        """Counts the changes of `grad`. None if it is a part of another tensor, as gradients of
        parameters that were concatenated are: these have one count in common."""
        grad = self.parameter.grad
        if grad.layout == torch.strided and not self._lies_in_buffer(grad):
            storage = grad.untyped_storage() if hasattr(grad, "untyped_storage") else grad.storage()
            if storage.nbytes() != grad.numel() * grad.element_size():
                return None
        return grad._version

    def _lies_in_buffer(self, grad):
        return (self.buffer is not None and not grad.is_sparse
                and grad.data_ptr() == self.buffer.data_ptr())

    def layout(self, compression):
        """Shape, strides, and the pair of dtype and device, of what is sent, which is dense."""
        zeros = torch.zeros_like(self.parameter).detach()
        compressed, self.context = compression.compress(zeros)
        if compressed.shape != zeros.shape:
            refuse(f"'{self.name}': compression must keep the shape of a gradient, "
                   f"{[*zeros.shape]}, and made it {[*compressed.shape]}")
        return zeros.shape, zeros.stride(), (compressed.dtype, compressed.device)

    @torch.no_grad()
    def send(self, label, options):
        """Puts what this rank contributes where it is reduced. It is zero if the rank does not use
        it: a `grad` that is kept then must not lie there."""
        kept, grad = self.parameter.grad, self.parameter.grad if self.is_used else None
        if self.buffer is None:
            self.send_sparse(grad, label, options)
            return
        if grad is None:
            if kept is not None and self._lies_in_buffer(kept):
                self.parameter.grad = kept.clone()
            self.buffer.zero_()
        elif not self._lies_in_buffer(grad):
            dense = grad.to_dense() if grad.is_sparse else grad
            compressed, self.context = options.compression.compress(dense)
            self.buffer.copy_(compressed)
        if options.predivide_factor != 1:
            self.buffer.div_(options.predivide_factor)

    def send_sparse(self, grad, label, options):
        """Sends no elements if there is no `grad`."""
        if self._sparse is not None:
            return
        parameter = self.parameter
        if grad is None or grad.is_sparse and grad._nnz() == 0:  # zeros may have other dimensions
            grad = torch.sparse_coo_tensor(
                torch.zeros(1, 0, dtype=torch.int64, device=parameter.device),
                parameter.new_zeros(0, *parameter.shape[1:]), parameter.shape)
        sparse = grad.coalesce() if grad.is_sparse else grad.to_sparse(1)
        self._sparse = sparse_allreduce_async(scaled(sparse, 1 / options.predivide_factor),
                                              f"{label}: {self.name}", options.op,
                                              options.process_set)

    def wait_for_sparse(self):
        if self._sparse is not None:
            self._sparse()

    def publish(self, options):
        """Makes a view of it the `grad`, whose `.data` module.half(), say, may replace."""
        if self.buffer is None:
            grad = scaled(self._sparse(), options.predivide_factor)
        else:
            grad = options.compression.decompress(self.buffer, self.context)
            grad = grad.to_sparse(1) if self.is_sparse else grad
        self.parameter.grad = grad.detach().to(self.parameter)

    def add_hook(self, weak_method):
        """Calls the method, if its object lives, when backward has added to the gradient. There is
        one hook, which is made again where module.half(), say, has replaced the node."""
        if self.has_run or not self.parameter.requires_grad:
            return
        register, node = getattr(self.parameter, "register_post_accumulate_grad_hook", None), None
        if register is None:
            node = self.parameter.expand_as(self.parameter).grad_fn.next_functions[0][0]
            register = node.register_hook
        if self._hook is None or node is not self._node:
            self.remove_hook()
            self._node = node
            self._hook = register(functools.partial(_call, weak_method, weakref.ref(self)))

    def remove_hook(self):
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _call(weak_method, weak_gradient, *_):
    method, gradient = weak_method(), weak_gradient()
    if method is not None and gradient is not None:
        method(gradient)
