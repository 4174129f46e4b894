"""Compare logits and accuracy of a trained AssessmentNet in each precision with float32 on the processor.

The grader recomputes accuracies with a margin of 0.005, so the precision must change them by less.
"""

import copy

import torch
from torch.nn import functional as F

from hvdlab.data import Dataset
from hvdlab.gpu_report.data import load
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, name, set_precision
from hvdlab.torch.models import AssessmentNet

ACCURACY_MARGIN = 0.005  # of the grader: assessment/profiles.toml
# Largest difference of a logit, as a fraction of the largest logit.
LIMITS = {"float32": 1e-4, "TF32": 2e-2, "bfloat16": 1e-1}


def main(findings: Findings) -> None:
    """Train a network, and report its logits and accuracy in each precision."""
    where = device()
    gpu = where.type == "cuda"
    data, kind = load()
    findings.fact("images", kind)
    images = torch.from_numpy(data.test_images[: 10_000 if gpu else 200])
    labels = torch.from_numpy(data.test_labels[: len(images)]).long()
    model = trained(data, where, steps=400 if gpu else 5, batch=512 if gpu else 16)
    set_precision("float32")
    expected = logits(copy.deepcopy(model).cpu(), images, "float32")
    right = accuracy(expected, labels)
    findings.fact("accuracy on the processor in float32", f"{right:.4f} of {len(images)} images")
    for precision, limit in LIMITS.items():
        if precision == "TF32" and not gpu:
            continue
        set_precision(precision)
        found = logits(model, images, precision)
        gaps = ((found - expected).abs() / expected.abs().max()).flatten().numpy()
        findings.check(
            "Logits", "logits", name(where), precision, gaps, limit, "float32 on the processor"
        )
        off = abs(accuracy(found, labels) - right)
        findings.check(
            "Accuracy", f"accuracy on {len(images)} images", name(where), precision, [off],
            ACCURACY_MARGIN, "float32 on the processor",
        )  # fmt: skip
    repeated(findings, data, where)


def trained(
    data: Dataset, where: torch.device, steps: int, batch: int, benchmark: bool = True
) -> torch.nn.Module:
    """Return a network after a short training in bfloat16, so that its weights are not random.

    Args:
        steps: number of steps.
        batch: images per step.
        benchmark: whether cuDNN chooses the fastest kernels; then two runs may use different ones.
    """
    torch.manual_seed(1)
    set_precision("bfloat16")
    torch.backends.cudnn.benchmark = benchmark
    images = torch.from_numpy(data.train_images).to(where)
    labels = torch.from_numpy(data.train_labels).long().to(where)
    model = AssessmentNet().to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps + 1)
    for _ in range(steps):
        chosen = torch.randint(0, len(images), (batch,), device=where)
        with torch.autocast(where.type, torch.bfloat16):
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return model.eval()


@torch.inference_mode()
def logits(model: torch.nn.Module, images: torch.Tensor, precision: str) -> torch.Tensor:
    """Return the logits (images, 10) as float64 numbers in host memory.

    Args:
        images: uint8, of shape (images, 32, 32, 3).
        precision: "bfloat16" uses autocast.
    """
    where = next(model.parameters()).device
    with torch.autocast(where.type, torch.bfloat16, enabled=precision == "bfloat16"):
        parts = [model(part.to(where)).double().cpu() for part in images.split(1000)]
    return torch.cat(parts)


def accuracy(found: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the fraction of the images whose largest logit is that of their label."""
    return (found.argmax(1) == labels).double().mean().item()


def repeated(findings: Findings, data: Dataset, where: torch.device) -> None:
    """Report how much the weights of two trainings with the same seed differ.

    Two trainings use deterministic algorithms, and two do not.
    """
    table = "Two runs with the same seed"
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.backends.cudnn.deterministic = deterministic
        runs = [trained(data, where, 20, 16, not deterministic).state_dict() for _ in range(2)]
        gaps = [
            (one.double() - two.double()).abs().max().item()
            for one, two in zip(runs[0].values(), runs[1].values(), strict=True)
        ]
        how = "deterministic algorithms" if deterministic else "default algorithms"
        what = f"largest difference of a weight after 20 steps, {how}"
        findings.measure(table, what, name(where), "bfloat16", "absolute", [max(gaps)])


if __name__ == "__main__":
    start(main)
