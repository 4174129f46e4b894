"""Predict the memory of each GPU that trains a transformer on a device mesh.

    gpt3 = Transformer(175e9, layers=96, hidden_size=12288, heads=96, vocabulary=50257)
    plan = Plan(ranks=1024, tensor=8, pipeline=16, precision="mixed", sequence_parallel=True)
    training_memory(gpt3, plan, stage=0).total / 1e9        # GB of a GPU of the first stage

The parts are weights, gradients, optimizer state, activations and buffers. ZeRO shards the first three over
the data- and context-parallel ranks (lab 12). LoRA freezes the weights and trains small matrices next to them
(lab 15). All sizes are in bytes. The parameters are spread evenly over the layers.

Source: Rajbhandari, Rasley, Ruwase, He, ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
2020, arXiv:1910.02054, section 3. LoRA: Hu et al. 2021, arXiv:2106.09685. QLoRA: Dettmers et al. 2023,
arXiv:2305.14314. Activations: `hvdlab.scaling.activations`. The buffers are our own count, which
labs/calculators compares with measured memory.
"""

from typing import NamedTuple

from hvdlab.scaling.activations import layer_activations, stage_activations, stage_layers
from hvdlab.scaling.plan import (
    CHECKPOINTING,
    METHODS,
    NF4_BYTES,
    OPTIMIZERS,
    PRECISIONS,
    Plan,
    Precision,
    check_plan,
)
from hvdlab.scaling.transformer import Transformer

__all__ = [
    "CHECKPOINTING",
    "METHODS",
    "OPTIMIZERS",
    "PRECISIONS",
    "Memory",
    "Plan",
    "Precision",
    "Transformer",
    "buffers",
    "check_plan",
    "layer_activations",
    "lora_parameters",
    "rank_bytes",
    "stage_activations",
    "stage_layers",
    "training_memory",
]


class Memory(NamedTuple):
    """Bytes of one GPU.

    Attributes:
        weights: of its part of the weights.
        gradients: of its part of the gradients.
        state: of the optimizer, and the float32 copy of the weights.
        activations: largest number of bytes at the same time.
        buffers: gathered layers, copies of the logits, and other buffers. Default 0.
    """

    weights: float
    gradients: float
    state: float
    activations: float
    buffers: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self)


def rank_bytes(
    parameters: float,
    ranks: float,
    stage: int,
    weights: float = 4,
    gradients: float = 4,
    state: float = 8,
) -> Memory:
    """Return what a rank holds between the backward pass and the update, without activations.

    Stage 1 of ZeRO shards the optimizer state, stage 2 also the gradients, and stage 3 also the weights.

    Args:
        parameters: number of parameters.
        ranks: number of data-parallel ranks.
        stage: of ZeRO, 0 to 3. Stage 0 is DDP.
        weights: bytes per parameter. Default 4.
        gradients: bytes per parameter. Default 4.
        state: bytes of the optimizer state per parameter. Default 8.
    """
    shard = parameters / ranks
    return Memory(
        weights * (shard if stage >= 3 else parameters),
        gradients * (shard if stage >= 2 else parameters),
        state * (shard if stage >= 1 else parameters),
        0.0,
    )


def lora_parameters(network: Transformer, rank: int) -> tuple[float, float]:
    """Return the trained parameters of LoRA on all matrices of the layers: those outside experts, and inside.

    A matrix with m inputs and n outputs gets r (m + n) parameters for the rank r. Without experts, those of
    the feed-forward network count as outside.

    Args:
        network: that is fine-tuned.
        rank: r.
    """
    h = network.hidden_size
    attention = 2 * (h + network.query_width) + 2 * (h + network.kv_width)
    one = (3 if network.gated else 2) * (h + network.expert_width)
    if network.experts == 1:
        return rank * network.layers * (attention + one), 0.0
    return rank * network.layers * attention, rank * network.layers * network.experts * one


