"""Gradients on their way from backward to the optimizer."""
import contextlib
import functools
import threading
import weakref

import torch

from ..collectives import Average
from ..errors import Error, refuse
from ..process_sets import global_process_set
from .agreement import agree, ask
from .compression import Compression
from .operations import scaled, sparse_allreduce_async
from .reducer import Reducer

ONE_BUNDLE = 1 << 62  # more bytes than a bundle can have


def next_label(process_set):
    """Names an optimizer, and with it what it sends: ranks make them in the same order, but may use
    them on several threads."""
    process_set.optimizers += 1
    return f"optimizer {process_set.optimizers}"


class Gradient:
    """That of one parameter: where it is reduced, and what is still to come in this batch."""

    def __init__(self, name, parameter):
        self.name, self.parameter = str(name), parameter
        self.is_sparse = False  # or not known yet, if it has no reducer either
        self.reducer = self.index = self.buffer = None  # if it is sent dense, after its first batch
        self.context = None  # of its compression
        self.hook = None  # once it is trained
        self.start_batch(1)

    def start_batch(self, passes):
        self.delay = passes  # backward passes until it is sent
        self.is_sent, self.sparse = False, None  # the handle of a sparse one
        self.seen = None  # `grad` and its version, as the last hook left them

    @property
    def is_trained(self):
        return self.parameter.requires_grad

    @property
    def is_new(self):
        return self.is_trained and self.reducer is None and not self.is_sparse

    @property
    def has_changed(self):
        """Whether somebody has changed `grad` after its last hook."""
        if self.seen is None:
            return False
        grad, version = self.seen
        return self.parameter.grad is not grad or _version(grad) != version


