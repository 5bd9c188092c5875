"""What makes a single-process optimizer a distributed one."""
import contextlib
import numbers
import warnings
import weakref

import torch

from .. import features, session
from ..collectives import Adasum, Average, choose_op
from ..errors import refuse, refuse_unless_positive
from ..lacks import as_one, once_submitted
from ..process_sets import global_process_set, pointer_of
from .agreement import OPS, Options, agree, ask
from .compression import Compression, name_of
from .gradients import Gradients, next_label
from .operations import allreduce, grouped_allreduce


_wrappers = weakref.WeakKeyDictionary()  # by the optimizer it was made of: the last one, weakly


class _Wrapper:
    """Shares all that the optimizer has that it was made of."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._inner.state, self._inner.param_groups = self.state, self.param_groups

    def __reduce_ex__(self, protocol):
        refuse("a distributed optimizer can be neither copied nor pickled, since the hooks of its "
               "parameters belong to it; copy or save its state_dict()")

    def _refuse_replaced(self):
        if _wrappers[self._inner]() is not self:
            refuse("a new DistributedOptimizer has been made of the optimizer that this one was "
                   "made of: use the new one, in schedulers of learning rates, too")


class _Distributed(_Wrapper):
    """What a distributed optimizer does besides what its own class does."""

    def step(self, closure=None):
        """Waits for the reduced gradients, then steps. With a closure, the gradients of each of
        its evaluations are reduced, and its loss is the mean over the ranks."""
        self._refuse_replaced()
        if closure is not None:
            return super().step(self._reduced(closure))
        if self._synchronizes:
            if self._gradients.is_synchronized:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() "
                              "context after optimizer.synchronize(): the gradients are not "
                              "reduced again")
            else:
                self.synchronize()
        return self._gradients.finish(super().step())

    def _reduced(self, closure):
        def evaluate():
            with torch.enable_grad():
                loss = closure()
            return self._reduce_with(loss)

        return evaluate

    @as_one
    def _reduce_with(self, loss):
        self.synchronize()
        self._gradients.finish()
        return _mean(loss, f"{self._gradients.label}: loss", self._process_set)

    def synchronize(self):
        """Waits for the reduced gradients, to clip them, say; step() then goes into a
        skip_synchronize()."""
        self._current_gradients().synchronize()

    def _current_gradients(self):
        """With those of parameters that were added since, and with hooks that were lost."""
        self._refuse_replaced()
        self._gradients.add(_with_names(self, self._named))
        return self._gradients

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Within it step() only steps, after a synchronize()."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def discard(self, reason):
        """Instead of step(), on a rank that cannot go on with this batch: on all ranks it is given
        up, and step() raises an error with the reason. All go on with the next."""
        self._current_gradients().discard(reason)

    def zero_grad(self, *arguments, **options):
        if self._gradients.in_flight:
            refuse("zero_grad() between backward() and step() or synchronize() would change "
                   "gradients that are being reduced: call it after step(), or before backward(); "
                   "discard(reason) gives the batch up on all ranks")
        self._gradients.leave_out()
        return super().zero_grad(*arguments, **options)

    def set_backward_passes_per_step(self, passes):
        """How many backward passes add to the gradients before they are reduced."""
        self._gradients.set_passes(passes)


class _DistributedAdasum(_Wrapper):
    """Adasum adds up the steps that the ranks have made, each with its own gradients."""

    @once_submitted
    def step(self, closure=None):
        self._refuse_replaced()
        trained = [pair for pair in _with_names(self, self._named) if pair[1].requires_grad]
        self._options.refuse_old()
        agree(ask(self._label, trained, self._options))
        parameters = [parameter for _, parameter in trained]
        before = [parameter.detach().clone() for parameter in parameters]
        loss = super().step(closure)
        if not parameters:
            return loss
        with torch.no_grad():
            steps = [parameter - start for parameter, start in zip(parameters, before)]
            total = grouped_allreduce(steps, name=f"{self._label}: steps", op=Adasum,
                                      compression=self._options.compression,
                                      process_set=self._options.process_set)
            for parameter, start, step in zip(parameters, before, total):
                parameter.copy_(start + step)
        return loss

    def synchronize(self):
        """Does nothing: it is the steps that are reduced."""

    def skip_synchronize(self):
        refuse("with op=Adasum it is the steps that are reduced, so step() cannot skip that")

    def discard(self, reason):
        refuse("with op=Adasum it is the steps that are reduced, so a batch cannot be discarded")

    def set_backward_passes_per_step(self, passes):
        """Does nothing: step() reduces, after however many backward passes."""


class _Outside(_Wrapper):
    """On a rank that is not in the process set there is nothing to reduce."""

    def step(self, closure=None):
        self._options.refuse_old()
        return super().step(closure)

    def synchronize(self):
        """Does nothing: this rank is not in the process set."""

    @contextlib.contextmanager
    def skip_synchronize(self):
        yield

    def discard(self, reason):
        """Does nothing: this rank is not in the process set."""

    def set_backward_passes_per_step(self, passes):
        """Does nothing: this rank is not in the process set."""


# PyTorch adds its hooks, and the profiler's, to a step() that is not marked: load_state_dict()
# would have them run before the reduction, and again in step() of the wrapped optimizer class.
_Distributed.step.hooked = _DistributedAdasum.step.hooked = _Outside.step.hooked = True


def _mean(loss, name, process_set):
    """The mean of the ranks' losses, by which optimizers such as LBFGS decide alike."""
    if loss is None:
        return None
    if isinstance(loss, torch.Tensor):
        return allreduce(loss.detach(), name=name, process_set=process_set)
    loss = torch.tensor(loss, dtype=torch.float64)
    return allreduce(loss, name=name, process_set=process_set).item()


