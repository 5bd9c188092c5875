"""The conformance suite through the Python package: program.py numpy|torch CASES OUTCOMES."""
import sys

INTERFACE = sys.argv[1]
if INTERFACE == "torch":
    import torch

    import guozhuang.torch as hvd
else:
    import numpy

    import guozhuang as hvd

DTYPES = {"u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
          "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
          "u16": "uint16", "u32": "uint32", "u64": "uint64"}
DTYPES = {"bool": "bool", **{name: dtype for name, dtype in DTYPES.items()
                             if hasattr(torch if INTERFACE == "torch" else numpy, dtype)}}
NAMES = {name: dtype for dtype, name in DTYPES.items()}
CODES_OF_CALLS = ("invalid_argument", "duplicate_name", "not_initialised")  # are ValueErrors, too


class Cannot(Exception):
    """An operation or dtype that this interface has not."""


# --- lines ----------------------------------------------------------------------------------------


def tensor_of(word):
    dtype, extents, data = (part.replace(".", "") for part in word.split(":"))
    if dtype not in DTYPES:
        raise Cannot
    shape = [int(extent) for extent in extents.split("x") if extent]
    data = bytearray.fromhex(data)
    if INTERFACE == "numpy":
        return numpy.frombuffer(data, DTYPES[dtype]).reshape(shape)
    dtype = getattr(torch, DTYPES[dtype])
    return (torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)).reshape(
        shape)


def word_of(tensor):
    if INTERFACE == "numpy":
        name, data = tensor.dtype.name, tensor.tobytes()
    else:
        name = str(tensor.dtype).partition(".")[2]
        data = tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    shape = "x".join(map(str, tensor.shape))
    return f"{NAMES[name]}:{shape or '.'}:{data.hex() or '.'}"


def words_of(result):
    """The result of an operation, as the words of an outcome."""
    if result is None:
        return []
    if isinstance(result, int):
        return [str(result)]
    if isinstance(result, bytes):
        return [f"u8:{len(result)}:{result.hex() or '.'}"]
    if isinstance(result, list):
        return [word for each in result for word in words_of(each)]
    if isinstance(result, tuple):
        output, received = result
        return [word_of(output), "rows=" + ",".join(map(str, received.tolist()))]
    return [word_of(result)]


class Case:
    def __init__(self, words):
        self.operation, *others = words
        options = [word for word in others if "=" in word or ":" not in word]
        self.options = dict(word.partition("=")[::2] for word in options)
        self.given = [word for word in others if word not in options]
        self.tensors = [tensor_of(word) for word in self.given]
        self.begins, self.is_in_place = "begin" in self.options, "in_place" in self.options

    def result(self, returned):
        return self.tensors if self.is_in_place else returned

    def integers(self, key):
        return [int(number) for number in self.options[key].split(",") if number]


# --- operations -----------------------------------------------------------------------------------

sets, begun = {}, {}


def named(case):
    given = {"name": case.options["name"]} if "name" in case.options else {}
    return {**given, **of_set(case)}


def of_set(case):
    return {"process_set": sets[case.options["set"]]} if "set" in case.options else {}


def reduction(case):
    scales = {f"{key}_factor": float(case.options[key]) for key in ("prescale", "postscale")
              if key in case.options}
    return {"op": getattr(hvd, case.options["op"].capitalize()), **scales, **named(case)}


def submit(case, function, *arguments, **options):
    """The result of a function; of a case that begins its handle, which another one waits for."""
    function += "_async" * case.begins + "_" * case.is_in_place
    if not hasattr(hvd, function):
        raise Cannot
    return getattr(hvd, function)(*arguments, **options)


def wait(case):
    name = case.options["name"]
    if name not in begun:
        raise Cannot
    handle, other = begun.pop(name)
    return other.result(hvd.synchronize(handle))


def alltoall(case):
    splits = case.integers("splits") if "splits" in case.options else None
    return submit(case, "alltoall", case.tensors[0], splits, **named(case))


def create_set(case):
    sets[case.options["set"]] = hvd.add_process_set(case.integers("ranks"), duplicate=True)