class Gradients:
    """The gradients of an optimizer's parameters: hooks send each of them when backward is done
    with it, and synchronize() waits for the results.

    They are reduced in buffers, which become the parameters' `grad`. The buffer of a parameter is
    made at the end of its first batch, when the ranks have agreed on which parameters they train,
    and which gradients are sparse. Whether a rank trains others than it did then, all ranks learn
    with the gradients of each batch.
    """

    def __init__(self, named_parameters, op=Average, prescale=1.0, postscale=1.0,
                 compression=Compression.none, groups=(), bundle_bytes=None, sparse_as_dense=False,
                 passes=1, process_set=global_process_set, ends_with_backward=False):
        """`groups` are lists of parameters that are reduced together; the others are reduced in
        bundles of about `bundle_bytes`. `ends_with_backward`: backward() calls synchronize()."""
        self._op, self._prescale, self._postscale = op, prescale, postscale
        self._compression, self._sparse_as_dense = compression, sparse_as_dense
        self._groups, self._bundle_bytes = groups, bundle_bytes
        self._process_set, self._lock = process_set, threading.Lock()
        self._gradients, self._known, self._reducers = [], set(), []
        self._trained = []  # the names that the ranks have agreed on
        self._change = Gradient("what is trained", None)  # whether that is something else now
        self.is_paused, self.is_synchronized = False, False
        self._ends_with_backward, self._joins = ends_with_backward, process_set.joins
        self.set_passes(passes)
        self.add(named_parameters)
        self.label = next_label(process_set)

    def __del__(self):
        for gradient in getattr(self, "_gradients", []):
            if gradient.hook is not None:
                gradient.hook.remove()

    def add(self, named_parameters):
        """Takes up parameters that were not there so far, and hooks those that are trained."""
        for name, parameter in named_parameters:
            if id(parameter) not in self._known:
                self._gradients.append(Gradient(name, parameter))
                self._gradients[-1].start_batch(self._passes)
                self._known.add(id(parameter))
        for gradient in self._gradients:
            if gradient.hook is None and gradient.is_trained:
                gradient.hook = _add_hook(gradient, weakref.WeakMethod(self._count))

    def __reduce_ex__(self, protocol):
        refuse("a DistributedDataParallel can be neither copied nor pickled, since the hooks of "
               "its parameters belong to it; copy or save its `module`")

    @property
    def in_flight(self):
        return any(gradient.is_sent for gradient in self._gradients)

    def set_passes(self, passes):
        if passes < 1:
            refuse(f"backward_passes_per_step is {passes}; it must be 1 at least")
        if self.in_flight:
            refuse("set_backward_passes_per_step() between backward() and step() or synchronize(): "
                   "gradients are being reduced")
        self._passes = passes
        self._start_batch()

    def _start_batch(self):
        self._has_begun, self._answers, self._has_agreed = False, None, False
        for gradient in [self._change, *self._gradients]:
            gradient.start_batch(self._passes)

    # --- backward ---------------------------------------------------------------------------------

    def _count(self, gradient):
        """The hook of a parameter: backward has added to its gradient."""
        if self.is_paused:
            return
        with self._lock:
            self.is_synchronized = False
            if not self._has_begun and self._ends_with_backward:
                _after_backward(functools.partial(self._go_on_to_end, iter(self._steps_to_end)))
            self._has_begun = True
            if gradient.delay == 0:
                gradient.seen = None  # the user is told now
                refuse(f"the gradient of '{gradient.name}' was computed more often than "
                       "backward_passes_per_step says before step() or synchronize(); a batch that "
                       "step() will not end is ended by discard()")
            gradient.delay -= 1
            if gradient.delay == 0:
                grad = gradient.parameter.grad
                self._send(gradient, grad)
                gradient.seen = grad, _version(grad)

    def _send(self, gradient, grad):
        """Sends it, but not before the end of its first batch."""
        if gradient.reducer is not None:
            self._fill(gradient, grad)
            gradient.reducer.mark(gradient.index)
        elif gradient.is_sparse:
            gradient.sparse = sparse_allreduce_async(
                scaled(_sparse(gradient.parameter, grad), self._prescale),
                f"{self.label}: {gradient.name}", self._op, self._process_set)
        else:
            return
        gradient.is_sent = True

    @torch.no_grad()
    def _fill(self, gradient, grad):
        """Puts the gradient into its buffer."""
        buffer = gradient.buffer
        if grad is None:
            buffer.zero_()
        elif grad.is_sparse or grad.data_ptr() != buffer.data_ptr():
            dense = grad.to_dense() if grad.is_sparse else grad
            compressed, gradient.context = self._compression.compress(dense)
            buffer.copy_(compressed)
        if self._prescale != 1:
            buffer.mul_(self._prescale)

    # --- the end of a batch -----------------------------------------------------------------------

    def synchronize(self):
        """Waits until every parameter's `grad` is its reduced gradient. A parameter without `grad`
        counts as zero. After Ctrl-C it can be called again."""
        for step in self._steps_to_end:
            with self._ending_batch():
                step()

    def finish(self):
        """To be called after the step, by which ranks are known that do not step."""
        self.is_synchronized = False
        for reducer in self._reducers:
            reducer.finish()

    @contextlib.contextmanager
    def _ending_batch(self):
        try:
            yield
        except Error:
            self._start_batch()
            raise

    def _go_on_to_end(self, steps):
        """Where several modules are in one backward, in whatever order on each rank, all of them
        come to each step of the end before one of them waits for the other ranks to come to it."""
        step = next(steps, None)
        if step is not None:
            with self._ending_batch():
                step()
            _after_backward(functools.partial(self._go_on_to_end, steps))

    @property
    def _steps_to_end(self):
        return (self._ask_at_first, self._send_rest, self._ask_after_changes, self._send_new,
                self._end)

    def _send_rest(self):
        self._agree_if_asked()
        for gradient in reversed(self._gradients):
            if not gradient.is_sent:
                self._send(gradient, gradient.parameter.grad)
        if not self._change.is_sent:
            self._change.buffer.fill_(self._trained != self._trained_now())
            self._change.reducer.mark(self._change.index)
            self._change.is_sent = True
        if self._ends_with_backward:
            for reducer in self._reducers:
                reducer.send()

    def _send_new(self):
        if self._answers is not None:
            self._send_rest()

    def _end(self):
        self._wait()
        self._refuse_changes()
        for gradient in self._gradients:
            self._publish(gradient)
        self._start_batch()
        self.is_synchronized = True
        if self._ends_with_backward:
            self.finish()

    def discard(self, reason):
        """Gives up this batch on all ranks: their synchronize() raises an error with the reason.
        After synchronize() on this one alone, which the next batch finds if the others step."""
        if self.is_synchronized:
            self.is_synchronized = False
            for reducer in self._reducers:
                reducer.discard(str(reason))
            return
        try:
            self._ask_at_first()
            self._agree_if_asked()
            for gradient in self._gradients:
                if gradient.reducer is None and not gradient.is_sent:
                    self._send(gradient, None)  # which the other ranks wait for
            for reducer in self._reducers:
                reducer.discard(str(reason))
            for gradient in self._gradients:
                if gradient.sparse:
                    gradient.sparse()  # the next batch uses its name
        finally:
            self._start_batch()

    def _wait(self):
        """For all, also if one has failed, since the next batch uses them again."""
        failures = []
        for wait in [*(reducer.synchronize for reducer in self._reducers),
                     *(gradient.sparse for gradient in self._gradients if gradient.sparse)]:
            try:
                wait()
            except Error as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _refuse_changes(self):
        """What changes a gradient while it is being reduced would be lost."""
        for gradient in self._gradients:
            if gradient.has_changed:
                refuse(f"the gradient of '{gradient.name}' was changed after backward(), while it "
                       "was being reduced: to clip or unscale gradients call synchronize() before, "
                       "and step() within skip_synchronize()")

    def _publish(self, gradient):
        """Not the buffer itself but a view of it: `.data` of a `grad` may be replaced, as
        module.half() does. A parameter that is no longer trained keeps the `grad` it has."""
        if not gradient.is_trained:
            return
        if gradient.reducer is None:
            grad = scaled(gradient.sparse(), self._postscale)
        else:
            grad = self._compression.decompress(gradient.buffer, gradient.context)
            grad = grad.to_sparse(1) if gradient.is_sparse else grad
        gradient.parameter.grad = grad.detach().to(gradient.parameter)

    # --- agreement, and the buffers that follow from it -------------------------------------------

    def _trained_now(self):
        return [each.name for each in self._gradients if each.parameter.requires_grad]

    def _ask(self):
        if self._answers is None:
            sparse = [gradient.name for gradient in self._gradients
                      if gradient.is_sparse
                      or gradient.is_new and _is_sparse(gradient.parameter.grad)]
            self._answers = ask(self.label, self._trained_now(), sparse, self._process_set)

    def _ask_at_first(self):
        """After a join, too, for the ranks that had joined before their first batch."""
        if not self._reducers or self._joins != self._process_set.joins:
            self._ask()

    def _ask_after_changes(self):
        """On all ranks if what one of them trains has changed."""
        self._wait()
        if not self._has_agreed and self._change.buffer.item() != 0:
            self._ask()

    def _agree_if_asked(self):
        """Can be called again after Ctrl-C."""
        if self._answers is None:
            return
        sparse = agree(self._answers)
        self._answers, self._has_agreed = None, True
        self._trained, self._joins = self._trained_now(), self._process_set.joins
        self._make_reducers([each for each in self._gradients if each.is_new], sparse)

    def _make_reducers(self, new, sparse):
        """For those of the new gradients that are sent dense."""
        for gradient in new:
            gradient.is_sparse = gradient.name in sparse
        dense = [each for each in new if self._sparse_as_dense or not each.is_sparse]
        for group in self._groups:
            wanted = set(map(id, group))
            self._make_reducer([each for each in dense if id(each.parameter) in wanted], ONE_BUNDLE)
            dense = [each for each in dense if id(each.parameter) not in wanted]
        if self._change.reducer is None:  # which is in the bundle that is sent last
            like = new[0].parameter if new else torch.zeros(1)
            self._change.parameter = torch.zeros(1, dtype=like.dtype, device=like.device)
            dense.insert(0, self._change)
        self._make_reducer(dense, self._bundle_bytes)

    def _make_reducer(self, gradients, bundle_bytes):
        if not gradients:
            return
        for gradient in gradients:
            zeros = torch.zeros_like(gradient.parameter, memory_format=torch.contiguous_format)
            gradient.buffer, gradient.context = self._compression.compress(zeros.detach())
            if gradient.buffer.shape != gradient.parameter.shape:
                refuse("compression must keep the shapes of gradients")
        reducer = Reducer(f"{self.label}.{len(self._reducers) + 1}", gradients, self._op,
                          self._postscale, bundle_bytes, self._process_set)
        self._reducers.append(reducer)
        for index, gradient in enumerate(gradients):
            gradient.reducer, gradient.index = reducer, index


