"""Gradients on their way from backward to the optimizer."""
import contextlib
import copy
import functools
import numbers
import threading
import weakref

import torch

from ..collectives import Average
from ..errors import Error, refuse
from ..lacks import FAILURES, as_one, is_lack, leave_for
from ..process_sets import global_process_set
from .agreement import OPS, agree, ask
from .arena import Arena
from .compression import Compression, name_of
from .gradient import Gradient
from .operations import scaled, sparse_allreduce_async
from .reducer import Reducer, make_buffers
from .tensors import require_sendable


def next_label(process_set):
    """Names an optimizer, and with it what it sends: ranks make them in the same order, but may use
    them on several threads."""
    process_set.optimizers += 1
    return f"optimizer {process_set.optimizers}"


class Gradients:
    """The gradients of an optimizer's parameters: hooks send each of them when backward is done
    with it, and synchronize() waits for the results.

    At the end of the first batch the ranks agree on which parameters they train, and which
    gradients are sparse. Then the buffers are made in which gradients are reduced, and which become
    the parameters' `grad`. So it goes again after a batch that has failed on all ranks, which may
    then train more parameters, and after a join: a rank may have joined before its first batch.
    """

    def __init__(self, named_parameters, op=Average, prescale=1.0, postscale=1.0,
                 compression=Compression.none, groups=(), bundle_bytes=None, sparse_as_dense=False,
                 passes=1, process_set=global_process_set, ends_with_backward=False,
                 check_values=True, is_copy=False):
        """`groups` are lists of parameters that are reduced together; the others are reduced in
        bundles of about `bundle_bytes`. `ends_with_backward`: backward() calls synchronize(). A
        copy is named when it is first used: not all ranks may have one."""
        named_parameters = [*named_parameters]
        for name, parameter in named_parameters:
            if parameter.requires_grad:
                require_sendable(parameter, name)
        self._op, self._prescale, self._postscale = op, prescale, postscale
        self._compression, self._sparse_as_dense = compression, sparse_as_dense
        self._groups, self._bundle_bytes = groups, bundle_bytes
        self._process_set, self._lock = process_set, threading.Lock()
        self._gradients = []
        self._last_number, self._joins = 0, None  # of a reducer; when the ranks agreed
        self.batch = 0  # the number of this one, of those on this rank
        self.is_paused = False
        self._ends_with_backward, self._check_values = ends_with_backward, check_values
        self._forget()
        self._hook_failure = None
        self.set_passes(passes)
        self.add(named_parameters)
        self._label = None if is_copy else next_label(process_set)

    @property
    def label(self):
        if self._label is None:
            self._label = next_label(self._process_set)
        return self._label

    def remove_hooks(self):
        for gradient in getattr(self, "_gradients", []):
            gradient.remove_hook()

    __del__ = remove_hooks

    @torch.enable_grad()
    def add(self, named_parameters):
        """Takes up parameters that were not there so far, and hooks those that require a
        gradient. Until the ranks agree, those that are not there any more are dropped."""
        named, known = [*named_parameters], {id(each.parameter): each for each in self._gradients}
        given = {id(parameter): known.get(id(parameter)) or Gradient(name, parameter, self._passes)
                 for name, parameter in named}
        if self._reducer is not None or self._answers is not None:
            given = {**known, **given}
        else:
            for name, parameter in named:  # numbers, for instance, which may change
                given[id(parameter)].name = str(name)
            for key in known.keys() - given.keys():
                known[key].remove_hook()
        self._gradients = [*given.values()]
        method = weakref.WeakMethod(self._count)
        for gradient in self._gradients:
            gradient.add_hook(method)

    def __deepcopy__(self, memo):
        """Of copies of the parameters, for a copy of a DistributedDataParallel."""
        named = [(each.name, copy.deepcopy(each.parameter, memo)) for each in self._gradients]
        return Gradients(
            named, op=self._op, prescale=self._prescale, postscale=self._postscale,
            compression=self._compression, bundle_bytes=self._bundle_bytes,
            sparse_as_dense=self._sparse_as_dense, passes=self._passes,
            process_set=self._process_set, ends_with_backward=self._ends_with_backward,
            check_values=self._check_values, is_copy=True)

    def __reduce_ex__(self, protocol):
        refuse("a DistributedDataParallel cannot be pickled, since the hooks of its parameters "
               "belong to it; save its `module`")

    @property
    def in_flight(self):
        return self._hook_failure is not None or self._is_closed or any(
            each.seen is not None for each in self._gradients)

    @property
    def _is_closed(self):
        """All of this batch is sent."""
        return self._reducer is not None and self.has_begun and self._reducer.is_closed

    @property
    def is_synchronized(self):
        """Each `grad` is a reduced gradient, with which the optimizer has not stepped."""
        return self._reducer is not None and not self.has_begun and self._reducer.is_synchronised

    def set_passes(self, passes):
        if not isinstance(passes, numbers.Real) or passes < 1 or passes % 1 != 0:
            refuse(f"backward_passes_per_step is {passes!r}; it must be a whole number, 1 at least")
        if self.in_flight:
            refuse("set_backward_passes_per_step() between backward() and step() or synchronize(): "
                   "gradients are being reduced")
        self._passes = int(passes)
        self._start_batch()

    def _start_batch(self):
        self.has_begun = False
        self.batch += 1
        self._answers = self._failure = self._hook_failure = None
        self._first_values = {}  # by the id of the parameter
        for gradient in self._gradients:
            gradient.start_batch(self._passes)

    # --- backward ---------------------------------------------------------------------------------

    def _count(self, gradient):
        """The hook of a parameter: backward has added to its gradient. If that cannot be counted or
        sent, backward ends, and synchronize() must not send what it has left."""
        try:
            self._count_and_send(gradient)
        except FAILURES as failure:
            if is_lack(failure):
                self._hook_failure = failure
            raise

    def _count_and_send(self, gradient):
        gradient.has_run = True
        if self.is_paused:
            self._keep_values()
            return
        with self._lock:
            if not self.has_begun and self._ends_with_backward:
                _after_backward(functools.partial(self._go_on_to_end, 0))
            self._begin()
            if gradient.delay == 0:
                gradient.seen = None  # the user is told now
                self._refuse_another(gradient)
            gradient.delay -= 1
            if gradient.delay == 0:
                if self._reducer is not None and gradient.is_trained:
                    self._try_to_send(gradient)
                gradient.see()

    def _refuse_another(self, gradient):
        others = "of another loss needs requires_grad_(False) of these parameters meanwhile"
        if self._ends_with_backward:
            refuse(f"the gradient of '{gradient.name}' was computed again before its batch was "
                   "reduced: to add up gradients of several backward passes put all but the last "
                   f"into no_sync(); a backward {others}; discard() ends a batch that has failed")
        refuse(f"the gradient of '{gradient.name}' was computed again before step() or "
               "synchronize(): to add up gradients of several backward passes say "
               f"backward_passes_per_step (it is {self._passes}); a backward {others}; a batch "
               "that step() will not end is ended by discard()")

    def _keep_values(self):
        """A trainer may change values until the backward in which the ranks compare them."""
        with self._lock:
            if (self._ends_with_backward and self._check_values and not self._has_agreed
                    and not self._first_values):
                self._first_values = {id(each.parameter): each.parameter.detach().clone()
                                      for each in self._gradients}

    def _try_to_send(self, gradient):
        try:
            self._send(gradient, gradient.parameter.grad)
        except Error:  # the session or the process set is gone
            self._start_batch()
            raise

    def _begin(self):
        """Goes before all else in a batch."""
        if self.has_begun:
            return
        self.leave_out()
        self.has_begun, self._failure = True, None  # backward may have ended with another's
        if self._joins != self._process_set.joins:
            self._forget()
            for gradient in self._gradients:
                gradient.is_trained = False

    def leave_out(self):
        """If this rank has not stepped with what was reduced, it has parted from ranks that did,
        which the next reduction finds."""
        if self.is_synchronized:
            self._reducer.leave_out()

    def _send(self, gradient, grad, is_used=True):
        if gradient.buffer is not None:
            gradient.fill(grad, self._compression, self._prescale)
        elif gradient.sparse is None:
            gradient.sparse = sparse_allreduce_async(
                scaled(gradient.as_sparse(grad), self._prescale),
                f"{self.label}: {gradient.name}", self._op, self._process_set)
        if is_used:
            self._reducer.mark(gradient.index)

    # --- the end of a batch -----------------------------------------------------------------------

    def synchronize(self):
        """Waits until every parameter's `grad` is its reduced gradient. A parameter without `grad`
        counts as zero. After Ctrl-C while it waits it can be called again."""
        failure = self._hook_failure
        if failure is not None:
            self.discard(f"{type(failure).__name__}: {failure}")
            raise failure
        self.refuse_new()
        for step in self._steps_to_end:
            self._attempt(step)
        self._raise_failure()

    @as_one
    def finish(self, loss=None):
        """To be called after the step, by which ranks are known that do not step. Returns its
        loss."""
        if self.is_synchronized:
            self._reducer.finish()
        return loss

    @property
    def _steps_to_end(self):
        return self._ask, self._send_rest, self._end

    def _go_on_to_end(self, number):
        """Where several modules are in one backward, in whatever order on each rank, all of them
        come to each step of the end before one of them waits for the other ranks to come to it, or
        raises an error, with which backward ends."""
        if number == len(self._steps_to_end):
            self._raise_failure()
        else:
            self._attempt(self._steps_to_end[number])
            _after_backward(functools.partial(self._go_on_to_end, number + 1))

    def _attempt(self, step):
        """If it fails, so has the batch, and the other steps do nothing."""
        if self._failure is None:
            try:
                step()
            except Exception as failure:
                leave_for(failure, self.label)
                self._start_batch()
                self.leave_out()
                self._failure = failure

    def _raise_failure(self):
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _ask(self):
        self._begin()
        if self._reducer is not None or self._answers is not None:
            return
        self._trained = [each for each in self._gradients if each.is_trained or each.is_used]
        for gradient in self._trained:
            grad = gradient.parameter.grad
            gradient.is_sparse |= grad is not None and grad.is_sparse
        sparse = [each.name for each in self._trained if each.is_sparse]
        self._answers = ask(
            self.label, [(each.name, each.parameter) for each in self._trained], self._settings,
            self._process_set, sparse, self._last_number)

    @property
    def _settings(self):
        """What the ranks must have in common."""
        names = {id(each.parameter): each.name for each in self._gradients}
        return {"op": OPS[self._op], "gradient_predivide_factor": self._postscale,
                "compression": name_of(self._compression), "sparse_as_dense": self._sparse_as_dense,
                "groups": [[names.get(id(each)) for each in group] for group in self._groups],
                "bundle_bytes (num_groups, bucket_cap_mb)": self._bundle_bytes}

    def _send_rest(self):
        self._agree()
        if self._is_closed:
            return
        for gradient in reversed(self._trained):
            if not self._reducer.is_used(gradient.index):
                self._send(gradient, gradient.contribution, self._uses_it(gradient))
        self._call(self._reducer.close)

    def _uses_it(self, gradient):
        """What no rank uses keeps its `grad`. An optimizer uses all that requires a gradient, as
        Horovod's does, a DistributedDataParallel what backward comes to, as PyTorch's does."""
        return gradient.has_run if self._ends_with_backward else gradient.is_used

    def _end(self):
        self._wait()
        self._refuse_changes()
        for gradient, is_used in zip(self._trained, self._reducer.uses.tolist()):
            if is_used:
                gradient.publish(self._reduced(gradient))
        self._start_batch()
        if self._ends_with_backward:
            self.finish()

    def _wait(self):
        self._call(self._reducer.synchronize,
                   *(gradient.sparse for gradient in self._trained if gradient.sparse))

    def _call(self, *functions):
        """All of them, also if one has failed. All ranks know that then."""
        failures = []
        for function in functions:
            try:
                function()
            except Error as failure:
                failures.append(failure)
        if failures:
            self._forget()
            self._start_batch()
            raise failures[0]

    def _refuse_changes(self):
        """What changes a gradient while it is being reduced would be lost."""
        for gradient in self._trained:
            if gradient.has_changed:
                refuse(f"the gradient of '{gradient.name}' was changed after backward(), while it "
                       "was being reduced: to clip or unscale gradients call synchronize() before, "
                       "and step() within skip_synchronize(); a DistributedDataParallel and a "
                       "DistributedOptimizer must not both reduce it")

    def _reduced(self, gradient):
        if gradient.buffer is None:
            return scaled(gradient.sparse(), self._postscale)
        grad = self._compression.decompress(gradient.buffer, gradient.context)
        return grad.to_sparse(1) if gradient.is_sparse else grad

    @as_one
    def discard(self, reason):
        """Gives up this batch on all ranks: their synchronize() raises an error with the reason. If
        it has been sent, on this one alone, which the next batch finds if the others step."""
        if not self._is_closed and not self.is_synchronized:
            self._discard_on_all(reason)
            return
        if self._is_closed:
            with contextlib.suppress(Error):  # it has failed on all ranks
                self._wait()
        self._start_batch()
        self.leave_out()

    def _discard_on_all(self, reason):
        self._ask()
        self._agree()
        try:
            for gradient in self._trained:
                if gradient.buffer is None:  # which the other ranks wait for
                    self._send(gradient, None, is_used=False)
            self._reducer.discard(str(reason))
            for gradient in self._trained:
                if gradient.sparse:
                    gradient.sparse()
        finally:
            self._forget()
            self._start_batch()

    # --- what is trained --------------------------------------------------------------------------

    def refuse_new(self):
        """Refuses, on all ranks, a parameter that they have not agreed to train."""
        if self._has_agreed and not self._is_closed:
            for gradient in self._gradients:
                if gradient.is_used and not gradient.is_trained:
                    self.give_up(
                        f"'{gradient.name}' requires a gradient, but did not in the first batch: "
                        "after unfreezing or adding parameters make a new DistributedOptimizer or "
                        "DistributedDataParallel")

    @property
    def is_frozen(self):
        """Whether nothing is trained any more."""
        return self._has_agreed and bool(self._trained) and not any(
            gradient.parameter.requires_grad for gradient in self._gradients)

    @property
    def _has_agreed(self):
        return self._reducer is not None and self._joins == self._process_set.joins

    def give_up(self, mistake):
        """Discards this batch on all ranks for a mistake on this one."""
        self.discard(mistake)
        refuse(mistake)

    def _forget(self):
        """What the ranks have agreed on: the next batch is as the first one."""
        self._trained, self._reducer = [], None
        self._arena = Arena(self._process_set)
        for gradient in self._gradients:
            gradient.forget()

    def _agree(self):
        """Can be called again after Ctrl-C."""
        if self._answers is not None:
            self._call(self._make_reducer)
            self._answers = None

    def _make_reducer(self):
        sparse, self._last_number = agree(self._answers)
        self._joins = self._process_set.joins
        for index, gradient in enumerate(self._trained):
            gradient.index, gradient.is_trained = index, True
            gradient.is_sparse = gradient.name in sparse
        group_of = {id(parameter): number for number, group in enumerate(self._groups)
                    for parameter in group}
        groups = [group_of.get(id(each.parameter), -1) for each in self._trained]
        uses = self._make_buffers(groups)
        sizes = {} if self._bundle_bytes is None else dict(
            bundle_bytes=self._bundle_bytes, first_bundle_bytes=self._bundle_bytes)
        self._last_number += 1
        self._reducer = Reducer(
            [(each.name, self._first_value(each.parameter), each.buffer) for each in self._trained],
            uses, groups, self._process_set, name=f"{self.label}.{self._last_number}".encode(),
            op=self._op, gradient_scale=self._postscale, check_values=self._check_values, **sizes)

    def _make_buffers(self, groups):
        """Those of one group come one after the other. Returns that of the uses."""
        dense = [each for each in self._trained if self._sparse_as_dense or not each.is_sparse]
        dense.sort(key=lambda gradient: -groups[gradient.index])
        uses = (torch.Size([max(1, len(self._trained))]), (1,), torch.float32,
                torch.device("cpu"))
        uses, *buffers = make_buffers([uses, *map(self._layout_of, dense)], self._arena)
        for gradient, buffer in zip(dense, buffers):
            gradient.buffer = buffer
        return uses

    def _first_value(self, parameter):
        """As it was at the first backward of the batch."""
        first = self._first_values.get(id(parameter))
        return parameter if first is None or torch.equal(first, parameter) else first

    def _layout_of(self, gradient):
        """Of what is sent: shape, strides, dtype and device."""
        zeros = torch.zeros_like(gradient.parameter)  # dense, in the parameter's layout
        compressed, gradient.context = self._compression.compress(zeros.detach())
        if (compressed.shape, compressed.stride()) != (zeros.shape, zeros.stride()):
            refuse(f"'{gradient.name}': compression must keep the shapes and strides of gradients")
        return compressed.shape, compressed.stride(), compressed.dtype, compressed.device


def _after_backward(action):
    """Calls it at the end of the backward within which this is called, or of whose end it is."""
    torch.autograd.Variable._execution_engine.queue_callback(action)
