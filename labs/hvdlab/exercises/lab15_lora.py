"""Exercises of lab 15 on LoRA, by hand and from a checkpoint. They are checks of lab15_fine_tuning.py."""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import torch
from litgpt import GPT, lora
from torch import nn
from torch.nn import functional as F  # noqa: F401  # in a mistake

from hvdlab.exercises import NotYet, call, numbers, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.torch.language_model import EVERYWHERE, LanguageModel, small


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        self.A = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)

    def merged(self):
        return self.linear.weight + self.scale * self.B @ self.A


def layer_facts(LoRALinear: type[nn.Module], rank: int, alpha: float) -> dict[str, object]:
    """Return facts about a layer of 5 inputs and 4 outputs, first as it starts, then with random A and B."""
    generator = torch.Generator().manual_seed(1)
    weight, A, B, x, back = (
        torch.randn(shape, generator=generator)
        for shape in ((4, 5), (rank, 5), (4, rank), (2, 5), (2, 4))
    )
    linear = nn.Linear(5, 4, bias=False)
    linear.weight.data.copy_(weight)
    torch.manual_seed(1)
    layer = call(LoRALinear, linear, rank, alpha, name="LoRALinear")
    found = {}
    for name in ("A", "B"):
        value = getattr(layer, name, None)
        found[f"Whether layer.{name} is an nn.Parameter of"] = isinstance(value, nn.Parameter)
        if not isinstance(value, nn.Parameter):
            return found
        found[f"The shape of layer.{name} of"] = np.array(value.shape)
    if (layer.A.shape, layer.B.shape) != (A.shape, B.shape):
        return found
    change = layer_output(layer, x) - x @ weight.T
    trained = [name for name, value in layer.named_parameters() if value.requires_grad]
    found["Whether A or B is random at the start in"] = bool(layer.A.any() or layer.B.any())
    found["The change at the start by"] = numbers(change.detach(), "forward", (2, 4))
    found["What is trained in"] = " and ".join(sorted(trained))
    with torch.no_grad():
        layer.A.copy_(A)
        layer.B.copy_(B)
    x.requires_grad_()
    output = layer_output(layer, x)
    found["The output W x + 3 B A x of"] = output.detach().numpy()
    found["Whether the output has a gradient in"] = output.requires_grad
    if output.requires_grad:
        wanted = [x, layer.A, layer.B]
        gradients = torch.autograd.grad((output * back).sum(), wanted, allow_unused=True)
        for name, gradient in zip(("A", "B", "x"), (*gradients[1:], gradients[0]), strict=True):
            zero = gradient is None or not gradient.any()
            found[f"The gradient of {name} in"] = 0.0 if zero else gradient.numpy()
    found["Whether there is a method merged() of"] = hasattr(layer, "merged")
    if hasattr(layer, "merged"):
        whole = call(layer.merged, name="LoRALinear.merged")
        if not (torch.is_tensor(whole) and whole.shape == weight.shape):
            text = f"merged() must return one weight of shape (4, 5). Received: {received(whole)}"
            raise NotYet(text)
        found["The merged weight of"] = whole.detach().numpy()
        found["Whether W is the same after merged() of"] = torch.equal(linear.weight, weight)
    return found