def _after_backward(action):
    """Calls it at the end of the backward within which this is called, or of whose end it is."""
    torch.autograd.Variable._execution_engine.queue_callback(action)


def _version(grad):
    """Counts the changes of a tensor. None if it is a part of another, as gradients of parameters
    that were concatenated are: these have one count in common."""
    if grad.layout == torch.strided:
        storage = grad.untyped_storage() if hasattr(grad, "untyped_storage") else grad.storage()
        if storage.nbytes() != grad.numel() * grad.element_size():
            return None
    return grad._version


def _is_sparse(grad):
    return grad is not None and grad.is_sparse


def _sparse(parameter, grad):
    """A sparse gradient of the parameter, without elements if there is none."""
    if grad is None or grad.is_sparse and grad._nnz() == 0:  # zeros may have other dimensions
        return torch.sparse_coo_tensor(
            torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, *parameter.shape[1:]),
            parameter.shape, dtype=parameter.dtype, device=parameter.device).coalesce()
    return grad.detach().coalesce() if grad.is_sparse else grad.detach().to_sparse(1)


class _AccumulateHook:
    """A hook on the node of the graph that adds to `grad`, for a torch before 2.1."""

    def __init__(self, parameter, hook):
        with torch.enable_grad():
            self._node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self._handle = self._node.register_hook(hook)

    def remove(self):
        self._handle.remove()


def _add_hook(gradient, weak_method):
    """Calls the method, if its object lives, when backward has added to the gradient."""

    def hook(*_):
        method = weak_method()
        if method is not None:
            method(gradient)

    if hasattr(gradient.parameter, "register_post_accumulate_grad_hook"):
        return gradient.parameter.register_post_accumulate_grad_hook(hook)
    return _AccumulateHook(gradient.parameter, hook)
