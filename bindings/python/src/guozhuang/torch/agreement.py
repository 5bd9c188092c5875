"""What the ranks of an optimizer tell each other of its parameters."""
import json

import torch

from .. import session
from ..errors import make
from .operations import allgather_async


def ask(label, trained, sparse, process_set, number=0):
    """Tells all ranks the names of the parameters that this one trains, of those whose gradients
    are sparse, and a number. Returns a handle of what all of them have told."""
    text = json.dumps([session.rank(), trained, sparse, number]) + "\n"
    return allgather_async(torch.tensor(list(text.encode()), dtype=torch.uint8),
                           f"{label}: which parameters are trained", process_set)


def agree(handle):
    """Returns the names of the gradients that are sparse on some rank, since others may not have
    used them, and the largest number. Raises an error on all ranks if they train different
    parameters."""
    answers = [json.loads(line) for line in bytes(handle.wait().tolist()).decode().splitlines()]
    _refuse_difference({rank: trained for rank, trained, *_ in answers})
    return ({name for _, _, sparse, _ in answers for name in sparse},
            max(number for *_, number in answers))


def _refuse_difference(trained_by_rank):
    everywhere = set.intersection(*map(set, trained_by_rank.values()))
    for names in trained_by_rank.values():
        for name in names:
            if name not in everywhere:
                _raise_mismatch(name, trained_by_rank)


def _raise_mismatch(name, trained_by_rank):
    having = [rank for rank, names in trained_by_rank.items() if name in names]
    lacking = [rank for rank in trained_by_rank if rank not in having]
    raise make("mismatch",
               f"'{name}' requires a gradient {_on(having)}, but not {_on(lacking)}: all ranks "
               "must begin to train the same parameters in the same batch",
               name, ranks=lacking)


def _on(ranks):
    return f"on rank{'s' * (len(ranks) > 1)} {','.join(map(str, ranks))}"
