"""Mistakes that only scripts of torch.distributed make: the wrapper DistributedDataParallel and its use."""

from collections.abc import Iterator

from hvdlab.check.replica_weights import divergence
from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.mistakes import Finding, finding

# Errors of PyTorch, torch/csrc/distributed/c10d/reducer.cpp and torch/utils/data/dataloader.py
UNUSED = "Expected to have finished reduction in the prior iteration"
BOTH_ORDERS = "sampler option is mutually exclusive with shuffle"


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


RULES = loading, errors
