"""Turn the results of one submission or of a class into words and numbers for a page.

Any field of a result may be missing, because it may come from another version or from a run that never began.
"""

from collections import Counter
from urllib.parse import quote

from hvdgrade.output.text import decimal, in_bytes, is_finite, is_number
from hvdgrade.result_document import CheckPart, EpochPart, GraderPart, ResourcesPart, ResultDocument

STATES = {  # state of a check: shape, word
    "pass": ("✓", "pass"),
    "partial": ("◐", "partial"),
    "fail": ("✗", "fail"),
    "skipped": ("–", "skipped"),
    "error": ("!", "grader fault"),
}
OUTCOMES = {  # of a submission: style, shape, word, title
    "pass": ("pass", "✓", "pass", "Pass"),
    "fail": ("fail", "✗", "fail", "Not passed yet"),
    "not_gradable": ("partial", "○", "not gradable", "Not gradable: no attempt lost"),
    "infrastructure_error": ("error", "!", "grader fault", "A fault of the grader, not yours"),
}
TIERS = {
    "bubblewrap+cgroup": "it saw neither network nor other files, and the kernel limited its memory "
    "and processes.",
    "bubblewrap": "it saw neither network nor other files; its memory and processes were limited "
    "process by process.",
    "landlock": "it could neither read nor write other files; the network was not closed to it.",
    "user": "it ran as a user of its own, which could read what every user of this machine can; the "
    "network was not closed to it.",
    "rlimits": "limits on its use of the machine only. Files and network were open to it: for people "
    "you trust.",
}
ENDINGS = {
    "ended": "by itself",
    "crashed": "with an error",
    "killed": "by a signal",
    "timeout": "by the grader, when the time was over",
    "hang": "by the grader: every rank waited for another",
    "output_flood": "by the grader: it printed too much",
    "out_of_memory": "it used more memory than it may",
    "too_many_processes": "it started more processes than it may",
    "disk_full": "it wrote more to disk than it may",
    "took_more_cores": "by the grader: it gave itself cores that it was not given",
}

STAGES = {
    "preparing": "to prepare",
    "calibrating": "to measure this machine",
    "running": "for the run",
    "comparing": "to compare the ranks",
    "probing": "to probe how they work together",
    "evaluating": "to recompute accuracies",
    "checking": "to look for likely mistakes",
}


def part(document: dict, name: str) -> dict:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def items(document: dict, name: str) -> list[dict]:
    found = document.get(name)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def id_of(document: ResultDocument) -> str:
    return str(part(document, "submission").get("id") or "submission")


def file_of(document: ResultDocument) -> str:
    """The name of a submission's files: a batch gives it one that every file system bears."""
    return str(part(document, "batch").get("name") or id_of(document))


def link(folder: str, id: str) -> str:
    return f"{quote(folder)}/{quote(id, safe='', errors='replace')}.html"


def outcome(document: ResultDocument) -> dict:
    """Style, shape and words for the result of one submission."""
    status = document.get("status")
    known = document.get("verdict") if status in (None, "graded") else status
    css, sign, word, title = OUTCOMES.get(known, ("error", "!", "grader fault", "No verdict"))
    return {"css": css, "sign": sign, "word": word, "title": title}


def state(name: object) -> dict:
    sign, word = STATES.get(name, ("?", str(name or "unknown")))
    return {"css": name if name in STATES else "skipped", "sign": sign, "word": word}


def why(document: ResultDocument) -> str:
    """Return the reason for the verdict in a sentence."""
    if document.get("status") not in (None, "graded"):
        return document.get("reason") or "No reason was given."
    checks = items(document, "checks")
    said = {check.get("id"): check.get("rationale") or "" for check in checks}
    bad = [check for check in checks if check.get("state") in ("fail", "partial", "error")]
    if not bad:
        return sentence(said.get("targets") or document.get("reason") or "Every check passed.")
    worst = max(bad, key=points_lost)
    first = worst.get("rationale") or worst.get("title") or "a check failed"
    states = {check.get("id"): check.get("state") for check in checks}
    if states.get("targets") == "pass":
        first = f"the accuracy was reached in time, but {first}"
    rest = len(bad) - 1
    more = f" {rest} more check{'s' * (rest > 1)} did not pass." if rest else ""
    return sentence(first) + more


