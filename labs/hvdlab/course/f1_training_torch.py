"""Train the network F1 of Hoffer et al. with PyTorch, as the experiments of lab 7 need it.

`f1_training_keras` has the same names with the same meaning for Keras. Two details differ. The velocity of
PyTorch's SGD does not contain the learning rate, which makes a difference while the learning rate changes.
PyTorch's batch norm averages the unbiased variance for inference, and Keras' the biased one.

    training = F1Training(seed=1, schedule=lambda step: 0.01, steps=942)
    rows = training.fit((x, y), (test_x, test_y), batch_size=64, epochs=6)

Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, arXiv:1705.08741.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvdlab.torch import LAMB, LARS, GhostBatchNorm1d, NovoGrad
from hvdlab.torch.noise import GradientNoise, LossWeights

DECAY = 1e-4  # weight decay of the matrices
CONVOLUTIONS = [(16, 2), (32, 2), (64, 2), (64, 1)]  # channels and strides of "CNN"
DECOUPLED_DECAY = 0.1  # the same for AdamW and Muon, whose decay is not part of the gradient
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH_NORM = {"eps": 1e-3, "momentum": 0.1}  # as in Keras, whose momentum is that of the old value
Data = tuple[np.ndarray, np.ndarray]  # images (n, pixels) and labels (n,)


class F1Training:
    """The network, F1 or a small convolutional one, and its optimizer.

    F1 is 784 - 512 x 5 - 10 with ReLU. "CNN" has four 3 x 3 convolutions of 16, 32, 64 and 64 channels, each
    with ReLU, and one dense layer.

    Args:
        network: "F1", or "CNN" for a convolutional network without a norm. Default "F1".
        image: height, width and channels of an image, for "CNN". Default (28, 28, 1).
        schedule: function step -> learning rate.
        steps: number of updates of the run.
        optimizer: "SGD" (with momentum 0.9), "Adam", "AdamW", "LARS", "LARC", "LAMB", "NovoGrad" or "Muon"
            (for the matrices of the hidden layers, with AdamW for the rest). Default "SGD".
        norm: "batch", "ghost", or "none": what normalises the output of each hidden layer. Default "batch".
        ghost_size: number of examples of a ghost. Default 64.
        hidden_layers: default 5.
        clip_norm: largest norm of the whole gradient. Default None: no clipping.
        gradient_noise: variance of the noise that is added to the gradients of SGD at the first step.
            Default 0.
        loss_weight_std: standard deviation of the random weights of the losses. Default 0.
    """

    def __init__(
        self,
        seed: int,
        schedule: Callable[[int], float],
        steps: int,
        *,
        network: str = "F1",
        image: tuple[int, int, int] = (28, 28, 1),
        optimizer: str = "SGD",
        norm: str = "batch",
        ghost_size: int = 64,
        hidden_layers: int = 5,
        clip_norm: float | None = None,
        gradient_noise: float = 0,
        loss_weight_std: float = 0,
    ) -> None:
        torch.manual_seed(seed)
        self.rates = [float(schedule(step)) for step in range(steps)]
        self.step, self.clip_norm = 0, clip_norm
        self.order = np.random.default_rng(seed)
        if network == "CNN":
            modules = _convolutions(*image)
        else:
            modules = _dense_layers(hidden_layers, norm, ghost_size)
        self.model = nn.Sequential(*modules).to(DEVICE)
        for module in self.model:
            if isinstance(module, nn.Linear | nn.Conv2d):
                if network == "CNN":
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                else:  # the initial weights of Keras
                    nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        self.optimizers = _optimizers(optimizer, self.model)
        self.noise = self.weights = None
        if gradient_noise:
            self.noise = GradientNoise(self.model.parameters(), eta=gradient_noise, seed=seed)
        if loss_weight_std:
            self.weights = LossWeights(loss_weight_std, seed=seed)

    def branch(self, schedule: Callable[[int], float], steps: int) -> "F1Training":
        """Return a copy that continues from this moment with another schedule and number of updates."""
        copy = deepcopy(self)
        copy.rates = [float(schedule(step)) for step in range(steps)]
        return copy

    def fit(self, train: Data, test: Data, batch_size: int, epochs: int, every: int = 1) -> list:
        """Train, and return a row {"epoch", "test_accuracy"} for each epoch that is tested.

        Args:
            batch_size: number of images of one update.
            epochs: number of passes over the images.
            every: the test images are looked at after every so many epochs. Default 1.
        """
        rows = []
        (images, labels), tested = _tensors(*train), _tensors(*test)
        for epoch in range(1, epochs + 1):
            order = torch.from_numpy(self.order.permutation(len(images))).to(DEVICE)
            for chosen in order.split(batch_size):
                self._update(images.index_select(0, chosen), labels.index_select(0, chosen))
            if epoch % every == 0:
                rows.append({"epoch": epoch, "test_accuracy": self._accuracy(*tested)})
        return rows

    def matrix_norms(self, images: np.ndarray, labels: np.ndarray) -> list[tuple[float, float]]:
        """Return the norm of each weight matrix and the norm of its gradient.

        Args:
            images: one batch (n, 784).
        """
        self.model.train().zero_grad()
        x, y = _tensors(images, labels)
        F.cross_entropy(self.model(x), y).backward()
        matrices = [w for w in self.model.parameters() if w.dim() > 1]
        return [(float(w.detach().norm()), float(w.grad.norm())) for w in matrices]

    def _update(self, images: Tensor, labels: Tensor) -> None:
        self.model.train()
        self.model.zero_grad()
        losses = F.cross_entropy(self.model(images), labels, reduction="none")
        if self.weights:
            losses = self.weights(losses) * losses
        losses.mean().backward()
        if self.noise:
            self.noise.add_()
        if self.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.rates[min(self.step, len(self.rates) - 1)]
            optimizer.step()
        self.step += 1

    @torch.no_grad()
    def _accuracy(self, images: Tensor, labels: Tensor) -> float:
        self.model.eval()
        right = [
            (self.model(x).argmax(1) == y).float().sum()
            for x, y in zip(images.split(2500), labels.split(2500), strict=True)
        ]
        return float(sum(right)) / len(images)


def _dense_layers(hidden_layers: int, norm: str, ghost_size: int) -> list[nn.Module]:
    modules = []
    for layer in range(hidden_layers):
        modules.append(nn.Linear(512 if layer else 784, 512))
        if norm == "batch":
            modules.append(nn.BatchNorm1d(512, **BATCH_NORM))
        if norm == "ghost":
            modules.append(GhostBatchNorm1d(512, ghost_size, **BATCH_NORM))
        modules.append(nn.ReLU())
    return [*modules, nn.Linear(512, 10)]


def _convolutions(height: int, width: int, channels: int) -> list[nn.Module]:
    """Return the layers of "CNN". Its input is flat, with the channels last as in Keras."""
    modules = [nn.Unflatten(1, (height, width, channels)), ChannelsFirst()]
    for outputs, stride in CONVOLUTIONS:
        modules += [nn.Conv2d(channels, outputs, 3, stride, padding=1), nn.ReLU()]
        height, width, channels = -(-height // stride), -(-width // stride), outputs
    return [*modules, nn.Flatten(), nn.Linear(height * width * channels, 10)]


class ChannelsFirst(nn.Module):
    """(n, height, width, channels) -> (n, channels, height, width), as PyTorch's layers need it."""

    def forward(self, images: Tensor) -> Tensor:
        """Return a view of the images."""
        return images.movedim(-1, 1)


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(images).to(DEVICE), torch.from_numpy(labels.astype("int64")).to(DEVICE)