def fixed_parts(network: Transformer, plan: Plan, stage: int) -> Memory:
    """Return the weights, gradients and optimizer state of a GPU of a stage.

    Args:
        network: that is trained.
        plan: of the training.
        stage: number of the stage, from 0.
    """
    layers = stage_layers(network.layers, plan.pipeline, stage)
    mine = layers / network.layers / plan.tensor
    size, zero = plan.number_bytes, plan.zero_stage
    routed = network.routed_weights
    frozen = plan.method != "full"
    trained = lora_parameters(network, plan.lora_rank)
    if not frozen:
        trained = (network.parameters - routed, routed)
    parts = [
        rank_bytes(mine * count / degree, plan.shards / degree, zero,
                   size.weights, size.gradients, plan.state_bytes)
        for count, degree in zip(trained, (1, plan.expert), strict=True)
    ]  # fmt: skip
    if frozen:
        in_layers = NF4_BYTES if plan.method == "QLoRA" else size.weights
        outside = network.layers * network.attention_weights
        outside += 0 if routed else network.layers * network.expert_weights
        outside = min(outside, network.parameters - routed)
        other = network.parameters - routed - outside
        for count, degree, nbytes in (
            (outside, 1, in_layers),
            (routed, plan.expert, in_layers),
            (other, 1, size.weights),
        ):
            parts.append(
                rank_bytes(mine * count / degree, plan.shards / degree, zero, nbytes, 0, 0)
            )
    return Memory(*(sum(numbers) for numbers in zip(*parts, strict=True)))


def buffers(network: Transformer, plan: Plan, stage: int) -> float:
    """Return the bytes of memory that a step needs for a short time, on a GPU of a stage.

    ZeRO stage 3 gathers a layer while it computes with another one, so two whole layers are there. Stages 2
    and 3 hold the gradients of a whole layer before they shard them. The first and the last matrix count as a
    layer. QLoRA makes 16-bit numbers of one matrix. Ranks of sequence parallelism gather the input of a
    block, and those of context parallelism receive keys and values. A loss that is not fused makes a 16-bit
    and two float32 copies of the logits.

    Args:
        network: that is trained.
        plan: of the training.
        stage: number of the stage, from 0.
    """
    number, last = plan.number_bytes.activations, stage == plan.pipeline - 1
    matrix = network.hidden_size * network.expert_width / plan.tensor
    here = network.experts / plan.expert
    unit = (network.attention_weights + here * network.expert_weights) / plan.tensor
    if stage == 0 or last:
        unit = max(unit, network.vocabulary * network.hidden_size / plan.tensor)
    total = 0.0
    if plan.shards > 1 and plan.zero_stage == 3:
        total += 2 * unit * number
    if plan.shards > 1 and plan.zero_stage >= 2 and plan.method == "full":
        total += unit * plan.number_bytes.gradients
    if plan.method == "QLoRA":
        total += matrix * number
    if plan.sequence_parallel and plan.tensor > 1:
        total += plan.tokens * network.hidden_size * number
    if plan.context > 1:
        total += 2 * plan.tokens * network.kv_width / plan.tensor * number
    if last and not plan.fused_loss:
        total += (number + 8) * plan.tokens * network.vocabulary / plan.tensor
    return total


def training_memory(network: Transformer, plan: Plan, stage: int = 0) -> Memory:
    """Return the memory of a GPU of a pipeline stage.

    Args:
        network: that is trained.
        plan: of the training.
        stage: number of the stage, from 0. Default 0.

    Raises:
        ValueError: the plan does not fit the network, or a value is out of range.
    """
    check_plan(network, plan)
    if not 0 <= stage < plan.pipeline:
        raise ValueError(f"stage must be from 0 to {plan.pipeline - 1}. Received: stage={stage}")
    return fixed_parts(network, plan, stage)._replace(
        activations=stage_activations(network, plan, stage),
        buffers=buffers(network, plan, stage),
    )
