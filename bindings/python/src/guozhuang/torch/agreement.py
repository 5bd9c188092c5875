"""What the ranks of an optimizer tell each other of its parameters."""
import json

import torch

from .. import session
from ..errors import make
from .operations import allgather_async


def ask(label, trained, sparse, process_set):
    """Tells all ranks the names of the parameters that this one trains, and of those whose
    gradients are sparse. Returns a handle of what all of them have told."""
    text = json.dumps([session.rank(), trained, sparse]) + "\n"
    return allgather_async(torch.tensor(list(text.encode()), dtype=torch.uint8),
                           f"{label}: which parameters are trained", process_set)


def agree(handle):
    """Returns the names of the gradients that are sparse on some rank: others may not have used
    them. Raises an error on all ranks if they train different parameters."""
    answers = [json.loads(line) for line in bytes(handle.wait().tolist()).decode().splitlines()]
    _refuse_difference({rank: trained for rank, trained, _ in answers})
    return {name for _, _, sparse in answers for name in sparse}


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
               f"'{name}' requires a gradient {_on(having)}, but not {_on(lacking)}: freeze "
               "parameters, or begin to train them, on all ranks in the same batch",
               name, ranks=lacking)


def _on(ranks):
    return f"on rank{'s' * (len(ranks) > 1)} {','.join(map(str, ranks))}"
