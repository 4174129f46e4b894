"""Measure what one setting of the launcher, of Open MPI or of Horovod changes in a training step.

Two ranks train the assessment network under Horovod with all settings of `hvdlab run`. Each other launch
changes one thing: it removes settings, as a plain `mpirun -np 2 python` does, or adds a setting of Horovod or
Open MPI, or sends the gradients by another method (`gradient_exchanges`). The launches take turns. A ratio
compares a launch with the launch that has all settings in the same round. The limit is two ranks that train
without an exchange, in the same round.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console

from hvdlab import launch
from hvdlab.bench import ranks, results, throughput
from hvdlab.system import open_mpi

EPILOG = """\
examples:
  hvdlab bench launch --repeats 5 --json launch.json
  hvdlab bench launch --framework keras --settings all
  hvdlab bench launch --settings "cycle 0.1 ms" "one buffer, polled" "cycle 0.1 ms + one buffer, polled"
"""
RANKS = 2
FULL = "all settings"
LIMIT = "no exchange"
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
BINDING = ("PRTE_MCA_hwloc_default_binding_policy",)
YIELDING = ("OMPI_MCA_mpi_yield_when_idle",)


@dataclass(frozen=True)
class Setting:
    """What a launch changes in the full set of settings.

    Attributes:
        without: environment variables of `launch.environment` that are not set.
        variables: environment variables that are set in addition.
        exchange: how PyTorch's gradients are sent, a name of `gradient_exchanges.EXCHANGES`.
    """

    without: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    exchange: str = "one by one"

    def __add__(self, other: "Setting") -> "Setting":
        """Return a setting that makes both changes."""
        exchange = self.exchange if other.exchange == "one by one" else other.exchange
        return Setting(self.without + other.without, self.variables | other.variables, exchange)


def horovods_threads_on_own_cores() -> str:
    """Return the value of HOROVOD_THREAD_AFFINITY: one core per rank, for its background thread."""
    cores = sorted(os.sched_getaffinity(0))
    return ",".join(str(cores[rank % len(cores)]) for rank in range(RANKS))


LAUNCHER = {
    FULL: Setting(),
    "default threads": Setting(THREADS),
    "default binding": Setting(BINDING),
    "no idle yielding": Setting(YIELDING),
    "plain mpirun": Setting(THREADS + BINDING + YIELDING),
}
HOROVOD = {
    "cycle 0.1 ms": Setting(variables={"HOROVOD_CYCLE_TIME": "0.1"}),  # 1 ms by default
    "cycle 5 ms": Setting(variables={"HOROVOD_CYCLE_TIME": "5"}),
    "no fusion": Setting(variables={"HOROVOD_FUSION_THRESHOLD": "0"}),  # 128 MiB by default
    "fusion 256 kB": Setting(variables={"HOROVOD_FUSION_THRESHOLD": "262144"}),
    "no cache": Setting(variables={"HOROVOD_CACHE_CAPACITY": "0"}),  # 1024 tensors by default
    "thread on own core": Setting(
        variables={"HOROVOD_THREAD_AFFINITY": horovods_threads_on_own_cores()}
    ),
    # Where the system allows it, Open MPI copies long messages directly from one process to the other.
    "no single copy": Setting(variables={"OMPI_MCA_smsc": "^cma"}),
    "eager to 4 MB": Setting(
        variables={
            "OMPI_MCA_btl_sm_eager_limit": "4194304",
            "OMPI_MCA_btl_sm_max_send_size": "4194304",
        }
    ),
}
PYTORCH = {
    name: Setting(exchange=name)
    for name in ("one group", "one by one, polled", "one buffer", "one buffer, polled")
}
SETTINGS = LAUNCHER | HOROVOD | PYTORCH


def setting(name: str) -> Setting:
    """Return a setting of SETTINGS, or the sum of several.

    Raises:
        KeyError: there is no such setting.
    """
    return sum((SETTINGS[part] for part in name.split(" + ")), Setting())


def setting_name(text: str) -> str:
    """Return `text` if it names settings; an argparse type."""
    try:
        setting(text)
    except KeyError:
        known = ", ".join(repr(name) for name in SETTINGS)
        raise argparse.ArgumentTypeError(
            f"expected 'all', or names of {known}, with ' + ' between them; got {text!r}"
        ) from None
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab bench launch`."""
    results.add_training(parser)
    parser.add_argument("--framework", choices=("torch", "keras"), default="torch")
    parser.add_argument(
        "--settings", type=lambda text: text if text == "all" else setting_name(text), nargs="+",
        default=list(LAUNCHER), metavar="SETTING",
        help=f"'all', or of {', '.join(SETTINGS)}; 'A + B' changes both (default: the launcher's)",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab bench launch` and return its exit code."""
    args.device = ranks.chosen_device(args.device, RANKS)
    if "all" in args.settings:
        args.settings = list(SETTINGS if args.framework == "torch" else LAUNCHER | HOROVOD)
    found = launch_settings(ranks.Training.of(args), args.framework, args.settings)
    results.keep(args, found)
    show(found, args.framework, args.batch_size, Console())
    return 0


def launch_settings(
    training: ranks.Training,
    framework: str = "torch",
    settings: Sequence[str] = tuple(LAUNCHER),
) -> dict[str, list[float]]:
    """Measure images/s of both ranks together with each setting, in turns.

    Args:
        framework: "torch" or "keras".

    Returns:
        Setting -> images/s, one number per round. LIMIT and FULL come first.

    Raises:
        ranks.BenchFailed: a launch failed, or Keras would have to send gradients by a method of PyTorch.
    """
    exchanges = [name for name in settings if setting(name).exchange != "one by one"]
    if framework == "keras" and exchanges:
        raise ranks.BenchFailed(
            f"{exchanges[0]!r} is for --framework torch, because Keras sends all gradients as one group"
        )

    def start(label: str) -> list[dict]:
        change = Setting() if label == LIMIT else setting(label)
        variant = f"{'alone' if label == LIMIT else 'horovod'}-{framework}"
        return ranks.start(
            throughput.__name__, RANKS, variables_of(change), variant, training.steps,
            training.batch_size, training.network, change.exchange, device=training.device,
        )  # fmt: skip

    labels = {label: label for label in (LIMIT, FULL, *settings)}
    measured = ranks.rates_in_turns(labels, start, training)
    return {label: each["rates"] for label, each in measured.items()}


def variables_of(change: Setting) -> dict[str, str]:
    """Return all environment variables of a launch.

    The user's own values of the measured variables are left out, because they would change the result.
    """
    full = launch.environment(RANKS)
    without = open_mpi.spelled(dict.fromkeys(change.without, ""))
    measured = {name for each in SETTINGS.values() for name in each.variables}
    return {
        **{k: v for k, v in os.environ.items() if k not in full and k not in measured},
        **{k: v for k, v in full.items() if k not in without},
        **change.variables,
    }


def show(found: dict, framework: str, batch_size: int, console: Console) -> None:
    """Print medians with their range, and ratios to FULL and to LIMIT of the same round.

    Args:
        framework: "torch" or "keras".
        batch_size: images per rank.
    """
    table = results.table(["launch"], ["images/s", "min .. max", "ratio", "min .. max", "of limit"])
    for label, rates in found.items():
        table.add_row(
            label,
            *results.median_and_range(rates, ",.0f"),
            *results.median_and_range(results.ratios(rates, found[FULL]), ".2f"),
            results.median_ratio(rates, found[LIMIT]),
        )
    console.print(
        f"Medians of {len(found[FULL])} rounds, {framework}, {RANKS} ranks, {batch_size} images per rank; "
        f"ratio: to {FULL}; of limit: to {LIMIT}"
    )
    console.print(table)
