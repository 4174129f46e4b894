"""Count the activations that a GPU keeps for the backward pass, in bytes.

The formulas are those of Korthikanti et al. 2022, written for any number of key and value heads, any width of
the feed-forward network, gates and experts. Tokens are spread evenly over the experts.

Source: Korthikanti, Casper, Lym, McAfee, Andersch, Shoeybi, Catanzaro, Reducing Activation Recomputation in
Large Transformer Models, 2022, arXiv:2205.05198, sections 4 and 5.
"""

from hvdlab.scaling.plan import Plan
from hvdlab.scaling.transformer import Transformer


def layer_activations(network: Transformer, plan: Plan, checkpointing: str) -> float:
    """Return the bytes that one layer keeps for the backward pass of one micro-batch.

    For a network like GPT-3 and numbers of two bytes they are s b h (10 + 24/t + 5 a s / (h t)) for s tokens,
    b sequences, width h, a heads and t tensor-parallel ranks: table 2 of Korthikanti et al. 2022. The masks
    of dropout have one byte per number with every precision. A gated network has none.

    Args:
        network: that is trained.
        plan: its sequence, micro-batch, precision, tensor and context parallelism count here.
        checkpointing: as in `Plan`.
    """
    number, h = plan.number_bytes.activations, network.hidden_size
    everywhere = plan.tensor if plan.sequence_parallel else 1
    if checkpointing == "full":
        return number * plan.tokens * h / everywhere
    masks = 0 if network.gated else 2
    unsplit = (4 * number + masks) * h  # inputs of both norms and of both blocks
    attention = number * 2 * (network.query_width + network.kv_width)
    inside = number * (4 if network.gated else 2) * network.expert_width
    if network.experts > 1:  # each token has a copy before and after each of its experts
        inside = network.experts_per_token * (inside + 2 * number * h)
    scores = 0.0
    if not plan.fused_attention and checkpointing != "selective":
        scores = (number if network.gated else 2 * number + 1) * network.heads * plan.sequence
    return plan.tokens * (unsplit / everywhere + (attention + inside + scores) / plan.tensor)


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
    kept, whole = (layer_activations(network, plan, how) for how in (plan.checkpointing, "none"))
    total = held * stage_layers(network.layers, plan.pipeline, stage) * kept + (whole - kept)
    width = network.hidden_size / (plan.tensor if plan.sequence_parallel else 1)
    if stage == 0 and not network.gated:
        total += held * plan.tokens * width
    if stage == plan.pipeline - 1:
        total += 2 * plan.number_bytes.activations * plan.tokens * width
        total += 4 * plan.tokens * network.vocabulary / plan.tensor
    return total


def stage_layers(layers: int, stages: int, stage: int) -> int:
    """Return the number of layers of a stage; the first stages get one more if it does not divide evenly.

    Args:
        layers: number of layers of the network.
        stages: number of stages.
        stage: number of the stage, from 0.
    """
    return layers // stages + (stage < layers % stages)
