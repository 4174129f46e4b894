"""Checks of lab 10, first half: a block split among ranks, its collectives, and what goes wrong there."""

import torch

from hvdlab import exercises
from hvdlab.calls import call
from hvdlab.exercises import NotYet, right
from hvdlab.launch import LaunchError, TimeUp
from hvdlab.torch.networks import Block

SECONDS = 60  # after which ranks that wait for each other are ended
CLOSE = 1e-9  # the checks compute in double precision

# What a split block can do wrong, and how one sees it.
MISTAKES = {
    "bias on every rank": "the output is off by the bias of down, once for each further rank",
    "partial sums": "every rank goes on with its own part of the sum: their outputs differ",
    "no f": "outputs are right, but each rank has only its share of the gradient of what comes before",
    "f before the norm": "outputs are right, but the norm's own gradients are the shares",
    "all-reduce in g's backward pass": "outputs are right and all ranks agree, but gradients are N times "
    "too large",
}


# --- exercise 1: who holds what --------------------------------------------------------------------


def check_part_of(part_of) -> None:
    """Demand up by its outputs (with its bias), down by its inputs, and all else whole."""
    weights = {name: value.detach() for name, value in Block(6).named_parameters()}
    for ranks in (2, 3):
        parts = [exercises.call(part_of, dict(weights), rank, ranks) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            if not isinstance(part, dict) or part.keys() != weights.keys():
                got = sorted(part) if isinstance(part, dict) else repr(part)
                raise NotYet(
                    f"return a dict with the six names of `weights`: {', '.join(weights)}. Rank {rank} of "
                    f"{ranks} has {got}."
                )
        for name in weights:
            _check_parts(name, weights[name], [part[name] for part in parts])
    right("up by rows of its matrix, down by columns, and four things decided: 2 and 3 ranks.")


def _check_parts(name, value, parts):
    ranks, dim = len(parts), {"up.weight": 0, "up.bias": 0, "down.weight": 1}.get(name)
    shapes = [tuple(part.shape) for part in parts]
    case = f"{name}, {tuple(value.shape)} as a whole, becomes {shapes[0]} on rank 0 of {ranks}"
    if dim is None:
        if shapes[0] != tuple(value.shape):
            raise NotYet(
                f"{case}: every rank needs it whole, because it works on all {value.shape[0]} features."
            )
        if not all(torch.equal(part, value) for part in parts):
            raise NotYet(
                f"{name} must be the same on every rank, and as it was: g sums before the bias is added."
            )
        return
    wanted = list(value.shape)
    wanted[dim] //= ranks
    if shapes[0] != tuple(wanted):
        why = (
            "the outputs of up are its rows, and what is split. Then gelu needs no other rank"
            if name.startswith("up")
            else "its inputs are its columns, and rank k has the inputs that its part of up made"
        )
        raise NotYet(f"{case}, and should be {tuple(wanted)}: {why}.")
    if not torch.equal(torch.cat(parts, dim), value):
        raise NotYet(
            f"{case}, as it should, but side by side the parts of ranks 0 to {ranks - 1} are not the "
            "whole: rank k gets the k-th of `ranks` parts."
        )


# --- exercise 2: f and g ---------------------------------------------------------------------------


def check_f_and_g(f_and_g) -> None:
    """Demand f: identity, gradients summed; g: sum, gradients as they are; nothing changed in place."""
    rows = _on_ranks(try_pair, f_and_g.__name__, uses=(f_and_g,), ranks=2)
    for rank, row in enumerate(rows):
        mine, both = 10.0**rank, 11.0
        for key, wanted, cases in (
            ("f", mine, {
                both: "f's forward pass all-reduces. It must hand x on as it is: every rank has it already",
            }),
            ("f backward", both, {
                mine: "f's backward pass hands the gradient on as it is. Each rank has the gradient of its "
                "part of the work only: all-reduce it",
            }),
            ("g", both, {mine: "g's forward pass does not add: all-reduce there"}),
            ("x after g", mine, {
                both: "dist.all_reduce writes into the tensor that it gets: g changed its input. "
                "Give it a copy, x.clone()",
            }),
            ("g backward", mine, {
                both: "g's backward pass all-reduces. A sum hands its gradient to each summand as it is, and "
                "all ranks have that gradient already: so gradients become N times too large",
            }),
            ("f + x backward", both + mine, {
                2 * both: "with y = f(x) + x both summands get the same gradient tensor, and the all-reduce "
                "in f's backward pass wrote into it. Give it a copy: gradient.clone()",
            }),
        ):  # fmt: skip
            if row[key] != wanted:
                got = row[key]
                raise NotYet(
                    f"rank 0 has 1 and rank 1 has 10; on rank {rank}, `{key}` is {got} and should be "
                    f"{wanted:g}. {cases.get(got, 'Only one all-reduce in each of the two, please')}."
                )
    right("f sums on the way back, g on the way forth, and neither changes what it was given.")


def try_pair(comm, name):
    """On a rank: what f and g make of 10^rank, and of a gradient of 10^rank."""
    import torch
    import torch.distributed as dist

    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo")
    f, g = globals()[name]()
    row, mine = {}, 10.0**comm.rank

    def value(tensor):
        """The number that all entries have; the list of them if they differ; None for no gradient."""
        numbers = [] if tensor is None else sorted(set(tensor.flatten().tolist()))
        return numbers[0] if len(numbers) == 1 else numbers or None

    for key, function in (("f", f), ("g", g), ("f + x", lambda x: f(x) + x)):
        x = torch.full((2, 3), mine, requires_grad=True)
        inner = x * 1.0
        y = function(inner)
        row[key], row[f"x after {key}"] = value(y), value(inner)
        (
            y.sum() * mine
        ).backward()  # the gradient of a sum is not contiguous: all its strides are 0
        row[f"{key} backward"] = value(x.grad)
    dist.destroy_process_group()
    return row


# --- exercises 3 and 4: a split block --------------------------------------------------------------


def check_block(block, part_of, f_and_g) -> None:
    """Demand the serial block's output and gradients on 2 ranks, with one f and one g."""
    rows = _try_blocks([block], part_of, f_and_g)[0]
    if said := _unusable(rows):
        raise NotYet(said)
    mistake, says = _mistake(rows)
    if mistake:
        raise NotYet(f"{mistake}: {says}.")
    if [rows[0]["f"], rows[0]["g"]] != [1, 1]:
        raise NotYet(
            f"outputs and gradients are right, but f is called {rows[0]['f']} times and g {rows[0]['g']} "
            "times: once each is enough, one all-reduce forth and one back."
        )
    right(
        "output and all gradients as in the serial block, with one all-reduce forth and one back."
    )


def check_diagnosis(diagnosis, cases, part_of, f_and_g) -> None:
    """Run each case on 2 ranks, find its mistake, and compare with the learner's name for it."""
    names = [case.__name__ for case in cases]
    if not isinstance(diagnosis, dict) or set(diagnosis) != set(names):
        raise NotYet(f"set diagnosis to a dict with the keys {', '.join(names)}: {diagnosis!r}")
    for name in names:
        if diagnosis[name] not in MISTAKES:
            raise NotYet(
                f"{name}: {diagnosis[name]!r} is none of the mistakes: {', '.join(MISTAKES)}."
            )
    for name, rows in zip(names, _try_blocks(cases, part_of, f_and_g), strict=True):
        mistake, says = _mistake(rows)
        if diagnosis[name] != mistake:
            raise NotYet(
                f"{name}: with {diagnosis[name]!r}, {MISTAKES[diagnosis[name]]}. Run beside the serial "
                f"block on 2 ranks, this one shows something else: {says}."
            )
    right("each case was run on 2 ranks, and shows the mistake that you name.")


def _try_blocks(blocks, part_of, f_and_g):
    names = [block.__name__ for block in blocks]
    helpers = part_of, f_and_g
    rows = _on_ranks(
        try_blocks,
        names,
        *(helper.__name__ for helper in helpers),
        uses=(*blocks, *helpers),
        ranks=2,
    )
    return list(zip(*rows, strict=True))  # for each block, a row of each rank


def try_blocks(comm, blocks, part_of, f_and_g):
    """On a rank: each split block beside the serial one, and in what they differ.

    `output` and the gradients are relative: the largest difference over the largest value. `share` is
    the same after the gradients of all ranks were added up, `ratio` the typical one of ours to serial.
    """
    import torch
    import torch.distributed as dist

    from hvdlab.torch.networks import Block
    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo")
    part_of, (f, g) = globals()[part_of], globals()[f_and_g]()
    torch.manual_seed(0)
    serial = Block(6).double()
    for parameter in serial.parameters():
        torch.nn.init.normal_(parameter)  # a norm that has trained is no longer 1 and 0
    x, direction = torch.randn(2, 5, 6, dtype=torch.float64)
    x.requires_grad_()
    whole = dict(serial.named_parameters())
    expected = serial(x)
    gradients = dict(zip(["x", *whole], torch.autograd.grad(
        (expected * direction).sum(), [x, *whole.values()]), strict=True))  # fmt: skip
    wanted = {"x": gradients.pop("x"), **part_of(gradients, comm.rank, comm.size)}

    def off(ours, theirs):
        return ((ours - theirs).abs().max() / theirs.abs().max()).item()

    rows = []
    for name in blocks:
        calls = {"f": 0, "g": 0}

        def counting(key, function, calls=calls):
            def counted(x):
                calls[key] += 1
                return function(x)

            return counted

        mine = x.detach().clone().requires_grad_()
        part = {
            key: value.detach().clone().requires_grad_()
            for key, value in part_of(whole, comm.rank, comm.size).items()
        }
        y = globals()[name](mine, part, counting("f", f), counting("g", g))
        if not torch.is_tensor(y) or y.shape != x.shape:
            rows.append({"kind": type(y).__name__, "shape": list(getattr(y, "shape", []))})
            continue
        row = {"kind": "Tensor", "shape": list(y.shape), **calls, "output": off(y, expected)}
        extra = (comm.size - 1) * whole["down.bias"]
        row["extra bias"] = off(y - expected + 1, 1 + extra.expand_as(y))
        row["no bias"] = off(y + whole["down.bias"], expected)
        row["no residual"] = off(y + x, expected)
        sums = torch.stack([y.detach(), y.detach() ** 2])
        dist.all_reduce(sums)
        row["ranks differ"] = (comm.size * sums[1] - sums[0] ** 2).abs().max().item() > 1e-9
        (y * direction).sum().backward()
        row["gradients"] = {}
        for key, theirs in wanted.items():
            leaf = mine if key == "x" else part[key]
            ours = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            total = ours.clone()
            dist.all_reduce(total)
            row["gradients"][key] = {
                "off": off(ours, theirs),
                "share": off(total, theirs),
                "ratio": (ours / theirs).median().item(),
            }
        rows.append(row)
    dist.destroy_process_group()
    return rows


def _unusable(rows):
    for rank, row in enumerate(rows):
        if row["kind"] != "Tensor":
            return f"on rank {rank} it returns {row['kind']}: return the output, a tensor like x."
        if row["shape"] != [5, 6]:
            return f"on rank {rank} the output has the shape {row['shape']}, and x has [5, 6]."


def _mistake(rows):
    """(name of the mistake, what was seen); (None, ...) if there is none."""
    row, ranks = rows[0], len(rows)
    if row["output"] > CLOSE:
        if row["extra bias"] < CLOSE:
            return (
                "bias on every rank",
                "the output is off by exactly the bias of down: each rank adds it before g, so it is "
                f"summed {ranks} times",
            )
        if row["ranks differ"]:
            return "partial sums", "the two ranks have different outputs: use what g returns"
        if row["no bias"] < CLOSE:
            return "no bias", "the output is that of the serial block without the bias of down"
        if row["no residual"] < CLOSE:
            return "no residual", "the output is that of the serial block without `x +`"
        return "another output", f"the output is off by {row['output']:.0%} of its largest value"
    gradients = row["gradients"]
    wrong = [name for name, found in gradients.items() if found["off"] > CLOSE]
    if not wrong:
        return None, "output and gradients are those of the serial block"
    if all(abs(gradients[name]["ratio"] - ranks) < 1e-6 for name in ("up.weight", "down.weight")):
        return (
            "all-reduce in g's backward pass",
            f"the output is right and the ranks agree, but the gradient of up is {ranks} times the "
            "serial one",
        )
    norm = [name for name in wrong if name.startswith("norm")]
    if norm and all(gradients[name]["share"] < CLOSE for name in norm):
        if "x" in wrong:
            return (
                "no f",
                f"the output is right, but the gradients of x and of {norm[0]} are each rank's share: "
                "summed over the ranks, that of the norm is the serial one",
            )
        return (
            "f before the norm",
            f"the output and x's gradient are right, but that of {norm[0]} is each rank's share: f "
            "belongs right before what is split, after the norm",
        )
    return "another gradient", f"the output is right, but not the gradient of {', '.join(wrong)}"


# --- exercise 5: the norm of a split gradient ------------------------------------------------------


def check_clip(clip) -> None:
    """Demand the norm over split and replicated gradients, each counted once, on 3 ranks."""
    rows = _on_ranks(try_clip, clip.__name__, uses=(clip,), ranks=3)
    for rank, row in enumerate(rows):
        for most, scale in ((6.5, 0.5), (26, 1.0)):
            found = row[f"{most:g}"]
            norm, case = found["norm"], f"rank {rank} of 3, at most {most:g}"
            # by hand: the parts are 3, 4, 0 and the replicated one is 12: 3^2 + 4^2 + 12^2 = 13^2
            local = (144 + (9, 16, 0)[rank]) ** 0.5
            if norm is None:
                raise NotYet(f"{case}: it returns no number: return the norm before clipping.")
            for wrong, says in (
                (local, "the norm over what this rank holds: the other parts are missing"),
                ((25 + 3 * 144) ** 0.5, "the replicated gradient is counted on each rank: 3 times"),
                (5.0, "the replicated gradient is missing: it counts, once"),
                (169.0, "the square of the norm: take the root"),
                (3 + 4 + 12, "a sum of norms: squares add up, norms do not"),
            ):
                if abs(norm - wrong) < 1e-4:
                    raise NotYet(
                        f"{case}: the norm is {norm:.4g}, and of the whole gradient it is 13. "
                        f"{says.capitalize()}."
                    )
            if abs(norm - 13) > 1e-4:
                raise NotYet(
                    f"{case}: the norm is {norm:.4g}; by hand, the root of 9 + 16 + 144 is 13."
                )
            for kind in ("split", "replicated"):
                if abs(found[kind] - scale) > 1e-4:
                    raise NotYet(
                        f"{case}: the norm 13 is right, but the {kind} gradient is multiplied by "
                        f"{found[kind]:.3g}, and should be by {scale:g}."
                    )
    right(
        "13 on every rank for parts of 3, 4 and 0 and a shared 12, halved only where it is too long."
    )


def try_clip(comm, name):
    """On a rank: the norm that it finds, and what it multiplies gradients by, for two limits."""
    import torch
    import torch.distributed as dist

    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo")
    row = {}
    for most in (6.5, 26):
        split, shared = (torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(2))
        split.grad = torch.tensor([[0.0, (3.0, 4.0, 0.0)[comm.rank]], [0.0, 0.0]])
        shared.grad = torch.tensor([[12.0, 0.0], [0.0, 0.0]])
        before = split.grad.clone()
        norm = globals()[name]([split], [shared], most)
        row[f"{most:g}"] = {
            "norm": None if norm is None else float(norm),
            "replicated": (shared.grad[0, 0] / 12).item(),
            "split": (split.grad.sum() / before.sum()).item()
            if before.any()
            else min(1, most / 13),
        }
    dist.destroy_process_group()
    return row


# --- exercise 6: bytes on a grid -------------------------------------------------------------------


def check_grid_bytes(grid_bytes) -> None:
    """Demand 2 (forth and back) x 4 bytes x ring over columns of 4 hidden / rows and the other way round."""
    case = "grid_bytes(batch=10, hidden=8, rows=4, columns=2)"  # 2 (1 x 320 + 1.5 x 160), by hand
    got = exercises.call(grid_bytes, 10, 8, 4, 2)
    if got is None:
        raise NotYet(f"{case} returned None: is `return` missing?")
    forth = 1.0 * 4 * 10 * 32 / 4 + 1.5 * 4 * 10 * 8 / 2
    for wrong, says in (
        (forth, "half of it. Back, the gradients of the same two arrays travel, and an all-reduce has two "
         "phases, 2 (n-1)/n"),
        (2 * forth / 4, "that counts numbers; one has 4 bytes"),
        (2 * (1.5 * 320 + 1.0 * 160),
         "the two groups are confused: up's outputs are summed over the columns, down's over the rows"),
        (2 * (1.5 * 4 * 10 * 32 / 2 + 1.0 * 4 * 10 * 8 / 4),
         "the two groups are confused: up's outputs are split over the rows, and summed over the columns"),
        (2 * (1.0 * 1280 + 1.5 * 320), "these are whole arrays: a rank has 1/rows of up's outputs, and "
         "1/columns of down's"),
        (2 * (1.0 * 80 + 1.5 * 160), "up has 4 x hidden outputs"),
        (forth / 2, "a quarter of it. Back, the gradients of the same two arrays travel, and an all-reduce "
         "has two phases, 2 (n-1)/n"),
    ):  # fmt: skip
        if abs(got - wrong) < 1e-6:
            raise NotYet(f"{case} is {got:g}: {says}.")
    if abs(got - 2 * forth) > 1e-6:
        raise NotYet(
            f"{case} is {got:g}; by hand: up's outputs, 4 x 10 x 32/4 = 320 bytes, over 2 columns, and "
            "down's, 4 x 10 x 8/2 = 160 bytes, over 4 rows: 320 + 240, and the same back: 1120."
        )
    alone = exercises.call(grid_bytes, 10, 8, 1, 1)
    if alone != 0:
        raise NotYet(f"one rank has nobody to send to: 0 bytes, not {alone!r}.")
    right("1120 bytes on 4 x 2 ranks by hand, and nothing on one.")


# --- ranks -----------------------------------------------------------------------------------------


def _on_ranks(function, *arguments, uses, ranks):
    """What each rank returns, or a sentence on why it did not."""
    try:
        return call(function, *arguments, ranks=ranks, timeout=SECONDS, uses=uses)
    except TimeUp as error:
        where = str(error).partition(" s: ")[2]
        raise NotYet(
            f"deadlock: nothing moved for {SECONDS} s. {where[:1].upper()}{where[1:]} All ranks must call "
            "the same collectives in the same order."
        ) from None
    except LaunchError as error:
        raise NotYet(str(error)) from None
