"""What each operation gives, computed by its definition from what all ranks give it. A function for
each: from the calls by rank, and the ranks of the group, to the words of the outcome by rank."""
import math

from tensors import Tensor, is_floating, stacked, wrapped

RESULTS = {}
REDUCTIONS = ("allreduce", "grouped_allreduce", "reduce_scatter", "grouped_reduce_scatter")


def result_of(*operations):
    def add(function):
        RESULTS.update(dict.fromkeys(operations, function))
        return function

    return add


def _options(calls):
    """Those that are the same on all ranks."""
    return next(iter(calls.values())).options


def _tensors(calls):
    """Those of all ranks, by their number in the call."""
    return zip(*(call.tensors for call in calls.values()))


# --- reductions -----------------------------------------------------------------------------------


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def adasum(vectors):
    """Along the balanced tree over the ranks, split at the largest power of two below their
    number."""
    if len(vectors) == 1:
        return vectors[0]
    split = 1 << (len(vectors) - 1).bit_length() - 1
    a, b = adasum(vectors[:split]), adasum(vectors[split:])
    of_a, of_b = (1 - dot(a, b) / (2 * dot(each, each)) if any(each) else 1 for each in (a, b))
    return [of_a * x + of_b * y for x, y in zip(a, b)]


def truncated(total, count):
    return total // count if total >= 0 else -(-total // count)


def combined(op, dtype, terms):
    """Of one element: integers wrap, but averages of at most 32 bits divide the true sum; they are
    truncated."""
    if op in ("min", "max"):
        return min(terms) if op == "min" else max(terms)
    total = math.prod(terms) if op == "product" else sum(terms)
    if not is_floating(dtype) and (op != "average" or dtype in ("i64", "u64")):
        total = wrapped(dtype, total)
    if op != "average":
        return total
    return total / len(terms) if is_floating(dtype) else truncated(total, len(terms))


def reduced(tensors, options):
    dtype, op = tensors[0].dtype, options["op"]
    prescale, postscale = (float(options[key]) if key in options else 1
                           for key in ("prescale", "postscale"))
    given = [[value * prescale for value in each.values] for each in tensors]
    if op == "adasum":
        values = adasum(given)
    else:
        values = [combined(op, dtype, terms) for terms in zip(*given)]
    return Tensor(dtype, tensors[0].shape, [value * postscale for value in values])


@result_of("allreduce", "grouped_allreduce")
def _(calls, group):
    results = [str(reduced(tensors, _options(calls))) for tensors in _tensors(calls)]
    return {rank: results for rank in calls}


@result_of("reduce_scatter", "grouped_reduce_scatter")
def _(calls, group):
    outcomes = {rank: [] for rank in group}
    for tensors in _tensors(calls):
        total, end = reduced(tensors, _options(calls)), 0
        for number, rank in enumerate(group):
            rows = total.shape[0] // len(group) + (number < total.shape[0] % len(group))
            outcomes[rank] += [str(total.rows(end, end + rows)), f"rows={rows}"]
            end += rows
    return outcomes


# --- what only moves ------------------------------------------------------------------------------


def rows_of(counts):
    return "rows=" + ",".join(map(str, counts))


@result_of("all_gather", "grouped_all_gather")
def _(calls, group):
    outcome = []
    for number, tensors in enumerate(_tensors(calls)):
        rows = [calls[rank].tensors[number].shape[0] if rank in calls else 0 for rank in group]
        outcome += [str(stacked(tensors)), rows_of(rows)]
    return {rank: outcome for rank in calls}


@result_of("all_gather_bytes")
def _(calls, group):
    return {rank: [str(call.tensors[0]) for call in calls.values()] for rank in calls}


@result_of("broadcast", "broadcast_bytes")
def _(calls, group):
    root = calls[_options(calls)["root"]]
    return {rank: [str(root.tensors[0])] for rank in calls}


def shares_of(call, ranks):
    """The tensor of a rank, cut into what it sends to each."""
    tensor, end, shares = call.tensors[0], 0, []
    equal = [tensor.shape[0] // ranks] * ranks
    splits = call.options.get("splits")
    for rows in map(int, splits.split(",")) if splits else equal:
        shares.append(tensor.rows(end, end + rows))
        end += rows
    return shares


@result_of("all_to_all")
def _(calls, group):
    received = zip(*(shares_of(call, len(group)) for call in calls.values()))
    return {rank: [str(stacked(shares)), rows_of(share.shape[0] for share in shares)]
            for rank, shares in zip(group, received)}


@result_of("exchange")
def _(calls, group):
    return {rank: [str(calls[call.options["from"]].tensors[0])] for rank, call in calls.items()}


# --- training -------------------------------------------------------------------------------------


@result_of("train")
def _(calls, group):
    """One process with the samples of all ranks, from the weights of rank 0. The last tensor has
    the samples: their last column is what the product of the others and the weights should be."""
    options = _options(calls)
    *weights, _ = calls[group[0]].tensors
    w = [value for each in weights for value in each.values]
    is_discarded = any("discard" in call.options for call in calls.values())
    for step in range(0 if is_discarded else options["steps"]):
        gradient = [0] * len(w)
        for call in calls.values():
            for *x, y in batch(call.tensors[-1], step, options["steps"]):
                error = dot(x, w) - y
                gradient = [sum_ + error * each for sum_, each in zip(gradient, x)]
        divisor = len(calls) if options["op"] == "average" else 1
        w = [each - float(options["rate"]) * sum_ / divisor for each, sum_ in zip(w, gradient)]
    trained, end = [], 0
    for each in weights:
        end += len(each.values)
        trained.append(str(Tensor(each.dtype, each.shape, w[end - len(each.values):end])))
    return {rank: trained for rank in calls}


def batch(samples, step, steps):
    """The rows of a step; each step has as many."""
    rows, columns = samples.shape
    own = samples.rows(rows // steps * step, rows // steps * (step + 1)).values
    return [own[i:i + columns] for i in range(0, len(own), columns)]


# --- the session ----------------------------------------------------------------------------------


@result_of("rank")
def _(calls, group):
    return {rank: [str(number), str(len(group))] for number, rank in enumerate(group)}


@result_of("init", "shutdown", "barrier", "create_set", "remove_set")
def _(calls, group):
    return {rank: [] for rank in calls}