def _subclass(optimizer, behaviour, **attributes):
    """The optimizer as an instance of a subclass of its class, in place of the last one."""
    wrapper = object.__new__(type(type(optimizer).__name__, (behaviour, type(optimizer)), {}))
    shared = {key: value for key, value in vars(optimizer).items() if key != "step"}
    vars(wrapper).update(shared, _inner=optimizer, **attributes)
    last = _wrappers.get(optimizer, lambda: None)()
    if isinstance(last, _Distributed):
        last._gradients.remove_hooks()
    _wrappers[optimizer] = weakref.ref(wrapper)
    return wrapper


def _parameters_of(optimizer):
    return [each for group in optimizer.param_groups for each in group["params"]]


def _check_names(optimizer, named_parameters):
    """The pairs of a name and a parameter by the id of the parameter."""
    if named_parameters is None:
        return {}
    named = list(named_parameters)
    if any(not isinstance(each, tuple) or len(each) != 2 for each in named):
        refuse("named_parameters must be pairs of a name and a parameter, as "
               "model.named_parameters() gives them")
    if len({name for name, _ in named}) < len(named):
        refuse("two parameters of named_parameters have the same name")
    by_id = {id(pair[1]): pair for pair in named}
    unnamed = sum(id(each) not in by_id for each in _parameters_of(optimizer))
    if unnamed:
        refuse(f"{unnamed} parameters of the optimizer are not among named_parameters")
    return by_id


def _with_names(optimizer, named):
    """Pairs of a name and a parameter, for all that the optimizer has."""
    return [named.get(id(each)) or (f"parameter {index}", each)
            for index, each in enumerate(_parameters_of(optimizer))]


def _warn_of_adasum():
    if features.told_nccl and session.local_size() > 1 and session.rank() == 0:
        warnings.warn("op=Adasum combines the steps of all ranks; it does not average within each "
                      "host first, as Horovod's does where nccl_built() is not 0: a learning rate "
                      "that was multiplied by local_size() for that is too large")


def _grouping(parameters, num_groups, groups):
    """Horovod's two arguments as lists of parameters, and the bytes of a bundle."""
    groups = groups if groups is not None else num_groups
    if isinstance(groups, numbers.Integral):
        if groups < 0:
            refuse(f"groups is {groups}; it must be 0 at least, or lists of parameters")
        total = sum(each.numel() * each.element_size() for each in parameters)
        return [], None if groups == 0 else -(-total // int(groups))
    try:
        groups = [list(group) for group in groups]
    except TypeError:
        refuse(f"groups is {groups!r}; it must be a whole number, or lists of parameters")
    known, grouped = set(map(id, parameters)), [id(each) for group in groups for each in group]
    if not known.issuperset(grouped) or len(set(grouped)) < len(grouped):
        refuse("groups must be lists of parameters of the optimizer, each in one of them at most")
    return groups, None


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,
                         backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
                         num_groups=0, groups=None, sparse_as_dense=False,
                         process_set=global_process_set, check_values=True):
    """An optimizer like the one given, which reduces gradients over all ranks while backward runs,
    before it steps. It is an instance of a subclass of the optimizer's class.

    named_parameters           model.named_parameters(): errors then have their names
    compression                what travels: Compression.none, fp16 or bf16
    backward_passes_per_step   how many backward passes add to the gradients before each step()
    op                         Average, Sum, or Adasum, which adds up the steps of the ranks
    gradient_predivide_factor  an average divides by this before, and by the rest after the sum
    num_groups, groups         the number of bundles of gradients; or lists of parameters whose
                               gradients are reduced together, at the end of backward
    sparse_as_dense            whether sparse gradients are dense while they are reduced
    process_set                the ranks that train together
    check_values               whether the first step compares the parameters over the ranks, which
                               broadcast_parameters() makes equal
    """
    if not hasattr(optimizer, "param_groups") or isinstance(optimizer, _Wrapper):
        refuse(f"an optimizer of one process is wanted, not {optimizer!r}")
    op = choose_op(None, op)
    if op not in OPS:
        refuse(f"a DistributedOptimizer's op must be {', '.join(OPS.values())}")
    if gradient_predivide_factor != 1 and op != Average:
        refuse("gradient_predivide_factor is for op=Average")
    refuse_unless_positive("gradient_predivide_factor", gradient_predivide_factor)
    pointer_of(process_set), name_of(compression)  # refuse what is none
    number = process_set.optimizers
    try:
        named = _check_names(optimizer, named_parameters)
        if not process_set.included():
            return _subclass(optimizer, _Outside, _options=Options(process_set))
        if op == Adasum and process_set.size() > 1:
            _warn_of_adasum()
            options = Options(process_set, Adasum, compression=compression)
            return _subclass(optimizer, _DistributedAdasum, _named=named, _options=options,
                             _label=next_label(process_set))
        groups, bundle_bytes = _grouping(_parameters_of(optimizer), num_groups, groups)
        gradients = Gradients(
            _with_names(optimizer, named),
            Options(process_set, op, gradient_predivide_factor, compression, sparse_as_dense,
                    groups, bundle_bytes, check_values),
            backward_passes_per_step)
        return _subclass(optimizer, _Distributed, _gradients=gradients, _named=named,
                         _process_set=process_set, _synchronizes=True)
    except BaseException:
        process_set.optimizers = number  # what is not made takes none
        raise
