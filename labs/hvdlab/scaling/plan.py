"""How a transformer is trained and split over GPUs: precision, optimizer, fine-tuning, device mesh.

The device mesh is data x context x tensor x pipeline. Context parallelism cuts each sequence. Expert
parallelism spreads the experts of a layer over data- and context-parallel ranks, and needs no other ranks.
"""

from dataclasses import dataclass
from typing import NamedTuple

from hvdlab.scaling.transformer import Transformer

CHECKPOINTING = "none", "selective", "full"
METHODS = "full", "LoRA", "QLoRA"


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
# Numbers that the optimizer keeps per parameter. Muon keeps a momentum, 8-bit Adam two numbers of one byte.
OPTIMIZERS = {"SGD": 0, "momentum": 1, "Adam": 2, "8-bit Adam": 2}
# NF4 with double quantization: 4 bits, 8 for each 64 weights, and 32 for each 64 x 256 (Dettmers et al. 2023,
# section 3).
NF4_BYTES = 4 / 8 + 8 / 8 / 64 + 32 / 8 / (64 * 256)


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
        context: context-parallel degree. Default 1.
        expert: expert-parallel degree. Default 1.
        fused_loss: the loss overwrites the logits, as in Megatron-LM. Default True. False: the functions of
            PyTorch, which make copies.
        method: "full" (default), "LoRA" or "QLoRA" (the frozen weights of the layers have 4 bits).
        lora_rank: rank of the adapters, on all matrices of the layers. Default 16.
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
    context: int = 1
    expert: int = 1
    fused_loss: bool = True
    method: str = "full"
    lora_rank: int = 16

    @property
    def data(self) -> int:
        """The data-parallel degree: the ranks with different sequences and the same part of the network."""
        return self.ranks // (self.tensor * self.pipeline * self.context)

    @property
    def shards(self) -> int:
        """The ranks over which ZeRO shards: data and context parallelism together."""
        return self.data * self.context

    @property
    def number_bytes(self) -> Precision:
        """The bytes of each kind of number."""
        return PRECISIONS[self.precision]

    @property
    def state_bytes(self) -> int:
        """The bytes of the optimizer state and the float32 copy per trained parameter."""
        size = self.number_bytes
        number = 1 if self.optimizer == "8-bit Adam" else size.state
        return size.master + OPTIMIZERS[self.optimizer] * number

    @property
    def tokens(self) -> float:
        """The tokens of a micro-batch on one rank."""
        return self.sequence * self.micro_batch / self.context


def check_plan(network: Transformer, plan: Plan) -> None:
    """Raise an error if the network cannot be split in this manner.

    Raises:
        ValueError: the ranks, heads, layers, experts or tokens cannot be divided, or a choice is unknown.
    """
    model_ranks = plan.tensor * plan.pipeline * plan.context
    if plan.ranks < 1 or plan.ranks % model_ranks:
        raise ValueError(
            f"ranks must be a multiple of tensor x pipeline x context = {model_ranks}. Received: {plan.ranks}"
        )
    if network.heads % plan.tensor:
        raise ValueError(
            f"tensor must divide the {network.heads} attention heads. Received: {plan.tensor}"
        )
    if network.heads % (network.kv_heads or network.heads):
        raise ValueError(
            f"kv_heads must divide the {network.heads} query heads. Received: {network.kv_heads}"
        )
    if plan.pipeline > network.layers:
        raise ValueError(
            f"pipeline must be at most the {network.layers} layers. Received: {plan.pipeline}"
        )
    if plan.sequence % plan.context:
        raise ValueError(
            f"context must divide the {plan.sequence} tokens of a sequence. Received: {plan.context}"
        )
    if network.experts % plan.expert or plan.shards % plan.expert:
        raise ValueError(
            f"expert must divide the {network.experts} experts and the {plan.shards} data- and "
            f"context-parallel ranks. Received: {plan.expert}"
        )
    if network.experts_per_token > network.experts:
        raise ValueError(
            f"experts_per_token must be at most the {network.experts} experts. "
            f"Received: {network.experts_per_token}"
        )
    if network.routed_weights > network.parameters:
        raise ValueError(
            f"the experts alone have {network.routed_weights:.3g} parameters, more than the network. "
            f"Received: parameters={network.parameters:.3g}"
        )
    for name, value, choices in (
        ("precision", plan.precision, PRECISIONS),
        ("optimizer", plan.optimizer, OPTIMIZERS),
        ("checkpointing", plan.checkpointing, CHECKPOINTING),
        ("zero_stage", plan.zero_stage, range(4)),
        ("method", plan.method, METHODS),
    ):
        if value not in choices:
            raise ValueError(
                f"{name} must be one of {', '.join(map(str, choices))}. Received: {value!r}"
            )
