"""Pretrain, fine-tune and prompt a language model: LitGPT's GPT under Lightning, on any number of ranks.

    python labs/language_model.py pretrain --out runs/base
    mpirun -np 2 python labs/language_model.py finetune --checkpoint runs/base --out runs/tuned --strategy ddp
    python labs/language_model.py generate --checkpoint runs/tuned "Count the letters." --input "a-b-c"

`hvdlab run -np 2`, `torchrun --nproc-per-node 2` and `srun --ntasks-per-node 2 python` start it as well,
and `--devices 2` lets Lightning itself start the ranks. --config reads settings from a file. An option on
the command line takes precedence over the file:

    torchrun --nproc-per-node 2 labs/language_model.py finetune --config labs/configs/lora.yaml --steps 50

Rank 0 prints the loss on held-out records and writes curve.csv, losses.csv (of the training steps,
over all ranks) and a checkpoint in LitGPT's layout into the folder --out.
"""

import argparse
import csv
import os
import signal
import sys
from pathlib import Path

import torch
import yaml
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from litgpt import GPT
from litgpt.config import configs
from litgpt.data import SFTDataset, get_sft_collate_fn
from litgpt.model import Block
from litgpt.utils import copy_config_files
from torch.utils.data import DataLoader, DistributedSampler

from hvdlab.arguments import above_zero, positive, whole_number
from hvdlab.data import DataError
from hvdlab.data.instructions import load_records, split, synthetic_records
from hvdlab.torch import language_model as lm
from hvdlab.torch.device import choose
from hvdlab.torch.process_group import group_device, nccl_version, rendezvous

# What --strategy chooses. `world_size` is the number of all ranks.
STRATEGIES = {
    "auto": lambda world_size: "auto",  # one device, or DDP where there are several
    "ddp": lambda world_size: "ddp",
    "fsdp": lambda world_size: FSDPStrategy(auto_wrap_policy={Block}, state_dict_type="full"),
    # FSDP2; LanguageModel.configure_model splits the layers.
    "fsdp2": lambda world_size: ModelParallelStrategy(
        data_parallel_size=world_size, tensor_parallel_size=1, save_distributed_checkpoint=False
    ),
    "deepspeed": lambda world_size: DeepSpeedStrategy(stage=2),
}
PRECISIONS = "32-true", "16-mixed", "bf16-mixed", "bf16-true"