def _optimizers(name: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return optimizers with weight decay for matrices only; `fit` sets their learning rate."""
    if name == "Muon":
        *hidden, last = [p for p in model.parameters() if p.dim() > 1]
        # The factor 0.2 sqrt(max(rows, columns)) lets Muon and AdamW share a learning rate.
        settings = {"weight_decay": DECOUPLED_DECAY, "adjust_lr_fn": "match_rms_adamw"}
        rest = _groups([p for p in model.parameters() if p.dim() <= 1] + [last], DECOUPLED_DECAY)
        return [torch.optim.Muon(hidden, **settings), torch.optim.AdamW(rest, eps=1e-7)]
    decay = DECOUPLED_DECAY if name == "AdamW" else DECAY
    groups = _groups(model.parameters(), decay)
    if name == "SGD":
        return [torch.optim.SGD(groups, lr=0.1, momentum=0.9)]
    if name in ("Adam", "AdamW"):
        return [getattr(torch.optim, name)(groups, eps=1e-7)]  # eps as in Keras
    if name == "LARS":
        return [LARS(groups, momentum=0.9, trust_coefficient=0.02)]
    if name == "LARC":
        return [LARS(groups, momentum=0.9, clip=True)]
    return [{"LAMB": LAMB, "NovoGrad": NovoGrad}[name](groups)]


def _groups(parameters: Iterable[nn.Parameter], decay: float) -> list[dict]:
    """Return the matrices with this weight decay, and the other parameters with none."""
    parameters = list(parameters)
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