def points_lost(check: CheckPart) -> float:
    most, points = check.get("max_points"), check.get("points")
    return (most if is_number(most) else 0) - (points if is_number(points) else 0)


def with_sent(timeline: list[EpochPart]) -> list[dict]:
    """The epochs with the bytes that went between the ranks in each; the counter runs since launch."""
    before, epochs = 0, []
    for entry in timeline:
        now = entry.get("bytes_on_wire")
        known = is_number(now) and is_number(before)
        epochs.append(entry | {"sent": now - before if known else None})
        before = now
    return epochs


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + "." * (not text.endswith((".", "!", "?")))


def sandbox(grader: GraderPart) -> dict:
    facts = part(grader, "sandbox")
    tier = facts.get("tier") or grader.get("sandbox_tier")
    missing = facts.get("missing")
    return {
        "tier": tier,
        "meaning": TIERS.get(tier, ""),
        "missing": missing if isinstance(missing, list) else [],
    }


def run(resources: ResourcesPart, others: str = "") -> list[tuple[str, str]]:
    """Return (name, value) of what the run used; quantities that were not measured are left out.

    `others` is the result of `budget.other_work`.
    """
    cause, code = resources.get("stop_cause"), resources.get("exit")
    ending = ENDINGS.get(cause, cause)
    if ending and is_number(code):
        ending += f" (exit code {code})"
    seconds = [
        ("wall", "Lasted"),
        ("cpu", "Processor time, all ranks"),
        ("grading_wall", "Grading, in all"),
    ]
    found = [("Ended", ending)] if ending else []
    for key, name in seconds:
        if is_number(resources.get(key)):
            found.append((name, f"{decimal(resources[key], 1)} s"))
    if others:
        found.append(("Taken by other programs", others))
    devices = resources.get("devices")
    if isinstance(devices, list) and devices:
        found.append(("Devices, as the kernel saw them", in_words(list(map(str, devices)))))
    if stages := of_stages(part(resources, "stages")):
        found.append(("Of these", stages))
    for key, name in (
        ("max_rss", "Most memory of a process"),
        ("bytes_on_wire", "Sent between ranks"),
    ):
        if is_number(resources.get(key)):
            found.append((name, in_bytes(resources[key])))
    if is_number(resources.get("survivors"), 1):
        found.append(
            ("Processes left behind, ended by the grader", decimal(resources["survivors"]))
        )
    return found


def of_stages(stages: dict[str, float]) -> str:
    """The seconds of each stage of the grading, in words; those that took no second are left out."""
    took = {stage: stages[stage] for stage in STAGES if is_number(stages.get(stage), 1)}
    return ", ".join(f"{decimal(seconds, 1)} s {STAGES[stage]}" for stage, seconds in took.items())


# --- a class in numbers -----------------------------------------------------------------------------


def part_of_budget(document: ResultDocument) -> float | None:
    seconds, budget = document.get("seconds_to_target"), part(document, "budget").get("seconds")
    return seconds / budget if is_finite(seconds) and is_finite(budget) and budget > 0 else None


def states_by_check(documents: list[ResultDocument]) -> list[dict]:
    found: dict[str, dict] = {}
    for document in documents:
        for check in items(document, "checks"):
            id = str(check.get("id"))
            row = found.setdefault(id, {"title": check.get("title") or id, "counts": Counter()})
            row["counts"][check.get("state")] += 1
    for row in found.values():
        counts = row["counts"]
        applies = counts["pass"] + counts["partial"] + counts["fail"]
        row["lost"] = round(100 * (counts["partial"] + counts["fail"]) / applies) if applies else 0
    return list(found.values())


