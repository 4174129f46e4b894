"""A LitGPT model under Lightning: trained from scratch or from a checkpoint, in full or with LoRA.

    tokenizer = train_tokenizer([documentation()], folder)
    model = LanguageModel(GPT(small(vocabulary=tokenizer.vocab_size)), learning_rate=2e-3)
    Trainer(max_steps=300).fit(model, loader)
    save(model.gpt, folder)          # a folder that litgpt's own commands read, too

A batch is a dict of "input_ids" and "labels", int64 of shape (batch, tokens), as LitGPT's
`SFTDataset` and its collate function make them. A label of IGNORED does not count.
"""

import copy
import json
import logging
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError

import torch
from lightning.pytorch import LightningModule
from litgpt import GPT, Config, Tokenizer, lora
from litgpt.generate.base import generate as litgpt_generate
from litgpt.prompts import Alpaca, save_prompt_style
from litgpt.utils import check_valid_checkpoint_dir, save_config
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from hvdlab.data import DataError

IGNORED = -100
END = "<|endoftext|>"
WEIGHTS = "lit_model.pth"  # LitGPT's name for them
# For Lightning's Trainer: count steps, not epochs, evaluate before the first, write and print nothing.
BY_STEPS = dict(
    check_val_every_n_epoch=None,
    num_sanity_val_steps=-1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
PLACES = "query", "key", "value", "projection", "mlp", "head"
EVERYWHERE = {f"lora_{place}": True for place in PLACES}  # for litgpt.lora.Config


class LanguageModel(LightningModule):
    """Predict the next token. Only parameters with `requires_grad` are trained.

    Args:
        gpt: the network, `litgpt.GPT` or `litgpt.lora.GPT`.
        learning_rate: the largest; it rises over the first tenth of the steps and falls to nearly 0.
        loss: a function of logits and labels, the mean over the labels that count.

    `curve` gets a row for each evaluation on held-out batches; every rank evaluates all of them.
    `losses` gets the loss of each training step, over all ranks, and `seconds` how long it took.
    """

    def __init__(self, gpt, learning_rate: float, loss: Callable | None = None):
        super().__init__()
        self.gpt, self.learning_rate = gpt, learning_rate
        self.loss = loss or next_token_loss
        self.curve, self.losses, self.seconds = [], [], []

    def configure_model(self):
        mesh = self.device_mesh
        if mesh is None or isinstance(self.gpt, FSDPModule):
            return
        # Only `ModelParallelStrategy` sets a mesh, and leaves it to the model to split itself.
        for block in self.gpt.transformer.h:
            fully_shard(block, mesh=mesh["data_parallel"])
        fully_shard(self.gpt, mesh=mesh["data_parallel"])

    def configure_optimizers(self):
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.learning_rate, betas=(0.9, 0.95))
        steps = self.trainer.estimated_stepping_batches + 1  # it is asked once more at the end
        rise = max(0.1, 2 / steps)  # of all steps; with less than two OneCycleLR divides by zero
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.learning_rate, steps, pct_start=rise, cycle_momentum=False
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def training_step(self, batch, _):
        logits, tokens = self.gpt(batch["input_ids"]), _counted(batch)
        # A mean over no label is nan, and 0 x nan too: then a loss of 0 that depends on all weights.
        loss = self.loss(logits, batch["labels"]) if tokens else 0 * logits.sum()
        # Ranks have answers of different lengths, and strategies average the gradients of ranks. So a
        # rank's loss must weigh as many tokens as it has: else two ranks train another model than one.
        sums = self.all_gather(torch.stack([loss.detach() * tokens, tokens])).reshape(-1, 2).sum(0)
        total = sums[1].clamp(min=1)  # no answer of the batch may have fitted into its length
        self.losses.append(float(sums[0] / total))
        return loss * tokens * self.trainer.world_size / total

    def on_validation_epoch_start(self):
        self.sums = torch.zeros(4)

    def validation_step(self, batch, _):
        logits, tokens = self.gpt(batch["input_ids"]), _counted(batch)
        loss, right = next_token_loss(logits, batch["labels"]), exact(logits, batch["labels"])
        answers = torch.ones_like(right).sum()
        self.sums += torch.stack([loss * tokens, tokens, right.sum(), answers]).cpu()

    def on_validation_epoch_end(self):
        loss, tokens, right, answers = self.sums.tolist()
        if not tokens:
            raise DataError(
                "No held-out answer fits in beside its prompt: give examples a larger length."
            )
        row = {"step": self.global_step, "heldout_loss": loss / tokens, "exact": right / answers}
        self.curve.append(row)

    def on_train_batch_start(self, *_):
        self.began = time.perf_counter()

    def on_train_batch_end(self, *_):
        self.seconds.append(time.perf_counter() - self.began)


