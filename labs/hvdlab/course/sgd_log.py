"""What a training run of lab 3 reports, the same for Keras and for PyTorch."""

from dataclasses import dataclass, field


@dataclass
class TrainingLog:
    """One number per epoch.

    Args:
        seconds: time of the training steps, without validation.
        accuracies: accuracy on the held-out images after the epoch. Empty without held-out images.
    """

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