def subtitle(documents: list[ResultDocument]) -> str:
    graders = [part(document, "grader") for document in documents]
    profiles = sorted({str(g["profile"]) for g in graders if g.get("profile")})
    ranks = sorted({str(g["ranks"]) for g in graders if g.get("ranks")})
    said = [f"profile {', '.join(profiles)}"] * bool(profiles)
    return ", ".join(
        said + [f"{', '.join(ranks)} {'rank' if ranks == ['1'] else 'ranks'}"] * bool(ranks)
    )


def graders_of(documents: list[ResultDocument]) -> list[dict]:
    """Return the grader's data of the submissions that were graded; the others have no such data."""
    return [part(d, "grader") for d in documents if d.get("status") == "graded"]


def graded_with(documents: list[ResultDocument]) -> list[tuple[str, list[tuple[str, int]]]]:
    graders = graders_of(documents)
    columns = {
        "Sandbox": [sandbox(grader)["tier"] for grader in graders],
        "Hardware": [grader.get("hardware") for grader in graders],
        "Data": [grader.get("data") for grader in graders],
        "Version": [grader.get("version") for grader in graders],
        "Rules": [str(grader.get("rules_sha256") or "")[:12] for grader in graders],
    }
    return [
        (name, Counter(str(value) for value in values if value).most_common())
        for name, values in columns.items()
        if any(values)
    ]


def mixed(documents: list[ResultDocument]) -> list[str]:
    """A line if scores come from different rules, profiles or numbers of ranks: they do not compare."""
    ways = Counter(
        (one.get("profile"), one.get("ranks"), one.get("rules_sha256"))
        for one in graders_of(documents)
    )
    if len(ways) < 2:
        return []
    listed = ", ".join(
        f"{count} with profile {profile}, -np {ranks}, rules {str(rules)[:12]}"
        for (profile, ranks, rules), count in ways.most_common()
    )
    return [f"Not all were graded in the same way: {listed}."]


def warnings_of(documents: list[ResultDocument]) -> list[str]:
    graders, found = graders_of(documents), []
    if any("synthetic" in str(grader.get("data")).lower() for grader in graders):
        found.append(
            "Some were graded on synthetic data, not on CIFAR-10: those are practice runs."
        )
    found += mixed(documents)
    if len({str(grader.get("hardware")) for grader in graders}) > 1:
        found.append("They were graded on different machines: compare seconds with budgets only.")
    open_to = sum(not part(grader, "sandbox").get("network_isolated") for grader in graders)
    if open_to:
        found.append(f"The network was open to {open_to} of {len(graders)} submissions.")
    faults = sum(outcome(document)["word"] == "grader fault" for document in documents)
    if faults:
        found.append(f"{faults} ended in a fault of the grader: no zero; grade them again.")
    if busy := sum(document.get("grade_again") is True for document in documents):
        found.append(f"{busy} could not be judged, because the machine was busy: grade them again.")
    flagged = sum(bool(items(document, "flags")) for document in documents)
    if flagged:
        hold = "holds" if flagged == 1 else "hold"
        found.append(f"{flagged} {hold} something to look at, see the table.")
    return found


def in_words(devices: list[str]) -> str:
    """Such as "processor (ranks 0 to 3)" or "NVIDIA H100 (GPU-5d1c) (rank 0); processor (rank 1)"."""
    ranks: dict[str, list[int]] = {}
    for rank, device in enumerate(devices):
        ranks.setdefault(device, []).append(rank)
    said = []
    for device, numbers in ranks.items():
        listed = ", ".join(map(str, numbers))
        if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            listed = f"{numbers[0]} to {numbers[-1]}"
        said.append(f"{device} (rank{'s' * (len(numbers) > 1)} {listed})")
    return "; ".join(said)
