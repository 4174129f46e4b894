"""Mistakes that only scripts of torch.distributed make: the wrapper DistributedDataParallel and its use."""

from collections.abc import Iterator

from hvdlab.check.replica_weights import divergence
from hvdlab.check.run_events import Run
from hvdlab.check.source_facts import Facts
from hvdlab.mistakes import Finding, finding

# Errors of PyTorch, torch/csrc/distributed/c10d/reducer.cpp and torch/utils/data/dataloader.py
UNUSED = "Expected to have finished reduction in the prior iteration"
BOTH_ORDERS = "sampler option is mutually exclusive with shuffle"


def wrapping(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about optimizers that step without an average of the gradients by DDP."""
    if run.api() != "ddp" or run.split():
        return
    created = {event["optimizer"]: event for event in run.rank0("optimizer")}
    for number in run.plain_optimizers():
        step = divergence(run, number)
        own = [event for event in run.rank0("step") if event["optimizer"] == number]
        name = created.get(number, {}).get("name", "the optimizer")
        line = created[number]["line"] if number in created else run.line("step")
        apart = f" After step {step} the weights of the ranks differ." if step else ""
        if all(event.get("foreign") for event in own):
            yield finding(
                "optimizer-of-other-weights",
                line,
                f"{name} holds none of the weights of the model in the wrapper, so its steps do not change "
                "this model.",
            )
        elif step is None and run.exchanges():
            continue  # equal without a wrapper: the script exchanges by itself
        elif run.rank0("wrap") and not any(event.get("foreign") for event in own):
            forward = next((event["forward"] for event in own if event.get("forward")), None)
            yield finding(
                "wrapper-not-called",
                forward or run.line("step"),
                f"{name} steps with gradients that no forward pass of the wrapper has prepared, because "
                f"this line calls the model itself.{apart}",
            )
        else:
            seen = f"On each rank {name} steps by the gradient of that rank only.{apart}"
            yield finding("model-not-wrapped", line, seen)


def loading(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about weights that only some ranks load after the wrapper has sent them."""
    loads = {rank: [e for e in run.of(rank, "load") if e["wrapped"]] for rank in run.ranks}
    loading_ranks = [rank for rank, events in loads.items() if events]
    if loading_ranks and len(loading_ranks) < len(run.ranks) and divergence(run):
        ranks = " and ".join(map(str, loading_ranks))
        yield finding(
            "loaded-on-some-ranks",
            loads[loading_ranks[0]][0]["line"],
            f"Only rank {ranks} loads weights here, after DistributedDataParallel has sent those of rank 0, "
            f"and after step {divergence(run)} the weights of the ranks differ.",
        )


def errors(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about errors of PyTorch that have one cause."""
    for rank, error, line in run.errors():
        if UNUSED in error:
            unused = next((e["unused"] for e in run.rank0("step") if e.get("unused")), None)
            which = f", for example {unused}" if unused else ""
            yield finding(
                "unused-parameters",
                run.line("wrap"),
                f"In step 2 rank {rank} ended in line {line} with the error that a parameter got no "
                f"gradient in step 1{which}.",
            )
            return
        if BOTH_ORDERS in error:
            yield finding(
                "sampler-and-shuffle", line, f'Rank {rank} ended with the error "{BOTH_ORDERS}".'
            )
            return


RULES = wrapping, loading, errors
