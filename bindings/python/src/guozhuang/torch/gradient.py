"""The gradient of one parameter."""
import weakref

import torch


class Gradient:
    """Where it is reduced, and what has become of it in this batch."""

    def __init__(self, name, parameter, passes):
        self.name, self.parameter, self._hook = str(name), parameter, None
        self.is_trained = self.is_sparse = False  # as the ranks have agreed
        self.forget()
        self.start_batch(passes)

    def forget(self):
        self.index = None  # in the reducer
        self.buffer = None  # where it is sent dense
        self.context = None  # of its compression

    def start_batch(self, passes):
        self.delay = passes  # backward passes until it is sent
        self.has_run = False  # its hook
        self.sparse = None  # the handle of a sparse one that is sent
        self.seen = None  # `grad` and its version, as the last hook left them

    @property
    def is_used(self):
        """Whether this rank contributes to it. A parameter that is frozen it does not use, unless
        backward came to it before."""
        return self.has_run or self.parameter.requires_grad

    @property
    def contribution(self):
        return self.parameter.grad if self.is_used else None

    def see(self):
        grad = self.parameter.grad
        self.seen = grad, self._version_of(grad)

    @property
    def has_changed(self):
        """Whether somebody has changed `grad` after its last hook."""
        if self.seen is None:
            return False
        grad, version = self.seen
        return self.parameter.grad is not grad or self._version_of(grad) != version

    def _version_of(self, grad):
        """Counts the changes of a tensor. None if it is a part of another, as gradients of
        parameters that were concatenated are: these have one count in common."""
        if grad.layout == torch.strided and not self._lies_in_buffer(grad):
            storage = grad.untyped_storage() if hasattr(grad, "untyped_storage") else grad.storage()
            if storage.nbytes() != grad.numel() * grad.element_size():
                return None
        return grad._version

    @torch.no_grad()
    def fill(self, grad, compression, factor):
        """Puts `grad` into the buffer, zeros if it is None. A `grad` of the parameter's that is not
        contributed must not lie there."""
        kept = self.parameter.grad
        if grad is None:
            if kept is not None and self._lies_in_buffer(kept):
                self.parameter.grad = kept.clone()
            self.buffer.zero_()
        elif not self._lies_in_buffer(grad):
            dense = grad.to_dense() if grad.is_sparse else grad
            compressed, self.context = compression.compress(dense)
            self.buffer.copy_(compressed)
        if factor != 1:
            self.buffer.mul_(factor)

    def _lies_in_buffer(self, grad):
        return (self.buffer is not None and not grad.is_sparse
                and grad.data_ptr() == self.buffer.data_ptr())

    def as_sparse(self, grad):
        """A sparse gradient, without elements if there is none."""
        parameter = self.parameter
        if grad is None or grad.is_sparse and grad._nnz() == 0:  # zeros may have other dimensions
            return torch.sparse_coo_tensor(
                torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, *parameter.shape[1:]),
                parameter.shape, dtype=parameter.dtype, device=parameter.device).coalesce()
        return grad.detach().coalesce() if grad.is_sparse else grad.detach().to_sparse(1)

    def publish(self, reduced):
        """Not the tensor itself but a view of it: `.data` of a `grad` may be replaced, as
        module.half() does."""
        self.parameter.grad = reduced.detach().to(self.parameter)

    def add_hook(self, weak_method):
        """Calls the method, if its object lives, when backward has added to the gradient. There is
        one hook, which is made again where it was lost."""
        if self.has_run or not self.parameter.requires_grad:
            return
        if self._hook is not None and not self._hook.is_lost:
            return
        self.remove_hook()
        weak_self = weakref.ref(self)

        def hook(*_):
            method, gradient = weak_method(), weak_self()
            if method is not None and gradient is not None:
                method(gradient)

        self._hook = _Hook(self.parameter, hook)

    def remove_hook(self):
        if self._hook is not None:
            self._hook.handle.remove()
            self._hook = None


class _Hook:
    """Before torch 2.1 it is one of the node of the graph that adds to `grad`."""

    def __init__(self, parameter, hook):
        self._parameter, self._node = parameter, None
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            self.handle = parameter.register_post_accumulate_grad_hook(hook)
        else:
            self._node = _node_of(parameter)
            self.handle = self._node.register_hook(hook)

    @property
    def is_lost(self):
        """Module.half() and its like replace the node."""
        return self._node is not None and self._node is not _node_of(self._parameter)


def _node_of(parameter):
    return parameter.expand_as(parameter).grad_fn.next_functions[0][0]
