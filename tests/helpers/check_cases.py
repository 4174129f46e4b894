"""The scripts on which `hvdlab check` is tested: one script per mistake, and correct scripts."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CORRECT = {path.stem: path for path in (ROOT / "tests/fixtures/correct_scripts").glob("*.py")}
CORRECT |= {path.stem: path for path in (ROOT / "labs/faults").glob("*.py")}
CORRECT |= {
    "cifar10_torch": ROOT / "labs/cifar10_torch.py",
    "cifar10_keras": ROOT / "labs/cifar10_keras.py",
    "fashion_mnist_ddp": ROOT / "labs/fashion_mnist_ddp.py",
    "solution_torch": ROOT / "assessment/solutions/torch/assessment.py",
    "solution_keras": ROOT / "assessment/solutions/keras/assessment.py",
}
FEW = ["--images", "2000"]
ARGUMENTS = dict.fromkeys(("cifar10_torch", "cifar10_keras", "fashion_mnist_ddp"), FEW)
