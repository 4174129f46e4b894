"""Predict the memory of each GPU that trains a transformer on a device mesh (data x tensor x pipeline).

    gpt3 = Transformer(175e9, layers=96, hidden_size=12288, heads=96, vocabulary=50257)
    plan = Plan(ranks=1024, tensor=8, pipeline=16, precision="mixed", sequence_parallel=True)
    training_memory(gpt3, plan, stage=0).total / 1e9        # GB of a GPU of the first stage

The parts are weights, gradients, optimizer state and activations. ZeRO shards the first three over the
data-parallel ranks (lab 12). The activations are counted with the formulas of Korthikanti et al. 2022. They
assume a layer with multi-head attention, a feed-forward network of four times the width and dropout. All
sizes are in bytes.

Source: Rajbhandari, Rasley, Ruwase, He, ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
2020, arXiv:1910.02054, section 3. Korthikanti, Casper, Lym, McAfee, Andersch, Shoeybi, Catanzaro, Reducing
Activation Recomputation in Large Transformer Models, 2022, arXiv:2205.05198, sections 4 and 5.
"""

from dataclasses import dataclass
from typing import NamedTuple

CHECKPOINTING = "none", "selective", "full"


class Precision(NamedTuple):
    """Bytes of a number.

    Attributes:
        weights: of a weight that the forward pass uses.
        gradients: of a gradient.
        master: of the additional float32 copy of a weight; 0 if there is none.
        state: of a number that the optimizer keeps.
        activations: of an activation.
    """

    weights: int
    gradients: int
    master: int
    state: int
    activations: int


