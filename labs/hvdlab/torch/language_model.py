"""Train a LitGPT model with Lightning, from scratch or from a checkpoint, in full or with LoRA.

    tokenizer = train_tokenizer([documentation()], folder)
    model = LanguageModel(GPT(small(vocabulary=tokenizer.vocab_size)), learning_rate=2e-3)
    Trainer(max_steps=300).fit(model, loader)
    save(model.gpt, folder)          # a folder that litgpt's own commands can read

A batch is a dict of "input_ids" and "labels", both int64 (batch, tokens), as LitGPT's `SFTDataset` and its
collate function make them. A token whose label is IGNORED does not count in the loss.
"""

import copy
import logging
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from litgpt import GPT, Config, Tokenizer, lora
from litgpt.generate.base import generate as litgpt_generate
from litgpt.prompts import Alpaca
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from hvdlab.data import DataError
from hvdlab.torch.language_model_checkpoint import (  # noqa: F401
    END,
    WEIGHTS,
    documentation,
    load,
    save,
    train_tokenizer,
)

IGNORED = -100
# Arguments of Lightning's Trainer: count steps instead of epochs, evaluate before the first step, and write
# and print nothing.
BY_STEPS = dict(
    check_val_every_n_epoch=None,
    num_sanity_val_steps=-1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
LAYERS = "query", "key", "value", "projection", "mlp", "head"
EVERYWHERE = {f"lora_{layer}": True for layer in LAYERS}  # arguments of litgpt.lora.Config
Batch = dict[str, Tensor]


class LanguageModel(LightningModule):
    """Lightning module that learns to predict the next token.

    It trains with AdamW, and only the parameters with `requires_grad`.

    Args:
        gpt: the network, `litgpt.GPT` or `litgpt.lora.GPT`.
        learning_rate: the largest learning rate. The learning rate rises over the first tenth of the steps
            and then falls to nearly 0.
        loss: function (logits, labels) -> mean over the labels that count. Default: `next_token_loss`.

    Attributes:
        curve: a row {"step", "heldout_loss", "exact"} for each evaluation. Every rank evaluates all
            held-out batches.
        losses: the loss of each training step, over all ranks, in nats.
        seconds: the duration of each training step.
    """

    def __init__(
        self,
        gpt: GPT | lora.GPT,
        learning_rate: float,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.gpt, self.learning_rate = gpt, learning_rate
        self.loss = loss or next_token_loss
        self.curve, self.losses, self.seconds = [], [], []

    def configure_model(self) -> None:
        """Shard the network with FSDP2 if the strategy of the Trainer has set a device mesh."""
        mesh = self.device_mesh
        if mesh is None or isinstance(self.gpt, FSDPModule):
            return
        # Only `ModelParallelStrategy` sets a mesh, and it lets the model shard itself.
        for block in self.gpt.transformer.h:
            fully_shard(block, mesh=mesh["data_parallel"])
        fully_shard(self.gpt, mesh=mesh["data_parallel"])

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list[dict[str, Any]]]:
        """Return AdamW and the schedule of its learning rate, which changes in every step."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.learning_rate, betas=(0.9, 0.95))
        # One more than the number of steps, because Lightning reads the schedule once more at the end.
        steps = self.trainer.estimated_stepping_batches + 1
        rise = max(0.1, 2 / steps)  # OneCycleLR divides by zero below two steps
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.learning_rate, steps, pct_start=rise, cycle_momentum=False
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """Return the loss of a batch, weighted so that the average over ranks is that over all tokens."""
        logits, tokens = self.gpt(batch["input_ids"]), _counted(batch)
        # A mean over no label is nan, and so is 0 x nan. Then use a loss of 0 that depends on all weights.
        loss = self.loss(logits, batch["labels"]) if tokens else 0 * logits.sum()
        # Ranks have answers of different lengths, and strategies average the gradients of ranks. So the
        # loss of a rank must be weighted by its number of tokens. Otherwise two ranks would train another
        # model than a single process.
        sums = self.all_gather(torch.stack([loss.detach() * tokens, tokens])).reshape(-1, 2).sum(0)
        total = sums[1].clamp(min=1)  # 0 if no answer of the batch fitted into its length
        self.losses.append(float(sums[0] / total))
        return loss * tokens * self.trainer.world_size / total

    def on_validation_epoch_start(self) -> None:
        """Reset the sums of loss, tokens, right answers and answers."""
        self.sums = torch.zeros(4)

    def validation_step(self, batch: Batch, _: int) -> None:
        """Add a held-out batch to the sums."""
        logits, tokens = self.gpt(batch["input_ids"]), _counted(batch)
        loss, right = next_token_loss(logits, batch["labels"]), exact(logits, batch["labels"])
        answers = torch.ones_like(right).sum()
        self.sums += torch.stack([loss * tokens, tokens, right.sum(), answers]).cpu()

    def on_validation_epoch_end(self) -> None:
        """Append the means over all held-out batches to `curve`.

        Raises:
            DataError: no held-out answer fits into the length of the examples.
        """
        loss, tokens, right, answers = self.sums.tolist()
        if not tokens:
            raise DataError(
                "No held-out answer fits in after its prompt: make the examples longer."
            )
        row = {"step": self.global_step, "heldout_loss": loss / tokens, "exact": right / answers}
        self.curve.append(row)

    def on_train_batch_start(self, *_: Any) -> None:
        """Remember when the step began."""
        self.began = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        """Append the duration of the step to `seconds`."""
        self.seconds.append(time.perf_counter() - self.began)


def _counted(batch: Batch) -> Tensor:
    """Return the number of tokens that count in the loss."""
    return (batch["labels"][:, 1:] != IGNORED).sum().float()


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy in nats, where position t predicts label t + 1.

    Args:
        logits: (batch, tokens, vocabulary).
        labels: int64 (batch, tokens); IGNORED does not count.

    Returns:
        a float32 scalar; 0 if no label counts.
    """
    # In float32, because a sum of many losses has more digits than bfloat16.
    guesses, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
    total = F.cross_entropy(guesses, wanted, ignore_index=IGNORED, reduction="sum")
    return total / (wanted != IGNORED).sum().clamp(min=1)


def exact(logits: Tensor, labels: Tensor) -> Tensor:
    """Return whether every token of an answer is right, its end token included.

    A greedy decoder produces the same tokens as long as they are right, so the mean of the result is its
    accuracy. An example without an answer, because its prompt fills the whole length, is not right.

    Args:
        logits: (batch, tokens, vocabulary).
        labels: int64 (batch, tokens); IGNORED is not part of the answer.

    Returns:
        float32 (batch,): 1.0 for a right answer, else 0.0.
    """
    guesses, wanted = logits[:, :-1].argmax(-1), labels[:, 1:]
    counts = wanted != IGNORED
    return (((guesses == wanted) | ~counts).all(-1) & counts.any(-1)).float()


def padded(examples: list[tuple[list[int], list[int]]], end: int) -> Batch:
    """Return a batch of examples of different lengths, padded on the right with tokens that do not count.

    Args:
        examples: (ids, labels) of each example.
        end: id of the token that pads the ids. IGNORED pads the labels.

    Returns:
        "input_ids" and "labels", int64 (batch, length of the longest example).
    """
    ids, labels = ([torch.tensor(row) for row in rows] for rows in zip(*examples, strict=True))
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=end),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


