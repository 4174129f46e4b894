"""Read and write checkpoints of language models in LitGPT's layout, and train their tokenizer.

`hvdlab.torch.language_model` hands these functions on.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from pickle import UnpicklingError

import torch
from litgpt import GPT, Config, Tokenizer
from litgpt.prompts import Alpaca, save_prompt_style
from litgpt.utils import check_valid_checkpoint_dir, save_config

from hvdlab.data import DataError

END = "<|endoftext|>"
WEIGHTS = "lit_model.pth"  # LitGPT's name of the file


def documentation() -> str:
    """Return Python's language reference, which every Python contains: half a megabyte of English text."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def train_tokenizer(texts: Iterable[str], folder: Path, vocabulary: int = 1024) -> Tokenizer:
    """Learn a byte-pair encoding, write it to a folder, and return it as LitGPT's tokenizer.

    Every digit is a separate token.

    Args:
        texts: the texts to learn from.
        folder: where to write it. The folder is made if it does not exist.
        vocabulary: number of tokens. Default 1024.
    """
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
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    return Tokenizer(folder)


def save(gpt: GPT, folder: Path) -> None:
    """Write the weights and the configuration of a model in LitGPT's layout.

    Args:
        gpt: the model.
        folder: a folder that contains the tokenizer already.
    """
    save_config(gpt.config, folder)
    save_prompt_style(Alpaca(), folder)
    part = folder / f"{WEIGHTS}.part"
    torch.save({"model": gpt.state_dict()}, part)
    part.replace(folder / WEIGHTS)


def load(folder: Path) -> tuple[GPT, Tokenizer]:
    """Return the model and the tokenizer of a checkpoint in LitGPT's layout.

    No pickled code is executed.

    Args:
        folder: a folder from `save`, or from `litgpt download`.

    Raises:
        FileNotFoundError: a file of the checkpoint is missing; the message names it.
        DataError: the weights cannot be read, or they have other shapes than the model.
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