def parse_args(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="language_model.py", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shown = dict(formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    pretrain = commands.add_parser("pretrain", help="a small model from scratch", **shown)
    finetune = commands.add_parser("finetune", help="a checkpoint on instruction records", **shown)
    generate = commands.add_parser("generate", help="the answer to an instruction", **shown)

    add = pretrain.add_argument
    add("--text", type=Path, nargs="+", help="files; default: Python's reference")
    add("--vocabulary", type=whole_number(257), default=1024, help="tokens of the tokenizer")
    add("--layers", type=positive, default=2)
    add("--width", type=whole_number(8, 8), default=128)
    add("--length", type=positive, default=128, help="tokens of an example")
    add = finetune.add_argument
    add(
        "--data",
        help="a .json or .jsonl file, or OWNER/NAME/FILE of the hub; default: synthetic ones",
    )
    add("--held-out", type=positive, default=100, help="records for the evaluation")
    add("--length", type=positive, default=256, help="longer examples are cut")
    add("--method", choices=("full", "lora"), default="full")
    add("--rank", type=positive, default=8, help="of LoRA")
    add("--alpha", type=float, default=16, help="of LoRA")
    for command in (pretrain, finetune):
        add = command.add_argument
        add("--out", type=Path, required=True, help="folder for the checkpoint")
        add("--config", type=Path, help="a YAML file with any of these settings")
        add("--steps", type=positive, default=200)
        add("--batch-size", type=positive, default=16, help="examples a step, per rank")
        add("--lr", type=above_zero, default=3e-3, help="the largest learning rate")
        add("--every", type=positive, default=50, help="steps between two evaluations")
        add("--seed", type=whole_number(0), default=1)
        add("--strategy", choices=STRATEGIES, default="auto")
        add("--precision", choices=PRECISIONS, default="32-true")
        add("--devices", type=positive, help="let Lightning start so many ranks here")
    for command in (finetune, generate):
        command.add_argument("--checkpoint", required=True, help="folder in LitGPT's layout, or a "
                             "hub name that `litgpt download` knows")  # fmt: skip
    add = generate.add_argument
    add("instruction")
    add("--input", default="", help="what the instruction is about")
    add("--limit", type=positive, default=64, help="tokens at most")
    add("--int8", action="store_true", help="8-bit weights (torchao)")
    return parser.parse_args(_with_config(sys.argv[1:] if arguments is None else arguments))


def _with_config(arguments):
    """Return the arguments with the settings of --config inserted right after the command."""
    config = argparse.ArgumentParser(prog="language_model.py", add_help=False, allow_abbrev=False)
    config.add_argument("--config", type=Path)
    if not (path := config.parse_known_args(arguments)[0].config):
        return arguments
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        came = getattr(error, "strerror", None) or "no YAML"
        raise SystemExit(f"language_model.py: --config {path}: {came}") from None
    if not isinstance(settings, dict):
        raise SystemExit(f"language_model.py: --config {path}: expected lines such as `steps: 200`")
    typed = []
    for name, value in settings.items():
        option = f"--{str(name).replace('_', '-')}"
        typed += [option, *map(str, value)] if isinstance(value, list) else [f"{option}={value}"]
    return [*arguments[:1], *typed, *arguments[1:]]


def main(arguments: list[str] | None = None):
    args = parse_args(arguments)
    lm.quiet()
    if not getattr(args, "devices", None):
        rendezvous()
    try:
        {"pretrain": pretrain, "finetune": finetune, "generate": generate}[args.command](args)
    except (DataError, OSError) as error:
        sys.exit(f"language_model.py: {error}")
    except SIGTERMException:  # Lightning would end with exit code 0
        sys.exit(128 + signal.SIGTERM)


def pretrain(args):
    files = [path.read_text(encoding="utf-8", errors="replace") for path in args.text or ()]
    text = "\n\n".join(files) or lm.documentation()
    prompts = map(lm.prompt, synthetic_records())  # the tokenizer learns their words too

    def examples():
        ids = lm.Tokenizer(args.out).encode(text).long()
        starts = range(0, len(ids) - args.length, args.length)
        parts = [ids[start : start + args.length + 1] for start in starts]
        rows = [{"input_ids": part, "labels": part} for part in parts]
        return rows[len(rows) // 20 :], rows[: len(rows) // 20]

    def tokenizer():
        lm.train_tokenizer([text, *prompts], args.out, args.vocabulary)

    torch.manual_seed(args.seed)
    positions = max(256, args.length + 1)  # + 1: the last token of a part is only a label
    gpt = GPT(lm.small(args.vocabulary, args.layers, args.width, positions))
    gpt.apply(gpt._init_weights)  # LitGPT's own: normal, with a deviation of 0.02
    fit(args, gpt, Examples(args, examples, prepare=tokenizer))


def finetune(args):
    folder = checkpoint_folder(args.checkpoint)
    gpt, tokenizer = lm.load(folder)
    records = load_records(args.data) if args.data else synthetic_records()
    length = min(args.length, gpt.max_seq_length)

    def examples():
        # mask_prompt: the model learns to write the answer, not the prompt.
        return [
            SFTDataset(part, tokenizer, "alpaca", length, mask_prompt=True)
            for part in split(records, args.held_out, args.seed)
        ]

    def settings():
        args.out.mkdir(parents=True, exist_ok=True)
        copy_config_files(folder, args.out)
        print(f"{len(records)} records, {args.data or 'synthetic'}", flush=True)

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
    answer, ended = lm.generate(gpt, tokenizer, lm.prompt(asked), args.limit)
    print(answer if ended else f"{answer} ... (no end within {args.limit} tokens)")


class Examples(LightningDataModule):
    """Training and held-out examples. One rank calls `prepare`, and the others wait for it."""

    def __init__(self, args, examples, collate=None, *, prepare):
        super().__init__()
        self.prepare_data_per_node = False  # all nodes see the same folder
        self.args, self.examples, self.collate, self.prepare_data = args, examples, collate, prepare

    def setup(self, stage):
        self.training, self.held_out = self.examples()
        step = self.args.batch_size * self.trainer.world_size
        if len(self.training) < step or not len(self.held_out):
            counts = f"{len(self.training)} examples and {len(self.held_out)} held out"
            raise DataError(f"{counts} are too few for a step of {step}.")

    def train_dataloader(self):
        # All ranks shard the same permutation, so N ranks together see the batches of a single process.
        ranks, rank, seed = self.trainer.world_size, self.trainer.global_rank, self.args.seed
        sampler = DistributedSampler(self.training, ranks, rank, seed=seed, drop_last=True)
        how = dict(sampler=sampler, drop_last=True, collate_fn=self.collate)
        return DataLoader(self.training, self.args.batch_size, **how)

    def val_dataloader(self):
        return DataLoader(self.held_out, self.args.batch_size, collate_fn=self.collate)


def fit(args, gpt, examples):
    """Train, evaluate at the start and every few steps, and let rank 0 write the results."""
    trainer, model = make_trainer(args), lm.LanguageModel(gpt, args.lr)
    kind = type(gpt)  # FSDP2 changes the class of the network
    trainer.fit(model, datamodule=examples)
    # Gathered from all ranks if they were split.
    weights = trainer.strategy.lightning_module_state_dict()
    if trainer.is_global_zero:
        whole = kind(gpt.config)
        whole.load_state_dict({name.removeprefix("gpt."): value for name, value in weights.items()})
        lm.save(lm.merged(whole) if isinstance(whole, lm.lora.GPT) else whole, args.out)
        write(args.out / "curve.csv", model.curve)
        steps = enumerate(zip(model.losses, model.seconds, strict=True), 1)
        rows = [{"step": n, "loss": loss, "seconds": seconds} for n, (loss, seconds) in steps]
        write(args.out / "losses.csv", rows)


class OneDeviceEach(TorchElasticEnvironment):
    """Tell Lightning that each rank is a node with one device, so that it uses the device of our choice."""

    def local_rank(self):
        return 0

    def node_rank(self):
        return self.global_rank()


def make_trainer(args):
    if ranks := args.devices:  # Lightning starts this script again for each further rank
        here = int(os.environ.get("LOCAL_RANK", 0))
        mine = choose(here, lambda gpus: [gpus] * ranks, nccl_version(), share=False)
        where = dict(devices=ranks)
    else:  # a launcher has started the ranks, and `rendezvous` has set torchrun's variables
        ranks, mine = int(os.environ["WORLD_SIZE"]), group_device(share=False)
        devices = 1 if mine.device.type == "cpu" else [mine.device.index]
        where = dict(devices=devices, num_nodes=ranks, plugins=[OneDeviceEach()])
    kind = mine.device.type
    if kind == "cpu" and args.strategy in ("fsdp", "deepspeed"):
        sys.exit(
            f"language_model.py: --strategy {args.strategy}: Lightning runs it on GPUs only, and expects one "
            f"of its own for each of the {ranks} ranks; auto, ddp and fsdp2 run on processors too."
        )
    if args.strategy == "fsdp2" and args.precision == "16-mixed":
        sys.exit(
            "language_model.py: --strategy fsdp2: Lightning has no --precision 16-mixed for it; take "
            "bf16-mixed, or --strategy ddp."
        )
    # Lightning would use bf16-mixed without a message.
    if kind == "cpu" and args.precision == "16-mixed":
        sys.exit(
            f"language_model.py: --precision 16-mixed: needs a GPU of its own for each of the {ranks} ranks; "
            "processors have bf16-mixed."
        )
    return Trainer(
        accelerator=kind,
        strategy=STRATEGIES[args.strategy](ranks),
        precision=args.precision,
        **where,
        max_steps=args.steps,
        val_check_interval=args.every,
        use_distributed_sampler=False,  # Examples makes its own sampler
        callbacks=[Report()],
        **lm.BY_STEPS,
    )


class Report(Callback):
    def on_validation_end(self, trainer, model):
        if trainer.is_global_zero:
            print("step {step:5d}  held-out loss {heldout_loss:.3f}  exact {exact:.3f}".format(
                **model.curve[-1]), flush=True)  # fmt: skip


def checkpoint_folder(name):
    """Return the folder of a checkpoint. A single process downloads a name of the hub into checkpoints/."""
    for folder in (Path(name), Path("checkpoints", name)):
        if folder.is_dir():
            return folder
    known = [f"{config['hf_config']['org']}/{config['hf_config']['name']}" for config in configs]
    if name not in known or os.environ.get("WORLD_SIZE") != "1":
        raise FileNotFoundError(
            f"--checkpoint {name} is no folder. Make one with `language_model.py pretrain --out {name}`, "
            "or first download one that `litgpt download list` names: `litgpt download ORG/NAME`."
        )
    from litgpt.scripts.download import download_from_hub

    try:
        download_from_hub(name)
    except Exception as error:  # the network, the hub and the name each raise other exceptions
        why = str(error).strip().splitlines()[0]
        says = f"--checkpoint {name} is no folder, and was not downloaded from the Hugging Face hub: {why}"
        raise FileNotFoundError(says) from None
    return Path("checkpoints", name)


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
