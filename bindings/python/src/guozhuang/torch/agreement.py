"""What the ranks of an optimizer tell each other of its parameters."""
import collections.abc
import dataclasses
import json

import torch

from .. import process_sets, session
from ..collectives import Adasum, Average, Sum
from ..errors import make
from .compression import Compression, name_of
from .operations import allgather_async

OPS = {Average: "Average", Sum: "Sum", Adasum: "Adasum"}  # of an optimizer


@dataclasses.dataclass
class Options:
    """How gradients are reduced: arguments of DistributedOptimizer and DistributedDataParallel."""
    process_set: process_sets.ProcessSet
    op: int = Average
    predivide_factor: float = 1.0
    compression: type = Compression.none
    sparse_as_dense: bool = False
    groups: collections.abc.Sequence = ()  # lists of parameters that are reduced together
    bundle_bytes: int = None  # of the others; None: as many as the library takes
    check_values: bool = True
    ends_with_backward: bool = False  # backward() calls synchronize()
    session_number: int = dataclasses.field(
        default_factory=lambda: process_sets.session_number, init=False)

    @property
    def is_old(self):
        return self.session_number != process_sets.session_number

    def refuse_old(self):
        """Refuses what belongs to a session that has ended: the ranks may have ended different
        batches in it. New optimizers reuse the names of old ones."""
        if self.is_old:
            raise make("not_initialised", "this DistributedOptimizer or DistributedDataParallel "
                       "belongs to a session that has ended or shrunk, and must be made anew")

    def in_common(self, names):
        """Values that all ranks must share, by their names in errors. `names` are those of
        parameters, by id."""
        return {"op": OPS[self.op], "gradient_predivide_factor": self.predivide_factor,
                "compression": name_of(self.compression), "sparse_as_dense": self.sparse_as_dense,
                "groups": [[names.get(id(each)) for each in group] for group in self.groups],
                "bundle_bytes (num_groups, bucket_cap_mb)": self.bundle_bytes}


def ask(label, trained, options, sparse=(), number=0):
    """Tells all ranks which parameters this one trains, as pairs of a name and a parameter, its
    options, the names of gradients that are sparse, and a number. Returns a handle of what all of
    them have told."""
    dtypes = {name: _kind_of(parameter) for name, parameter in trained}
    in_common = options.in_common({id(parameter): name for name, parameter in trained})
    told = [session.rank(), dtypes, in_common, sparse, number]
    text = json.dumps(told, default=str) + "\n"
    return allgather_async(torch.tensor(list(text.encode()), dtype=torch.uint8),
                           f"{label}: which parameters are trained", options.process_set)


def _kind_of(parameter):
    """Its dtype, and its layout in memory where that is not the usual one."""
    if parameter.is_contiguous():
        return str(parameter.dtype)
    return f"{parameter.dtype} with strides {list(torch.empty_like(parameter).stride())}"


def agree(handle):
    """Returns the names of the gradients that are sparse on some rank, since others may not have
    used them, and the next number. Raises an error on all ranks if they train different
    parameters, or have different options."""
    answers = [json.loads(line) for line in bytes(handle.wait().tolist()).decode().splitlines()]
    for name in dict.fromkeys(name for _, dtypes, *_ in answers for name in dtypes):
        _refuse_lack(name, {rank: name in dtypes for rank, dtypes, *_ in answers})
    for name in answers[0][1]:
        _refuse_others(f"dtypes of '{name}'", {rank: dtypes[name] for rank, dtypes, *_ in answers})
    for name in answers[0][2]:
        _refuse_others(f"values of {name}",
                       {rank: options.get(name) for rank, _, options, *_ in answers})
    return ({name for *_, sparse, _ in answers for name in sparse},
            1 + max(number for *_, number in answers))


def _refuse_others(what, value_by_rank):
    """Refuses values that are not the first rank's."""
    ranks_by_value = {}
    for rank, value in value_by_rank.items():
        ranks_by_value.setdefault(str(value), []).append(rank)
    if len(ranks_by_value) > 1:
        values = "; ".join(f"{value} {_on(ranks)}" for value, ranks in ranks_by_value.items())
        raise make("mismatch", f"optimizers: {what} differ: {values}",
                   ranks=[rank for ranks in [*ranks_by_value.values()][1:] for rank in ranks])


def _refuse_lack(name, has_it_by_rank):
    having, lacking = ([rank for rank, has_it in has_it_by_rank.items() if has_it == wanted]
                       for wanted in (True, False))
    if lacking:
        raise make("mismatch",
                   f"'{name}' requires a gradient {_on(having)}, but not {_on(lacking)}: all ranks "
                   "must begin to train the same parameters in the same batch",
                   name, ranks=lacking)


def _on(ranks):
    return f"on rank{'s' * (len(ranks) > 1)} {','.join(map(str, ranks))}"