PRECISIONS = {  # labs 9 and 12
    "float32": Precision(4, 4, 0, 4, 4),
    "autocast": Precision(4, 4, 0, 4, 2),  # float32 weights, matrix products in bfloat16
    "mixed": Precision(2, 2, 4, 4, 2),  # 2 + 2 + 12 bytes with Adam, as in ZeRO's paper
    "mixed, float32 gradients": Precision(2, 4, 4, 4, 2),
    "bfloat16": Precision(2, 2, 0, 2, 2),
}
OPTIMIZERS = {"SGD": 0, "momentum": 1, "Adam": 2}  # numbers that the optimizer keeps per parameter


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer.

    Attributes:
        parameters: number of parameters of the whole network.
        layers: number of transformer layers.
        hidden_size: width between the layers.
        heads: attention heads of a layer.
        vocabulary: number of tokens.
    """

    parameters: float
    layers: int
    hidden_size: int
    heads: int
    vocabulary: int


@dataclass(frozen=True)
class Plan:
    """How the network is trained, and how it is split over the ranks.

    Attributes:
        ranks: number of GPUs.
        tensor: tensor-parallel degree. Default 1.
        pipeline: pipeline-parallel degree, with the schedule 1F1B. Default 1.
        zero_stage: 0 (nothing is sharded) to 3. Default 0.
        precision: a key of `PRECISIONS`. Default "mixed".
        optimizer: a key of `OPTIMIZERS`. Default "Adam".
        sequence: tokens of a sequence. Default 2048.
        micro_batch: sequences of a micro-batch. Default 1.
        micro_batches: micro-batches per step and data-parallel rank. Default 1.
        checkpointing: "none" (default), "selective" (attention is computed again) or "full" (each layer is
            computed again).
        sequence_parallel: also split the activations between the matrix products (lab 13). Default False.
        fused_attention: attention never stores its scores, like FlashAttention. Default False.
    """

    ranks: int
    tensor: int = 1
    pipeline: int = 1
    zero_stage: int = 0
    precision: str = "mixed"
    optimizer: str = "Adam"
    sequence: int = 2048
    micro_batch: int = 1
    micro_batches: int = 1
    checkpointing: str = "none"
    sequence_parallel: bool = False
    fused_attention: bool = False

    @property
    def data(self) -> int:
        """The data-parallel degree: the ranks that hold the same part of the network."""
        return self.ranks // (self.tensor * self.pipeline)

    @property
    def number_bytes(self) -> Precision:
        """The bytes of each kind of number."""
        return PRECISIONS[self.precision]


class Memory(NamedTuple):
    """Bytes of one GPU.

    Attributes:
        weights: of its part of the weights.
        gradients: of its part of the gradients.
        state: of the optimizer, and the float32 copy of the weights.
        activations: largest number of bytes at the same time.
    """

    weights: float
    gradients: float
    state: float
    activations: float

    @property
    def total(self) -> float:
        """The sum of the four parts."""
        return sum(self)


def rank_bytes(
    parameters: float,
    ranks: int,
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


def layer_activations(hidden_size: int, heads: int, plan: Plan, checkpointing: str) -> float:
    """Return the bytes that one layer keeps for the backward pass of one micro-batch.

    With numbers of two bytes they are s b h (10 + 24/t + 5 a s / (h t)) for s tokens, b sequences, width h,
    a heads and t tensor-parallel ranks: table 2 of Korthikanti et al. 2022. The masks of dropout have one
    byte per number with every precision.

    Args:
        hidden_size: width of the network.
        heads: attention heads.
        plan: its sequence, micro-batch, precision and tensor parallelism count here.
        checkpointing: as in `Plan`.
    """
    number = plan.number_bytes.activations
    tokens = plan.sequence * plan.micro_batch
    if checkpointing == "full":
        return number * tokens * hidden_size
    unsplit = 4 * number + 2  # inputs of both norms and of both blocks; two masks
    if plan.sequence_parallel:
        unsplit /= plan.tensor
    split = 12 * number / plan.tensor
    scores = (2 * number + 1) * heads * plan.sequence / hidden_size / plan.tensor
    if plan.fused_attention or checkpointing == "selective":
        scores = 0
    return tokens * hidden_size * (unsplit + split + scores)


def stage_activations(network: Transformer, plan: Plan, stage: int) -> float:
    """Return the largest number of bytes of activations on a GPU of a stage.

    With 1F1B, stage s of p stages holds the activations of at most p - s micro-batches (lab 14). A layer
    that is computed again has all its activations for a short time, and one layer at a time does (lab 9). The
    first stage also keeps the mask of the embedding's dropout. The last one also keeps the inputs of the last
    norm and of the last matrix, and the logits in float32.

    Args:
        network: that is trained.
        plan: of the training.
        stage: number of the stage, from 0.
    """
    held = min(plan.micro_batches, plan.pipeline - stage)
    kept, whole = (
        layer_activations(network.hidden_size, network.heads, plan, how)
        for how in (plan.checkpointing, "none")
    )
    total = held * stage_layers(network.layers, plan.pipeline, stage) * kept + (whole - kept)
    tokens = plan.sequence * plan.micro_batch
    width = network.hidden_size / (plan.tensor if plan.sequence_parallel else 1)
    if stage == 0:
        total += held * tokens * width
    if stage == plan.pipeline - 1:
        total += 2 * plan.number_bytes.activations * tokens * width
        total += 4 * tokens * network.vocabulary / plan.tensor
    return total


def stage_layers(layers: int, stages: int, stage: int) -> int:
    """Return the number of layers of a stage; the first stages get one more if it does not divide evenly.

    Args:
        layers: number of layers of the network.
        stages: number of stages.
        stage: number of the stage, from 0.
    """
    return layers // stages + (stage < layers % stages)


def training_memory(network: Transformer, plan: Plan, stage: int = 0) -> Memory:
    """Return the memory of a GPU of a pipeline stage. The parameters are spread evenly over the layers.

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
    layers = stage_layers(network.layers, plan.pipeline, stage)
    mine = network.parameters * layers / network.layers / plan.tensor
    size = plan.number_bytes
    state = size.master + OPTIMIZERS[plan.optimizer] * size.state
    fixed = rank_bytes(mine, plan.data, plan.zero_stage, size.weights, size.gradients, state)
    return fixed._replace(activations=stage_activations(network, plan, stage))


def check_plan(network: Transformer, plan: Plan) -> None:
    """Raise an error if the network cannot be split in this manner.

    Raises:
        ValueError: the ranks, the heads or the layers cannot be divided, or a choice is unknown.
    """
    model_ranks = plan.tensor * plan.pipeline
    if plan.ranks < 1 or plan.ranks % model_ranks:
        raise ValueError(
            f"ranks must be a multiple of tensor x pipeline = {model_ranks}. Received: {plan.ranks}"
        )
    if network.heads % plan.tensor:
        raise ValueError(
            f"tensor must divide the {network.heads} attention heads. Received: {plan.tensor}"
        )
    if plan.pipeline > network.layers:
        raise ValueError(
            f"pipeline must be at most the {network.layers} layers. Received: {plan.pipeline}"
        )
    for name, value, choices in (
        ("precision", plan.precision, PRECISIONS),
        ("optimizer", plan.optimizer, OPTIMIZERS),
        ("checkpointing", plan.checkpointing, CHECKPOINTING),
        ("zero_stage", plan.zero_stage, range(4)),
    ):
        if value not in choices:
            raise ValueError(
                f"{name} must be one of {', '.join(map(str, choices))}. Received: {value!r}"
            )