def remove_set(case):
    hvd.remove_process_set(sets[case.options["set"]])


def rank(case):
    if "set" in case.options:
        return [sets[case.options["set"]].rank(), sets[case.options["set"]].size()]
    return [hvd.rank(), hvd.size()]


def train(case):
    """A linear model: the last column of its samples is what the product of the others and the
    weights should be."""
    if INTERFACE == "numpy":
        raise Cannot
    *weights, samples = case.tensors
    weights = [torch.nn.Parameter(each.clone()) for each in weights]
    names = [(f"weight{i}", each) for i, each in enumerate(weights)]
    root = of_set(case)["process_set"].ranks[0] if "set" in case.options else 0
    if "unequal" not in case.options:
        hvd.broadcast_parameters(names, root, **of_set(case))
    passes = int(case.options.get("passes", 1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(weights, lr=float(case.options["rate"])), named_parameters=names,
        op=getattr(hvd, case.options["op"].capitalize()), backward_passes_per_step=passes,
        **of_set(case))
    for batch in samples.chunk(int(case.options["steps"])):
        optimizer.zero_grad()
        for part in batch.chunk(passes):
            errors = part[:, :-1] @ torch.cat(weights) - part[:, -1]
            (errors @ errors / 2).backward()
        if "discard" in case.options:
            optimizer.discard(case.options["discard"])
            break
        optimizer.step()
    return weights


def one(name, options):
    return lambda case: submit(case, name, case.tensors[0], **options(case))


def group(name, options):
    return lambda case: submit(case, name, case.tensors, **options(case))


OPERATIONS = {
    "allreduce": one("allreduce", reduction),
    "grouped_allreduce": group("grouped_allreduce", reduction),
    "broadcast": lambda case: submit(case, "broadcast", case.tensors[0],
                                     int(case.options["root"]), **named(case)),
    "all_gather": one("allgather", named),
    "grouped_all_gather": group("grouped_allgather", named),
    "all_to_all": alltoall,
    "reduce_scatter": one("reducescatter", reduction),
    "grouped_reduce_scatter": group("grouped_reducescatter", reduction),
    "broadcast_bytes": lambda case: hvd.broadcast_object(
        bytes(case.tensors[0].tolist()), int(case.options["root"]), **named(case)),
    "all_gather_bytes": lambda case: hvd.allgather_object(
        bytes(case.tensors[0].tolist()), **named(case)),
    "barrier": lambda case: submit(case, "barrier", **of_set(case)),
    "join": lambda case: submit(case, "join", **of_set(case)),
    "train": train,
    "rank": rank,
    "create_set": create_set,
    "remove_set": remove_set,
    "init": lambda case: hvd.init(),
    "shutdown": lambda case: hvd.shutdown(),
    "wait": wait,
}


# --- cases ----------------------------------------------------------------------------------------


def words_of_error(error):
    if isinstance(error, ValueError) != (error.code in CODES_OF_CALLS):
        return [f"raised {type(error).__name__}: {error}"]
    facts = error.operation, error.tensor, ",".join(map(str, error.ranks))
    return ["error", "|".join([error.code, *(fact or "." for fact in facts), str(error)])]


def run(case):
    if case.operation not in OPERATIONS:
        raise Cannot
    result = OPERATIONS[case.operation](case)
    if not case.is_in_place and [word_of(tensor) for tensor in case.tensors] != case.given:
        return ["changed what it was given"]
    if not case.begins:
        return ["ok", *words_of(case.result(result))]
    begun[case.options["name"]] = result, case
    return ["ok"]


def outcome_of(words):
    try:
        return run(Case(words))
    except Cannot:
        return ["cannot"]
    except hvd.Error as error:
        return words_of_error(error)
    except Exception as error:
        return [f"raised {type(error).__name__}: {error}"]


def main():
    cases, outcomes = sys.argv[2:]
    with open(cases) as lines, open(outcomes, "w") as file:
        for line in lines:
            number, *words = line.split()
            print(number, *outcome_of(words), file=file, flush=True)


if __name__ == "__main__":
    main()
