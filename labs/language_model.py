"""Pretrain, fine-tune and ask a language model: LitGPT's GPT under Lightning, on any number of ranks.

    python labs/language_model.py pretrain --out runs/base
    mpirun -np 2 python labs/language_model.py finetune --checkpoint runs/base --out runs/tuned --strategy ddp
    python labs/language_model.py generate --checkpoint runs/tuned "Count the letters." --input "a-b-c"

`hvdlab run -np 2`, `torchrun --nproc-per-node 2` and `srun --ntasks-per-node 2 python` start it as well,
and `--devices 2` lets Lightning itself start the ranks. A file of settings saves typing, and what is
typed overrides it:

    torchrun --nproc-per-node 2 labs/language_model.py finetune --config labs/configs/lora.yaml --steps 50

Rank 0 prints the loss on held-out records and writes curve.csv, losses.csv (of the training steps,
over all ranks) and a checkpoint in LitGPT's layout into the folder --out.
"""

import argparse
import csv
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import yaml
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from litgpt import GPT
from litgpt.data import SFTDataset, get_sft_collate_fn
from litgpt.model import Block
from litgpt.prompts import Alpaca
from litgpt.utils import copy_config_files
from torch.utils.data import DataLoader, DistributedSampler

from hvdlab.data import DataError
from hvdlab.instructions import load_records, split, synthetic_records
from hvdlab.torch import language_model as lm
from hvdlab.torch.process_group import rendezvous