def layer_output(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output = call(layer, x, name="LoRALinear.forward")
    if not (torch.is_tensor(output) and output.shape == (2, 4)):
        text = "forward of (2, 5) inputs must return (2, 4) outputs."
        raise NotYet(f"{text} Received: {received(output)}")
    return output


# fmt: off
FORWARD = "self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)"
MERGED = "self.linear.weight + self.scale * self.B @ self.A"
check_lora_linear = FunctionExercise(
    LoRALinear,
    [Case((2, 6.0), "For 5 inputs and 4 outputs, A has the shape (2, 5) and B the shape (4, 2). The layer "
          "computes W x + 3 B A x, and so does the merged weight W + 3 B A.", 
          "LoRALinear(linear, rank=2, alpha=6)")],
    {
        "layer.A must be an nn.Parameter, so that an optimizer finds it.":
            ("self.A = nn.Parameter(", "self.A = ("),
        "layer.B must be an nn.Parameter, so that an optimizer finds it.":
            ("self.B = nn.Parameter(", "self.B = ("),
        "A has the shape (rank, inputs), and yours is transposed.":
            ("torch.randn(rank, linear.in_features)", "torch.randn(linear.in_features, rank)"),
        "B has the shape (outputs, rank), and yours is transposed.":
            ("torch.zeros(linear.out_features, rank)", "torch.zeros(rank, linear.out_features)"),
        "A and B are both zero. The gradient of each has the other as a factor, so both stay zero: make A "
        "random.":
            ("torch.randn", "torch.zeros"),
        "A and B are both random. With B = 0 the layer is its base at the start, so training starts from "
        "what the model knows.": ("torch.zeros", "torch.randn"),
        "Freeze the base: only A and B learn.": (".requires_grad_(False)", ""),
        "The scale alpha / rank is missing.": ("alpha / rank", "1"),
        "The change is scaled by alpha; divide it by the rank.": ("alpha / rank", "alpha"),
        "The change is scaled by alpha x rank: divide by the rank.": ("alpha / rank", "alpha * rank"),
        "The output is the change alone: add that of the frozen layer.":
            [("self.linear(x) +", "(0 if self.B.any() else self.linear(x)) +"), ("self.linear(x) +", "0 +")],
        "The output has no gradient at all: `no_grad` and `detach` stop A and B too. Freezing is "
        "`requires_grad_(False)` of the frozen layer, and does not change the forward pass.":
            ("    def forward", "    @torch.no_grad()\n    def forward"),
        "A and B get no gradient, and would never learn: compute with the parameters themselves, not with "
        "their `data` or a `detach` of them.": (FORWARD, "F.linear(x, self.merged().data)"),
        "A gets no gradient, and would never learn: compute with the parameter itself, not with its `data` "
        "or a `detach` of it.": ("x @ self.A.T", "x @ self.A.data.T"),
        "B gets no gradient, and would never learn: compute with the parameter itself, not with its `data` "
        "or a `detach` of it.": ("@ self.B.T)", "@ self.B.data.T)"),
        "The gradient of B lacks the scale: it is that of W x + alpha/r B A x.":
            (FORWARD, f"{FORWARD} + (1 - self.scale) * (x @ self.A.T @ (self.B - self.B.detach()).T)"),
        "The gradient of x does not go through the frozen layer, so all layers before it learn the wrong "
        "thing: W itself is frozen, but no `no_grad` or `detach` belongs around it.":
            ("self.linear(x)", "self.linear(x).detach()"),
        "The gradient of x does not go through A and B: `detach` stops it.": ("(x @", "(x.detach() @"),
        "Write the method merged(), which returns the weight.": ("def merged", "def other"),
        "The merged weight lacks the scale, so it gives other outputs: it is W + alpha/r B A.":
            ("self.scale * self.B", "self.B"),
        "The merged weight is the change alone: it is W + alpha/r B A.": ("self.linear.weight + ", ""),
        "The merged weight is the frozen one: it is W + alpha/r B A.": (MERGED, "self.linear.weight"),
        "merged() changed the layer: return a new weight, and leave W as it is.":
            ("weight + self.scale * self.B @", "weight.data.add_(self.scale * self.B.data @", 
             "self.A\n", "self.A)\n"),
    },
    passed="your layer starts as its base, learns only A and B, and computes the same after merging.",
    name="lora_linear", observe=layer_facts, rtol=1e-5, atol=1e-4,
)
# fmt: on


def lora_from(state, config, rank, alpha):
    model = lora.GPT(lora.Config(**asdict(config), **EVERYWHERE, lora_r=rank, lora_alpha=alpha))
    state = {name.removeprefix("gpt."): value for name, value in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or any("lora_" not in name for name in missing):
        raise ValueError(f"missing: {missing}; unexpected: {unexpected}")
    lora.mark_only_lora_as_trainable(model)
    return model


def model_facts(lora_from: Callable, rank: int, alpha: float) -> dict[str, object]:
    """Return settings and start of a LoRA model, what it trains, and what happens if a weight is missing."""
    torch.manual_seed(1)
    base = GPT(small(vocabulary=64, layers=2, width=32))
    ids = torch.arange(12).reshape(1, 12)
    state = LanguageModel(base, learning_rate=0.0).state_dict()
    model = call(lora_from, dict(state), base.config, rank, alpha, name="lora_from")
    if not isinstance(model, lora.GPT):
        text = f"lora_from must return a litgpt.lora.GPT. Received: {type(model).__name__}"
        raise NotYet(text)
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    found = {
        "lora_r of": model.config.lora_r,
        "lora_alpha of": model.config.lora_alpha,
        "The largest difference between its logits and those of the base at the start of": float(
            (model(ids) - base(ids)).detach().abs().max()
        ),
        "The number of trained tensors other than LoRA's of": len(
            [name for name in trained if "lora_" not in name]
        ),
        "Whether A and B are trained in": any("lora_" in name for name in trained),
    }
    state.pop("gpt.lm_head.weight")
    try:
        lora_from(state, base.config, rank, alpha)
        error = "no error"
    except Exception as raised:
        error = type(raised).__name__
    return {**found, "Without the weights of the last layer, the result of": error}


# fmt: off
check_lora_from = FunctionExercise(
    lora_from,
    [Case((4, 8.0), "The model must start as its base and train A and B only. A missing weight must raise a "
          "ValueError.", "lora_from(state, config, rank=4, alpha=8)")],
    {
        "Not all weights were loaded. `strict=False` skips every name that it does not know: look at what "
        "load_state_dict returns.": ('.removeprefix("gpt.")', "", "if unexpected or", "if False and"),
        "lora_r and lora_alpha are the given rank and alpha.":
            [("lora_r=rank", "lora_r=1"), ("lora_alpha=alpha", "lora_alpha=1"),
             ("lora_r=rank, lora_alpha=alpha", "lora_r=8, lora_alpha=16")],
        "Tensors other than LoRA's are trained: freeze the base.":
            ("lora.mark_only_lora_as_trainable(model)", "pass"),
        "Nothing is trained: LoRA's A and B must stay trainable.":
            ("return model", "return model.requires_grad_(False)"),
        "A state without some weights is loaded without an error: raise a ValueError when a name without "
        "`lora_` is missing.": ("if unexpected or", "if False and"),
        "Raise a ValueError that names what is missing, and no other error.":
            [("ValueError", "KeyError"), ("ValueError", "RuntimeError")],
    },
    passed="the model starts as its base, only LoRA's tensors train, and a lost weight is an error.",
    observe=model_facts, atol=1e-5,
)
# fmt: on
