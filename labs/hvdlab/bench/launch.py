"""What a setting of the launcher, of Open MPI or of Horovod does for a training step on two ranks.

The assessment network trains under Horovod with the full set of settings of `hvdlab run`. Each other row
changes one thing: it takes settings away, as a plain `mpirun -np 2 python` does, or adds a setting of Horovod
or Open MPI, or sends the gradients in another way (`gradient_exchanges`). The launches take turns, and a
ratio is to the full set of its round. The limit is two ranks that exchange nothing, in the same round.
"""

import argparse
import os
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from hvdlab import launch
from hvdlab.assessment_networks import ASSESSMENT_NET
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
    """What differs from the full set of settings.

    Attributes:
        without: variables of `launch.environment` that are not set.
        variables: variables that are set as well.
        exchange: how PyTorch's gradients are sent, a name of `gradient_exchanges.EXCHANGES`.
    """

    without: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    exchange: str = "one by one"

    def __add__(self, other: "Setting") -> "Setting":
        exchange = self.exchange if other.exchange == "one by one" else other.exchange
        return Setting(self.without + other.without, self.variables | other.variables, exchange)


def horovods_threads_on_own_cores() -> str:
    """The value of HOROVOD_THREAD_AFFINITY: the core of the background thread of each rank of a machine."""
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
    # Open MPI copies long messages at once from one process to the other, where the system allows it.
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
    """The setting of a name, or of several with " + " between them. Raises KeyError."""
    together = Setting()
    for part in name.split(" + "):
        together += SETTINGS[part]
    return together


def a_setting(text: str) -> str:
    """The type of an argument that names settings."""
    try:
        setting(text)
    except KeyError:
        known = ", ".join(repr(name) for name in SETTINGS)
        raise argparse.ArgumentTypeError(
            f"expected 'all', or names of {known}, with ' + ' between them; got {text!r}"
        ) from None
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    results.add_rounds(parser, 5)
    results.add_steps(parser)
    results.add_network(parser)
    results.add_device(parser)
    parser.add_argument("--framework", choices=("torch", "keras"), default="torch")
    parser.add_argument(
        "--settings", type=lambda text: text if text == "all" else a_setting(text), nargs="+",
        default=list(LAUNCHER), metavar="SETTING",
        help=f"'all', or of {', '.join(SETTINGS)}; A + B for both (default: those of the launcher)",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    args.device = ranks.chosen_device(args.device, RANKS)
    if "all" in args.settings:
        args.settings = list(SETTINGS if args.framework == "torch" else LAUNCHER | HOROVOD)
    found = launch_settings(
        args.framework, args.repeats, args.steps, args.batch_size, results.tell, args.settings,
        args.network, args.device,
    )  # fmt: skip
    results.keep(args, found)
    show(found, args.framework, args.batch_size, Console())
    return 0


def launch_settings(
    framework: str = "torch",
    repeats: int = 5,
    steps: int = 60,
    batch_size: int = 64,
    tell=print,
    settings=tuple(LAUNCHER),
    network: str = ASSESSMENT_NET,
    device: str = "cpu",
) -> dict:
    """Label -> images/s of both ranks together, a figure a round. The limit and the full set come first.

    Raises:
        ranks.BenchFailed: a launch failed, or Keras is to send gradients in a way of PyTorch's.
    """
    exchanges = [name for name in settings if setting(name).exchange != "one by one"]
    if framework == "keras" and exchanges:
        raise ranks.BenchFailed(f"{exchanges[0]!r} is for --framework torch: Keras sends one group")
    labels = dict.fromkeys([LIMIT, FULL, *settings])
    found: dict = {label: [] for label in labels}
    for repeat in range(repeats):
        for label in labels:
            change = Setting() if label == LIMIT else setting(label)
            variant = f"alone-{framework}" if label == LIMIT else f"horovod-{framework}"
            told = ranks.start(
                throughput.__name__, RANKS, variables_of(change), variant, steps, batch_size,
                network, change.exchange, device=device,
            )  # fmt: skip
            found[label].append(sum(rank["images_per_second"] for rank in told))
            tell(f"round {repeat + 1} of {repeats}: {label}: {found[label][-1]:,.0f} images/s")
    return found


def variables_of(change: Setting) -> dict[str, str]:
    """The environment of a launch. What the user has set of these variables is not measured here."""
    full = launch.environment(RANKS)
    without = open_mpi.spelled(dict.fromkeys(change.without, ""))
    measured = {name for each in SETTINGS.values() for name in each.variables}
    return {
        **{k: v for k, v in os.environ.items() if k not in full and k not in measured},
        **{k: v for k, v in full.items() if k not in without},
        **change.variables,
    }


def show(found: dict, framework: str, batch_size: int, console: Console) -> None:
    """Medians with their range, and the ratios to the full set and to the limit of the same round."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    for title in ("launch", "images/s", "min .. max", "ratio", "min .. max", "of limit"):
        table.add_column(title, justify="left" if title == "launch" else "right")
    for label, rates in found.items():
        ratios, of_limit = (
            [rate / peer for rate, peer in zip(rates, found[name], strict=True)]
            for name in (FULL, LIMIT)
        )
        table.add_row(
            label,
            *results.median_and_range(rates, ",.0f"),
            *results.median_and_range(ratios, ".2f"),
            results.median_and_range(of_limit, ".2f")[0],
        )
    console.print(
        f"Medians of {len(found[FULL])} rounds, {framework}, {RANKS} ranks, {batch_size} images a rank; "
        f"ratio: to {FULL}; of limit: to {LIMIT}"
    )
    console.print(table)