# What --strategy chooses. `world_size` is that of all ranks.
STRATEGIES = {
    "auto": lambda world_size: "auto",  # one device, or DDP where there are several
    "ddp": lambda world_size: "ddp",
    "fsdp": lambda world_size: FSDPStrategy(auto_wrap_policy={Block}, state_dict_type="full"),
    # FSDP2; LanguageModel.configure_model says what is split.
    "fsdp2": lambda world_size: ModelParallelStrategy(
        data_parallel_size=world_size, tensor_parallel_size=1, save_distributed_checkpoint=False
    ),
    "deepspeed": lambda world_size: DeepSpeedStrategy(stage=2),
}


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="language_model.py", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shown = dict(formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    pretrain = commands.add_parser("pretrain", help="a small model from scratch", **shown)
    finetune = commands.add_parser("finetune", help="a checkpoint on instruction records", **shown)
    generate = commands.add_parser("generate", help="the answer to an instruction", **shown)

    pretrain.add_argument("--text", type=Path, nargs="+", help="files; default: Python's reference")
    pretrain.add_argument("--vocabulary", type=int, default=1024, help="tokens of the tokenizer")
    pretrain.add_argument("--layers", type=int, default=2)
    pretrain.add_argument("--width", type=int, default=128)
    pretrain.add_argument("--length", type=int, default=128, help="tokens of an example")
    finetune.add_argument("--data", help="a .json or .jsonl file, or OWNER/NAME/FILE of the hub; "
                          "default: synthetic records")  # fmt: skip
    finetune.add_argument("--held-out", type=int, default=100, help="records for the evaluation")
    finetune.add_argument("--length", type=int, default=256, help="longer examples are cut")
    finetune.add_argument("--method", choices=("full", "lora"), default="full")
    finetune.add_argument("--rank", type=int, default=8, help="of LoRA")
    finetune.add_argument("--alpha", type=float, default=16, help="of LoRA")
    for command, rate, steps in ((pretrain, 3e-3, 200), (finetune, 3e-3, 200)):
        command.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
        command.add_argument("--config", type=Path, help="a YAML file with any of these settings")
        command.add_argument("--steps", type=int, default=steps)
        command.add_argument("--batch-size", type=int, default=16, help="examples a step, per rank")
        command.add_argument("--lr", type=float, default=rate, help="the largest learning rate")
        command.add_argument("--every", type=int, default=50, help="steps between two evaluations")
        command.add_argument("--seed", type=int, default=1)
        command.add_argument("--strategy", choices=STRATEGIES, default="auto")
        command.add_argument("--precision", default="32-true", help="such as bf16-mixed, bf16-true")
        command.add_argument("--devices", type=int, help="let Lightning start so many ranks here")
    for command in (finetune, generate):
        command.add_argument("--checkpoint", required=True, help="folder in LitGPT's layout, or a "
                             "hub name that `litgpt download` knows")  # fmt: skip
    generate.add_argument("instruction")
    generate.add_argument("--input", default="", help="what the instruction is about")
    generate.add_argument("--limit", type=int, default=64, help="tokens at most")
    generate.add_argument("--int8", action="store_true", help="8-bit weights (torchao)")
    return parser.parse_args(_with_config(sys.argv[1:] if arguments is None else arguments))


def _with_config(arguments):
    """The settings of --config, as if they were typed right after the command."""
    if "--config" not in arguments[:-1]:
        return arguments
    path = Path(arguments[arguments.index("--config") + 1])
    try:
        settings = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        came = getattr(error, "strerror", None) or "no YAML"
        raise SystemExit(f"language_model.py: --config {path}: {came}") from None
    if not isinstance(settings, dict):
        raise SystemExit(f"language_model.py: --config {path}: expected lines such as `steps: 200`")
    typed = [f"--{str(name).replace('_', '-')}={value}" for name, value in settings.items()]
    return [*arguments[:1], *typed, *arguments[1:]]


def main(arguments: list[str] | None = None):
    args = parse_args(arguments)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    if not getattr(args, "devices", None):
        rendezvous()
    try:
        {"pretrain": pretrain, "finetune": finetune, "generate": generate}[args.command](args)
    except (DataError, FileNotFoundError) as error:
        sys.exit(f"language_model.py: {error}")


def pretrain(args):
    text = "\n\n".join(path.read_text() for path in args.text) if args.text else lm.documentation()
    prompts = [prompt(record) for record in synthetic_records()]  # whose words it shall know, too

    def examples():
        ids = lm.Tokenizer(args.out).encode(text).long()
        starts = range(0, len(ids) - args.length, args.length)
        parts = [ids[start : start + args.length + 1] for start in starts]
        rows = [{"input_ids": part, "labels": part} for part in parts]
        return rows[len(rows) // 20 :], rows[: len(rows) // 20]

    def tokenizer():
        lm.train_tokenizer([text, *prompts], args.out, args.vocabulary)

    torch.manual_seed(args.seed)
    gpt = GPT(lm.small(args.vocabulary, args.layers, args.width, max(256, args.length)))
    gpt.apply(gpt._init_weights)  # LitGPT's own: normal, with a deviation of 0.02
    fit(args, gpt, Examples(args, examples, prepare=tokenizer))


def finetune(args):
    folder = checkpoint_folder(args.checkpoint)
    gpt, tokenizer = lm.load(folder)
    records = load_records(args.data) if args.data else synthetic_records()
    length = min(args.length, gpt.max_seq_length)

    def examples():
        # mask_prompt: the model shall learn to answer, not to ask.
        return [
            SFTDataset(part, tokenizer, "alpaca", length, mask_prompt=True)
            for part in split(records, args.held_out, args.seed)
        ]

    def settings():
        args.out.mkdir(parents=True, exist_ok=True)
        copy_config_files(folder, args.out)
        print(
            f"{len(records)} records of {args.data or 'no person: they are synthetic'}", flush=True
        )

    torch.manual_seed(args.seed)
    if args.method == "lora":
        gpt = lm.with_lora(gpt, args.rank, args.alpha)
    fit(args, gpt, Examples(args, examples, get_sft_collate_fn(), prepare=settings))


def generate(args):
    gpt, tokenizer = lm.load(checkpoint_folder(args.checkpoint))
    gpt.to("cuda" if torch.cuda.is_available() else "cpu")
    if args.int8:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(gpt, Int8WeightOnlyConfig())
    asked = {"instruction": args.instruction, "input": args.input}
    answer, ended = lm.generate(gpt, tokenizer, prompt(asked), args.limit)
    print(answer if ended else f"{answer} ... (no end within {args.limit} tokens)")


class Examples(LightningDataModule):
    """Training and held-out examples. `prepare` is called by one rank; the others wait for it."""

    def __init__(self, args, examples, collate=None, *, prepare):
        super().__init__()
        self.prepare_data_per_node = False  # the folder is one that all nodes see
        self.args, self.examples, self.collate, self.prepare_data = args, examples, collate, prepare

    def setup(self, stage):
        self.training, self.held_out = self.examples()
        step = self.args.batch_size * self.trainer.world_size
        if len(self.training) < step:
            raise DataError(f"{len(self.training)} examples are too few for a step of {step}.")

    def train_dataloader(self):
        # One permutation for all ranks, of which each takes its share: N ranks see the batches of one.
        sampler = DistributedSampler(
            self.training,
            num_replicas=self.trainer.world_size,
            rank=self.trainer.global_rank,
            seed=self.args.seed,
            drop_last=True,
        )
        return DataLoader(
            self.training,
            self.args.batch_size,
            sampler=sampler,
            drop_last=True,
            collate_fn=self.collate,
        )

    def val_dataloader(self):
        return DataLoader(self.held_out, self.args.batch_size, collate_fn=self.collate)


def fit(args, gpt, examples):
    """Train, evaluate before, meanwhile and after, and let rank 0 write what came of it."""
    trainer, model = make_trainer(args), lm.LanguageModel(gpt, args.lr)
    whole = type(gpt)(gpt.config)  # before a strategy splits it
    trainer.fit(model, datamodule=examples)
    weights = trainer.strategy.lightning_module_state_dict()  # gathered, where it was split
    if trainer.is_global_zero:
        whole.load_state_dict({name.removeprefix("gpt."): value for name, value in weights.items()})
        lm.save(lm.merged(whole) if isinstance(whole, lm.lora.GPT) else whole, args.out)
        write(args.out / "curve.csv", model.curve)
        steps = enumerate(zip(model.losses, model.seconds, strict=True), 1)
        rows = [{"step": n, "loss": loss, "seconds": seconds} for n, (loss, seconds) in steps]
        write(args.out / "losses.csv", rows)


def make_trainer(args):
    if args.strategy in ("fsdp", "deepspeed") and not torch.cuda.is_available():
        sys.exit(
            f"language_model.py: --strategy {args.strategy}: Lightning runs it on GPUs only, and there is "
            "none here; auto, ddp and fsdp2 run on processors too."
        )
    if args.devices:  # Lightning starts this script again, once for each further rank
        placed, world_size = dict(devices=args.devices), args.devices
    else:  # the ranks are there, and `rendezvous` has told what their launcher said, in torchrun's words
        rank, world_size, local = (
            int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        )
        os.environ.setdefault(
            "GROUP_RANK", str(rank // local)
        )  # torchrun's word for the node's number
        placed = dict(
            devices=local, num_nodes=world_size // local, plugins=[TorchElasticEnvironment()]
        )
    return Trainer(
        accelerator="auto",
        strategy=STRATEGIES[args.strategy](world_size),
        precision=args.precision,
        **placed,
        max_steps=args.steps,
        val_check_interval=args.every,
        check_val_every_n_epoch=None,  # count steps, not epochs
        num_sanity_val_steps=-1,  # the first evaluation is before the first step
        use_distributed_sampler=False,  # Examples makes its own
        callbacks=[Report()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


class Report(Callback):
    def on_validation_end(self, trainer, model):
        if trainer.is_global_zero:
            print("step {step:5d}  held-out loss {heldout_loss:.3f}  exact {exact:.3f}".format(
                **model.curve[-1]), flush=True)  # fmt: skip


def prompt(record):
    return Alpaca().apply(record["instruction"], input=record["input"])


def checkpoint_folder(name):
    """The folder of a checkpoint. A name of the hub is downloaded into checkpoints/, by one rank alone."""
    for folder in (Path(name), Path("checkpoints", name)):
        if folder.is_dir():
            return folder
    if name.count("/") != 1 or os.environ.get("WORLD_SIZE") != "1":
        raise FileNotFoundError(
            f"--checkpoint {name} is no folder. Make one with `language_model.py pretrain --out {name}`, "
            "or download a model first: `litgpt download ORG/NAME`."
        )
    from litgpt.scripts.download import download_from_hub

    try:
        download_from_hub(name)
    except Exception as error:  # of the network, of the hub, of the name: each is a kind of its own
        why = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"--checkpoint {name} is no folder, and no model of the Hugging Face hub: {why}"
        ) from None
    return Path("checkpoints", name)


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
