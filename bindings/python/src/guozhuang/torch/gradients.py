"""Gradients on their way from backward to the optimizer."""
import contextlib
import copy
import functools
import numbers
import threading
import weakref

import torch

from ..errors import Error, refuse
from ..lacks import FAILURES, as_one, is_lack, leave_for
from .agreement import agree, ask
from .arena import Arena
from .gradient import Gradient
from .reducer import Reducer


def next_label(process_set):
    """Names an optimizer, and with it what it sends: ranks make them in the same order, but may use
    them on several threads."""
    process_set.optimizers += 1
    return f"optimizer {process_set.optimizers}"


class Gradients:
    """The gradients of an optimizer's parameters: hooks send each of them when backward is done
    with it, and synchronize() waits for the results.

    At the end of the first batch the ranks agree on which parameters they train, and which
    gradients are sparse. Then the reducer is made, with the buffers in which gradients are reduced,
    and which become the parameters' `grad`. So it goes again after a batch that has failed on all
    ranks, which may then train more parameters, and after a join: a rank may have joined before its
    first batch.
    """

    def __init__(self, named_parameters, options, passes=1, is_copy=False):
        """A copy gets its label when it is first used: not all ranks may have one."""
        self._options, self._label = options, None
        self._gradients, self._lock = [], threading.Lock()
        self._last_number, self._joins = 0, None  # of a reducer; when the ranks agreed
        self.batch = 0  # the number of this one, of those on this rank
        self.is_paused = self.has_begun = False
        self._hook_failure = None
        self._forget()
        self.set_passes(passes)
        self.add(named_parameters)
        if not is_copy:
            self._label = next_label(options.process_set)

    @property
    def label(self):
        if self._label is None:
            self._label = next_label(self._options.process_set)
        return self._label

    def remove_hooks(self):
        for gradient in getattr(self, "_gradients", []):
            gradient.remove_hook()

    __del__ = remove_hooks

    @torch.enable_grad()
    def add(self, named_parameters):
        """Takes up parameters that were not there so far, and hooks those that require a
        gradient. Until the ranks agree, those that are not there any more are dropped. Refuses a
        parameter whose gradient cannot be sent."""
        named, known = [*named_parameters], {id(each.parameter): each for each in self._gradients}
        given = {id(parameter): known.get(id(parameter)) or Gradient(name, parameter)
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
        """Takes copies of the parameters, for a copy of a DistributedDataParallel."""
        return Gradients([(each.name, copy.deepcopy(each.parameter, memo))
                          for each in self._gradients], self._options, is_copy=True)

    def __reduce_ex__(self, protocol):
        refuse("a DistributedDataParallel cannot be pickled, since the hooks of its parameters "
               "belong to it; save its `module`")

    def set_passes(self, passes):
        if not isinstance(passes, numbers.Real) or passes < 1 or passes % 1 != 0:
            refuse(f"backward_passes_per_step is {passes!r}; it must be a whole number, 1 at least")
        if self.in_flight:
            refuse("set_backward_passes_per_step() between backward() and step() or synchronize(): "
                   "gradients are being reduced")
        self._passes = int(passes)
        self._start_batch()

    @property
    def in_flight(self):
        return self._hook_failure is not None or self._is_sent or any(
            each.seen is not None for each in self._gradients)

    @property
    def _is_sent(self):
        """Whether all of this batch is sent."""
        return self._reducer is not None and self.has_begun and self._reducer.is_closed

    @property
    def is_synchronized(self):
        """Each `grad` is a reduced gradient, with which the optimizer has not stepped."""
        return (self._reducer is not None and not self.has_begun
                and self._reducer.is_synchronised)

    def _start_batch(self):
        self.has_begun = False
        self.batch += 1
        self._answers = self._hook_failure = None
        for gradient in self._gradients:
            gradient.start_batch()

    def _begin(self):
        """Goes before all else in a batch."""
        self._options.refuse_old()
        if self.has_begun:
            return
        self.leave_out()
        self.has_begun = True
        if self._joins != self._options.process_set.joins:
            self._forget()
            for gradient in self._gradients:
                gradient.is_trained = False

    # --- backward ---------------------------------------------------------------------------------

    def _count(self, gradient):
        """The hook of a parameter: backward has added to its gradient. If that cannot be counted or
        sent, backward ends, and synchronize() must not send what it has left. After the session a
        new optimizer may train the same parameters."""
        if self._options.is_old:
            return
        try:
            gradient.has_run = True
            with self._lock:
                if self.is_paused:
                    self._keep_values()
                else:
                    self._count_and_send(gradient)
        except FAILURES as failure:
            if is_lack(failure):
                self._hook_failure = failure
            raise

    def _count_and_send(self, gradient):
        if not self.has_begun and self._options.ends_with_backward:
            self._go_on_after_backward(self._end())
        self._begin()
        if gradient.passes == self._passes:
            gradient.seen = None  # the user is told now
            self._refuse_another(gradient)
        gradient.passes += 1
        if gradient.passes == self._passes:
            if self._reducer is not None and gradient.is_trained:
                try:
                    gradient.send(self.label, self._options)
                    self._reducer.mark(gradient.index)
                except Error:  # the session or the process set is gone
                    self._start_batch()
                    raise
            gradient.see()

    def _refuse_another(self, gradient):
        several = ("put all but the last into no_sync()" if self._options.ends_with_backward
                   else f"say backward_passes_per_step (it is {self._passes})")
        refuse(f"the gradient of '{gradient.name}' was computed again before it was reduced: to "
               f"add up gradients of several backward passes {several}; a backward of another loss "
               "needs requires_grad_(False) of these parameters meanwhile; discard() ends a batch "
               "that has failed, or that step() will not end")

    def _keep_values(self):
        """A trainer may change values until the backward in which the ranks compare them."""
        if self._options.check_values and not self._has_agreed and not any(
                each.first_value is not None for each in self._gradients):
            for each in self._gradients:
                each.first_value = each.parameter.detach().clone()

    # --- the end of a batch -----------------------------------------------------------------------

    def synchronize(self):
        """Waits until every parameter's `grad` is its reduced gradient. A parameter without `grad`
        counts as zero. After Ctrl-C while it waits it can be called again."""
        failure = self._hook_failure
        if failure is not None:
            self.discard(f"{type(failure).__name__}: {failure}")
            raise failure
        self.refuse_new()
        for _ in self._end():
            pass

    def _end(self):
        return self._take(self._ask, self._send_rest, self._receive)

    def _take(self, *steps):
        """Takes the steps one by one. If one fails, so has the batch: the others are left out, and
        the error is raised after the last."""
        failure = None
        for step in steps:
            try:
                if failure is None:
                    step()
            except Exception as error:
                leave_for(error, self.label)
                self._fail()
                failure = error
            yield
        if failure is not None:
            raise failure

    def _go_on_after_backward(self, steps):
        """Where several modules are in one backward, in whatever order on each rank, all of them
        come to each step of the end before one of them waits for the other ranks to come to it, or
        raises an error, with which backward ends."""
        def go_on():
            if next(steps, self) is None:
                self._go_on_after_backward(steps)

        torch.autograd.Variable._execution_engine.queue_callback(go_on)

    def _fail(self):
        """Ends a batch that this rank does not step with. If all have reduced it, this one leaves
        it out, else they agree anew."""
        self._start_batch()
        if not self.is_synchronized:
            self._forget()
        self.leave_out()

    def leave_out(self):
        """If this rank has not stepped with what was reduced, it has parted from ranks that did,
        which the next reduction finds."""
        if self.is_synchronized:
            with contextlib.suppress(Error):  # the job is over
                self._reducer.leave_out()

    @as_one
    def finish(self, loss=None):
        """To be called after the step, by which ranks are known that do not step. Returns its
        loss."""
        if self.is_synchronized:
            self._reducer.finish()
        return loss

    def _ask(self):
        self._begin()
        if self._reducer is not None or self._answers is not None:
            return
        self._trained = [each for each in self._gradients if each.is_trained or each.is_used]
        for gradient in self._trained:
            grad = gradient.parameter.grad
            gradient.is_sparse |= grad is not None and grad.is_sparse
        self._answers = ask(
            self.label, [(each.name, each.parameter) for each in self._trained], self._options,
            [each.name for each in self._trained if each.is_sparse], self._last_number)

    def _agree(self):
        """Can be called again after Ctrl-C."""
        if self._reducer is not None:
            return
        sparse, self._last_number = agree(self._answers)
        self._joins = self._options.process_set.joins
        for gradient in self._trained:
            gradient.is_trained, gradient.is_sparse = True, gradient.name in sparse
        self._reducer = Reducer(self._trained, self._options, self._arena,
                                f"{self.label}.{self._last_number}")

    def _send_rest(self):
        """A parameter that no rank uses keeps its `grad`. As in Horovod, an optimizer uses all that
        require a gradient; a DistributedDataParallel, as PyTorch's, those that backward reaches."""
        self._agree()
        if self._is_sent:
            return
        for each in reversed(self._trained):
            if not self._reducer.is_used(each.index):
                each.send(self.label, self._options)
                if each.has_run if self._options.ends_with_backward else each.is_used:
                    self._reducer.mark(each.index)
        self._reducer.close()

    def _wait(self):
        """Waits for all, also if one has failed: all ranks know that then."""
        failures = []
        for wait in (*(each.wait_for_sparse for each in self._trained), self._reducer.synchronize):
            try:
                wait()
            except Error as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _receive(self):
        self._wait()
        for gradient in self._trained:
            if gradient.has_changed:
                refuse(f"the gradient of '{gradient.name}' was changed after backward(), while it "
                       "was being reduced: to clip or unscale gradients call synchronize() before, "
                       "and step() within skip_synchronize(); a DistributedDataParallel and a "
                       "DistributedOptimizer must not both reduce it")
        for gradient, is_used in zip(self._trained, self._reducer.uses.tolist()):
            if is_used:
                gradient.publish(self._options)
        self._start_batch()
        if self._options.ends_with_backward:
            self.finish()

    @as_one
    def discard(self, reason):
        """Gives up this batch on all ranks: their synchronize() raises an error with the reason. If
        it has been sent, on this one alone, which the next batch finds if the others step."""
        if not self._is_sent and not self.is_synchronized:
            for _ in self._take(self._ask, self._agree, functools.partial(self._tell, reason)):
                pass
            return
        if self._is_sent:
            with contextlib.suppress(Error):  # it has failed on all ranks
                self._wait()
        self._fail()

    def _tell(self, reason):
        """Discards the batch on all ranks, which goes on by itself after Ctrl-C."""
        try:
            for gradient in self._trained:
                if gradient.buffer is None:  # which the other ranks wait for
                    gradient.send_sparse(None, self.label, self._options)
            self._reducer.discard(str(reason))
            for gradient in self._trained:
                gradient.wait_for_sparse()
        finally:
            self._forget()
            self._start_batch()

    # --- what is trained --------------------------------------------------------------------------

    @property
    def _has_agreed(self):
        return self._reducer is not None and self._joins == self._options.process_set.joins

    def refuse_new(self):
        """Refuses, on all ranks, a parameter that they have not agreed to train."""
        if self._has_agreed and not self._is_sent:
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

    def give_up(self, mistake):
        """Discards this batch on all ranks for a mistake on this one."""
        self.discard(mistake)
        refuse(mistake)

    def _forget(self):
        """Forgets what the ranks have agreed on: the next batch is as the first one."""
        self._reducer, self._arena = None, Arena(self._options.process_set)
        for gradient in self._gradients:
            gradient.buffer = None