def _counted(batch):
    return (batch["labels"][:, 1:] != IGNORED).sum().float()


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats: position t predicts label t + 1; labels of IGNORED do not count."""
    # In float32: a sum of many losses has more digits than bfloat16.
    guesses, wanted = logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()
    total = F.cross_entropy(guesses, wanted, ignore_index=IGNORED, reduction="sum")
    return total / (wanted != IGNORED).sum().clamp(min=1)


def exact(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """1.0 for each example whose answer is right in every token, its end too, else 0.0.

    A greedy decoder writes the same tokens as long as it is right, so this is its accuracy. An example
    without an answer, because its prompt fills the whole length, is not right.
    """
    guesses, wanted = logits[:, :-1].argmax(-1), labels[:, 1:]
    counts = wanted != IGNORED
    return (((guesses == wanted) | ~counts).all(-1) & counts.any(-1)).float()


def padded(examples: list[tuple[list[int], list[int]]], end: int) -> dict[str, torch.Tensor]:
    """One batch of (ids, labels) of different lengths, padded on the right by what does not count."""
    ids, labels = ([torch.tensor(row) for row in rows] for rows in zip(*examples, strict=True))
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=end),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


def prompt(record: dict[str, str]) -> str:
    """What a model is asked: an instruction, and its input where it has one, in alpaca's words."""
    return Alpaca().apply(record["instruction"], input=record["input"])


def quiet() -> None:
    """Leave out what Lightning says of itself: which devices there are, and tips."""
    for name in ("lightning.pytorch", "lightning.fabric", "torchao"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")


def fit(trainer, *arguments) -> None:
    """`trainer.fit(*arguments)`, which the stop button interrupts as it does everything else.

    Lightning makes an exit of an interrupt, and ignores the next ones.
    """
    try:
        trainer.fit(*arguments)
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise KeyboardInterrupt from None


def small(vocabulary: int, layers: int = 2, width: int = 128, block_size: int = 256) -> Config:
    """The shape of LLaMA (RMSNorm, SwiGLU, rotary positions) with two thirds of a million parameters."""
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
    """A copy of a model with LoRA on every linear layer; nothing else is trained."""
    model = lora.GPT(lora.Config(**asdict(gpt.config), **EVERYWHERE, lora_r=rank, lora_alpha=alpha))
    missing, unexpected = model.load_state_dict(gpt.state_dict(), strict=False)
    strangers = [name for name in missing if not lora.lora_filter(name, None)] + unexpected
    if strangers:
        raise ValueError(f"the base model and its LoRA copy differ in {', '.join(strangers)}")
    lora.mark_only_lora_as_trainable(model)
    return model


def merged(model: lora.GPT) -> GPT:
    """The plain model that computes the same: LoRA's products are added to a copy of the weights."""
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


def documentation() -> str:
    """The language reference that comes with every Python: half a megabyte of English about Python."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def train_tokenizer(texts: Iterable[str], folder: Path, vocabulary: int = 1024) -> Tokenizer:
    """Learn a byte-pair encoding, digit by digit for numbers, and write it where LitGPT reads it."""
    from tokenizers import Tokenizer as Processor
    from tokenizers import decoders, models, pre_tokenizers, trainers

    processor = Processor(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    processor.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    processor.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    processor.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    processor.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return Tokenizer(folder)


def save(gpt: GPT, folder: Path) -> None:
    """Write weights and shape in LitGPT's layout; the tokenizer is to be there already."""
    save_config(gpt.config, folder)
    save_prompt_style(Alpaca(), folder)
    part = folder / f"{WEIGHTS}.part"
    torch.save({"model": gpt.state_dict()}, part)
    part.replace(folder / WEIGHTS)


def load(folder: Path) -> tuple[GPT, Tokenizer]:
    """Read a checkpoint in LitGPT's layout: our own, or one of `litgpt download`. No pickle is run.

    Raises:
        FileNotFoundError: a file of it is not there; the message names it.
        DataError: weights that cannot be read, or are of another shape.
    """
    check_valid_checkpoint_dir(folder, verbose=False, raise_error=True)
    gpt = GPT(Config.from_file(folder / "model_config.yaml"))
    try:
        state = torch.load(folder / WEIGHTS, map_location="cpu", weights_only=True, mmap=True)
        gpt.load_state_dict(state.get("model", state))
    except (OSError, RuntimeError, UnpicklingError) as error:
        why = " ".join(str(error).split())[:200]
        raise DataError(
            f"{folder / WEIGHTS} does not hold the weights of its model: {why}"
        ) from None
    return gpt, Tokenizer(folder)


@torch.inference_mode()
def generate(gpt, tokenizer: Tokenizer, prompt: str, limit: int = 32) -> tuple[str, bool]:
    """The likeliest continuation of a prompt, and whether it ended by itself within `limit` tokens.

    Raises:
        DataError: more tokens than the model has positions for.
    """
    training, device = gpt.training, next(gpt.parameters()).device
    ids = tokenizer.encode(prompt, device=device)
    if len(ids) + limit > gpt.max_seq_length:
        raise DataError(
            f"{len(ids)} tokens of the prompt and {limit} of the answer are more than the "
            f"{gpt.max_seq_length} for which the model has positions."
        )
    gpt.eval()  # dropout, where a model has it, would make the answer a lottery
    gpt.set_kv_cache(batch_size=1, device=device)
    try:
        found = litgpt_generate(
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
    ended = len(found) > 0 and int(found[-1]) == tokenizer.eos_id
    return tokenizer.decode(found[:-1] if ended else found).strip(), ended