def prompt(record: dict[str, str]) -> str:
    """Return the prompt of an example in alpaca's format.

    Args:
        record: "instruction" and "input", which may be empty.
    """
    return Alpaca().apply(record["instruction"], input=record["input"])


def quiet() -> None:
    """Hide Lightning's messages about devices, and its tips."""
    for name in ("lightning.pytorch", "lightning.fabric", "torchao"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")


def fit(trainer: Trainer, *arguments: Any) -> None:
    """Call `trainer.fit(*arguments)` so that the stop button of a notebook works as usual.

    Lightning turns an interrupt into an exit, and ignores the interrupts after it.

    Args:
        trainer: a Lightning Trainer.
        *arguments: the arguments of its `fit`.

    Raises:
        KeyboardInterrupt: the user interrupted the training.
    """
    try:
        trainer.fit(*arguments)
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from None


def small(vocabulary: int, layers: int = 2, width: int = 128, block_size: int = 256) -> Config:
    """Return the configuration of a small network with LLaMA's layers.

    It has RMSNorm, SwiGLU and rotary positions, and two thirds of a million parameters by default.

    Args:
        vocabulary: number of tokens of the tokenizer.
        layers: number of blocks. Default 2.
        width: width between the blocks. Default 128.
        block_size: largest number of tokens of an example. Default 256.
    """
    return Config(
        name="small",
        block_size=block_size,
        vocab_size=vocabulary,
        padded_vocab_size=vocabulary,
        n_layer=layers,
        n_head=4,
        n_embd=width,
        intermediate_size=8 * width // 3,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
    )


def with_lora(gpt: GPT, rank: int, alpha: float) -> lora.GPT:
    """Return a copy of a model with LoRA on every linear layer, in which only LoRA is trained.

    Args:
        gpt: the base model, which does not change.
        rank: rank of LoRA's matrices.
        alpha: LoRA's products are scaled by alpha / rank.

    Raises:
        ValueError: the copy has other weights than the base model; the message names them.
    """
    model = lora.GPT(lora.Config(**asdict(gpt.config), **EVERYWHERE, lora_r=rank, lora_alpha=alpha))
    missing, unexpected = model.load_state_dict(gpt.state_dict(), strict=False)
    differing = [name for name in missing if not lora.lora_filter(name, None)] + unexpected
    if differing:
        raise ValueError(f"the base model and its LoRA copy differ in {', '.join(differing)}")
    lora.mark_only_lora_as_trainable(model)
    return model


def merged(model: lora.GPT) -> GPT:
    """Return a model without LoRA that computes the same, with LoRA's products added to its weights.

    Args:
        model: a model from `with_lora`, which does not change.
    """
    model = copy.deepcopy(model)
    lora.merge_lora_weights(model)
    plain = GPT(Config(**{k: v for k, v in asdict(model.config).items() if "lora_" not in k}))
    weights = {
        name.replace(".linear.", "."): value
        for name, value in model.state_dict().items()
        if not lora.lora_filter(name, value)
    }
    plain.load_state_dict(weights)
    return plain


@torch.inference_mode()
def generate(
    gpt: GPT | lora.GPT, tokenizer: Tokenizer, prompt: str, limit: int = 32
) -> tuple[str, bool]:
    """Return the greedy continuation of a prompt, and whether the model ended it within the limit.

    Args:
        gpt: the model.
        tokenizer: its tokenizer.
        prompt: the text to continue.
        limit: largest number of tokens of the continuation. Default 32.

    Raises:
        DataError: prompt and continuation have more tokens than the model has positions.
    """
    training, device = gpt.training, next(gpt.parameters()).device
    ids = tokenizer.encode(prompt, device=device)
    if len(ids) + limit > gpt.max_seq_length:
        raise DataError(
            f"{len(ids)} tokens of the prompt and {limit} of the answer are more than the "
            f"{gpt.max_seq_length} for which the model has positions."
        )
    gpt.eval()  # dropout, if a model has it, would make the answer random
    gpt.set_kv_cache(batch_size=1, device=device)
    try:
        tokens = litgpt_generate(
            gpt,
            ids,
            len(ids) + limit,
            temperature=0.0,
            eos_id=tokenizer.eos_id,
            include_prompt=False,
        )
    finally:
        gpt.clear_kv_cache()
        gpt.train(training)
    ended = len(tokens) > 0 and int(tokens[-1]) == tokenizer.eos_id
    return tokenizer.decode(tokens[:-1] if ended else tokens).strip(), ended
