# %% [markdown]
# # Lab 15: Fine-tuning a language model
#
# **Time:** 90 minutes, five of them computing. **You teach** a language model to follow instructions, in full and with LoRA,
# and measure what each costs in memory, time and loss. You find three mistakes of which none raises an error.
# **You need** PyTorch, lab 9 (mixed precision) and lab 12 (DDP and sharding).
#
# The engines are [Lightning](https://lightning.ai/docs/pytorch/stable/) and [LitGPT](https://github.com/Lightning-AI/litgpt).
# The model has two thirds of a million parameters, and two cores are enough. The same script, with other settings, fine-tunes a
# checkpoint with billions of them on GPUs.

# %%
import os
from dataclasses import asdict
from functools import cache, partial
from timeit import timeit

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Trainer
from litgpt import lora
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from hvdlab.course.experiment import LABS, WORK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, overlay, predicted
from hvdlab.data import DataError
from hvdlab.data.instructions import load_records, split, synthetic_records
from hvdlab.exercises import lab15_fine_tuning as exercises
from hvdlab.launch import run
from hvdlab.torch import language_model as lm
from hvdlab.torch.memory import held, peak

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the processor for all ranks, also where there are GPUs
lm.quiet()
SCRIPT, FOLDER = LABS / "language_model.py", WORK / "language_model"

# %% [markdown]
# This lab uses processors, also where there are GPUs. The numbers that yours are compared with were measured there: it compares the
# losses of two ranks with those of one to several digits, and seconds with seconds. `labs/language_model.py`, started by hand, uses a GPU
# per rank.
#
# ## Look at the records
#
# Alpaca (Taori et al. 2023) turned a model that continues texts into one that follows instructions, with 52,000 records
# of *instruction*, *input* and *output*. The layout stayed. The records below are **synthetic**: small questions,
# made by a program, so that a tiny model can learn to answer them and being right can be counted. With a file of your own
# (`alpaca.json` or `alpaca.jsonl` in the folder `HVDLAB_DATA`) the last part of this lab uses that, too.

# %%
RECORDS = synthetic_records()
try:
    OWN = load_records()
    print(f"{len(OWN)} records of people were found")
except DataError as error:
    OWN = []
    print(error)
pd.DataFrame(RECORDS[:6])

# %% [markdown]
# ## Train a base model
#
# Fine-tuning begins with a model that knows a language. Ours learns some English from the reference that comes with every
# Python, half a megabyte, with a tokenizer that is trained on the spot: byte pairs (Sennrich et al. 2016), 1024 tokens. One script
# does it on two ranks. Look into it: `LanguageModel` (in `hvdlab.torch.language_model`) is the model with its training
# step, `Trainer` is Lightning's loop, and `--strategy` says how ranks share the work.
#
# A model that knows nothing gives each of 1024 tokens the same chance. What is its loss, in nats?

# %%
prediction = None  # the loss before the first step

# %%
steps = by_run_length(quick=9, learner=200, reference=200)
settings = "--strategy", "ddp", "--steps", steps, "--every", steps // 3, "--batch-size", 8
run(SCRIPT, "pretrain", "--out", FOLDER / "base", *settings, ranks=2, timeout=600)
gpt, tokenizer = lm.load(FOLDER / "base")
print(f"{sum(p.numel() for p in gpt.parameters()):,} parameters")
print(f"ln 1024 = {np.log(1024):.3f}; you said {prediction}")

# %%
for text in ("The return statement", "If a class"):
    print(text, "...", " ".join(lm.generate(gpt, tokenizer, text, limit=30)[0].split()))


def answers(gpt, records, limit=16):
    """What a model answers to records, and whether it ended by itself."""
    rows = []
    for record in records:
        answer, ended = lm.generate(gpt, tokenizer, lm.prompt(record), limit)
        rows.append({**record, "answer": answer, "ended": ended})
    return pd.DataFrame(rows)


print(lm.prompt(RECORDS[0]))
answers(gpt, RECORDS[:3])

# %% [markdown]
# It continues the text. It cannot know that an instruction wants an answer, and that an answer ends.
#
# ## Say which tokens count
#
# A record becomes one sequence: the prompt, the answer, and the token that ends every text. Each token also has a *label*:
# itself where it counts in the loss, -100 where it does not. (-100 is what PyTorch's cross entropy leaves out.) The model shall
# learn to answer, not to ask: only answer and end count.
#
# ### Exercise 1: Ids and labels
#
# **What:** write `example(prompt, answer, end)`: two lists of tokens and one token in, `(ids, labels)` out, two lists of the same
# length. Do not shift the labels: position by position they stand at the token itself.
#
# **Why:** prompts are several times as long as answers. Where they count, most of the gradient teaches the model to write
# questions.
#
# <details><summary>Hint 1</summary>The ids are three things one after the other. How many labels belong to the first of
# them?</details>
#
# <details><summary>Hint 2</summary><code>[-100] * len(prompt)</code>, then the answer, then the end.</details>


# %%
def example(prompt, answer, end):
    # BEGIN SOLUTION: return ids and labels
    return prompt + answer + [end], [-100] * len(prompt) + answer + [end]
    # END SOLUTION


# %%
exercises.check_example(example, tokenizer)


# %%
def encode(record):
    """The learner's example of a record: at most 256 tokens."""
    asked, told = lm.prompt(record), record["output"]
    ids, labels = example(tokenizer.encode(asked).tolist(), tokenizer.encode(told).tolist(), END)
    return ids[:256], labels[:256]


END = tokenizer.eos_id
EXAMPLES = [encode(record) for record in RECORDS]

figure, axes = plt.subplots(figsize=(12, 2.4))
for number, (token, label) in enumerate(zip(*EXAMPLES[0], strict=True)):
    row, column = divmod(number, 15)
    text = repr(tokenizer.decode(torch.tensor([token])) or "end")[1:-1]
    box = {"boxstyle": "round", "facecolor": "0.9" if label == -100 else "C1", "edgecolor": "0.5"}
    axes.text(column, -row, text, ha="center", va="center", fontsize=7, bbox=box)
axes.set(xlim=(-1, 15), ylim=(-row - 0.6, 0.6))
axes.axis("off")
counted = sum(label != -100 for _, labels in EXAMPLES for label in labels)
of_all = counted / sum(len(ids) for ids, _ in EXAMPLES)
axes.set_title(f"Coloured tokens count: here, and in all records, {of_all:.0%} of them")
plt.show()

# %% [markdown]
# ## Find the first mistake: the loss
#
# This loss was found in a training script. It leaves out -100, the shapes fit, no warning comes. Batches are made the right way for now, by
# `padded` of our module, and we fine-tune for a few steps.


# %%
def found_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def loader(examples, batch_size, collate=lm.padded, seed=None):
    """Batches in the order of the examples, or shuffled by a seed."""
    order = dict(shuffle=seed is not None, generator=torch.Generator().manual_seed(seed or 0))
    return DataLoader(examples, batch_size, collate_fn=partial(collate, end=END), **order)


def fine_tune(gpt, rate, steps, loss=None, collate=lm.padded, seed=1, examples=EXAMPLES, left=100):
    """Train with Lightning on one device; the held-out loss is always computed the right way."""
    training, held_out = split(examples, left, seed)
    model = lm.LanguageModel(gpt, rate, loss)
    every = max(1, steps // by_run_length(quick=2, learner=10, reference=10))
    trainer = Trainer(devices=1, max_steps=steps, val_check_interval=every, **lm.BY_STEPS)
    lm.fit(trainer, model, loader(training, 16, collate, seed), loader(held_out, 50))
    return model


def base():
    return lm.load(FOLDER / "base")[0]


model = fine_tune(base(), 3e-3, by_run_length(quick=4, learner=60, reference=60), loss=found_loss)
print(f"training loss {model.losses[0]:.2f} at first, {model.losses[-1]:.2f} at last")
print("held-out loss", [round(row["heldout_loss"], 2) for row in model.curve])
answers(model.gpt, RECORDS[:3])

# %% [markdown]
# ### Exercise 2: Repair the loss
#
# **What:** write `language_loss(logits, labels)`: logits of shape (batch, tokens, vocabulary) and labels of shape (batch, tokens)
# in, one number out, the mean over the labels that count. What does the found one ask of the model, so that its loss falls so well?
#
# **Why:** every language model is trained with this line, and libraries disagree on who does that step: some models do it
# inside, some leave it to you. Done never or twice, the loss falls all the same.
#
# <details><summary>Hint 1</summary>The logits at position t were computed from tokens up to t. Which token are they a guess
# of?</details>
#
# <details><summary>Hint 2</summary>Compare <code>logits[:, :-1]</code> with <code>labels[:, 1:]</code>.</details>


# %%
def language_loss(logits, labels):
    # BEGIN SOLUTION: return the mean loss of the next tokens that count
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    # END SOLUTION


# %%
exercises.check_language_loss(language_loss)

# %% [markdown]
# ## Find the second mistake: the padding
#
# Examples of different lengths need padding to become one tensor. Many tokenizers have no token for it, and a
# widespread recipe takes the one that ends a text: the labels of the padding are set to -100 anyway. This is such a function.


# %%
def found_collate(examples, end):
    width = max(len(ids) for ids, _ in examples)
    ids = torch.tensor([ids + [end] * (width - len(ids)) for ids, _ in examples])
    labels = torch.tensor([labels + [end] * (width - len(labels)) for _, labels in examples])
    labels[labels == end] = -100  # padding does not count
    return {"input_ids": ids, "labels": labels}


model = fine_tune(
    base(), 3e-3, by_run_length(quick=4, learner=100, reference=100), language_loss, found_collate
)
print("training loss", [round(loss, 2) for loss in model.losses[:: max(1, len(model.losses) // 6)]])
print("held-out loss", [round(row["heldout_loss"], 2) for row in model.curve])
answers(model.gpt, RECORDS[:4])

# %% [markdown]
# ### Exercise 3: Repair the padding
#
# **What:** write `collate(examples, end)`: a list of `(ids, labels)` in; out a dict of `input_ids` and `labels`, int64 tensors of shape
# (examples, longest). Pad on the right, with `end` where you need a token.
#
# **Why:** look at the column `ended`. The training loss cannot show it, as it leaves out the very thing that goes wrong.
#
# <details><summary>Hint 1</summary>How many tokens of each example did the line with the comment take out of the loss, in addition to the
# padding?</details>
#
# <details><summary>Hint 2</summary>You know where the padding is: pad the labels with -100, and compare nothing.</details>


# %%
def collate(examples, end):
    # BEGIN SOLUTION: pad ids with end and labels with -100
    width = max(len(ids) for ids, _ in examples)
    ids = [ids + [end] * (width - len(ids)) for ids, _ in examples]
    labels = [labels + [-100] * (width - len(labels)) for _, labels in examples]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}
    # END SOLUTION


# %%
exercises.check_collate(collate)

# %% [markdown]
# ## Change less: LoRA
#
# Fine-tuning in full changes every weight, and Adam keeps two numbers more for each. LoRA
# ([Hu et al. 2021](https://arxiv.org/abs/2106.09685)) leaves a weight $W$ as it is and learns a change of low rank $r$ in addition to it:
#
# $$y = W x + \frac{\alpha}{r} B A x, \qquad A: r \times \text{inputs}, \quad B: \text{outputs} \times r$$
#
# ### Exercise 4: LoRA on one layer
#
# **What:** complete `LoRALinear(linear, rank, alpha)`: it freezes `linear` (no bias), has parameters `A` and `B`, and two methods:
# `forward(x)`, and `merged()`, which returns one weight that computes the same. At the start the layer must compute what `linear`
# does, and yet be able to learn.
#
# **Why:** a few percent of the parameters are trained, and merged the model is as fast as before.
#
# <details><summary>Hint 1</summary>The change is a product. It is zero when one factor is zero; when both are, the gradient of each
# is zero, too.</details>
#
# <details><summary>Hint 2</summary><code>self.A = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)</code>,
# <code>self.B</code> of zeros; <code>linear.requires_grad_(False)</code> freezes; the change of x is
# <code>x @ self.A.T @ self.B.T</code>, times the scale.</details>


# %%
class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        # BEGIN SOLUTION: freeze linear, make A and B, and write forward and merged
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        self.A = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)

    def merged(self):
        return self.linear.weight + self.scale * self.B @ self.A
        # END SOLUTION


# %%
exercises.check_lora_linear(LoRALinear)

# %% [markdown]
# ## Find the third mistake: the weights
#
# LitGPT has the same for a whole model. This function takes what Lightning saves of a model, its `state_dict`, and makes a LoRA model of
# it. LoRA starts as its base: the first number below, its held-out loss, should be the second, that of the base. (Neither is
# good. The base is sure of a text about Python, and a model that knows nothing is at least sure of nothing.)

# %%
print(lm.EVERYWHERE)  # LoRA on each linear layer


def found_lora(state, config, rank, alpha):
    model = lora.GPT(lora.Config(**asdict(config), **lm.EVERYWHERE, lora_r=rank, lora_alpha=alpha))
    model.load_state_dict(state, strict=False)  # strict=False: LoRA's own weights are not in it
    lora.mark_only_lora_as_trainable(model)
    return model


def heldout_loss(gpt):
    batch = lm.padded(split(EXAMPLES, 100, seed=1)[1], END)
    with torch.no_grad():
        return float(lm.next_token_loss(gpt(batch["input_ids"]), batch["labels"]))


saved = lm.LanguageModel(base(), learning_rate=0.0).state_dict()
print(f"{heldout_loss(found_lora(saved, gpt.config, 8, 16.0)):.3f}, {heldout_loss(base()):.3f}")
print(list(saved)[:3])

# %% [markdown]
# ### Exercise 5: Repair the loading
#
# **What:** write `lora_from(state, config, rank, alpha)`, which does what the found function should. Let it raise a `ValueError` when
# weights of the base do not arrive: `load_state_dict` returns what was missing and what nobody wanted.
#
# **Why:** `strict=False` is in every LoRA script, as A and B are not in the checkpoint. It hides that nothing else was there either, and
# training continues from random weights: the loss falls all the same.
#
# <details><summary>Hint 1</summary>Lightning's names begin with the name of the attribute that holds the network, <code>gpt.</code>
# </details>
#
# <details><summary>Hint 2</summary><code>name.removeprefix("gpt.")</code> for each name; then
# <code>missing, unexpected = model.load_state_dict(...)</code>: nothing may be unexpected, and only names with
# <code>lora_</code> may be missing.</details>


# %%
def lora_from(state, config, rank, alpha):
    # BEGIN SOLUTION: load every weight of the base, and freeze it
    model = lora.GPT(lora.Config(**asdict(config), **lm.EVERYWHERE, lora_r=rank, lora_alpha=alpha))
    state = {name.removeprefix("gpt."): value for name, value in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or any("lora_" not in name for name in missing):
        raise ValueError(f"not loaded: {missing}; nobody wanted: {unexpected}")
    lora.mark_only_lora_as_trainable(model)
    return model
    # END SOLUTION


# %%
exercises.check_lora_from(lora_from)

# %% [markdown]
# ## What each way holds in memory
#
# When its gradients are ready a rank holds, in numbers of 4 bytes: every parameter; and for each that is *trained* a gradient and Adam's two
# averages.
#
# ### Exercise 6: Bytes held
#
# **What:** write `bytes_held(parameters, trained)`: the bytes of a model with so many parameters, `trained` of them trained.
#
# **Why:** it says before you rent the GPU whether a model fits.
#
# <details><summary>Hint 1</summary>A frozen parameter is one number. How many belong to a trained one?</details>
#
# <details><summary>Hint 2</summary>4 bytes for each parameter, and 4 + 8 more for each that is trained.</details>


# %%
def bytes_held(parameters, trained):
    # BEGIN SOLUTION: return the bytes of weights, gradients and Adam's averages
    return 4 * parameters + (4 + 8) * trained
    # END SOLUTION


# %%
exercises.check_bytes_held(bytes_held)
for name, parameters in (("Pythia", 1.0e9), ("LLaMA", 6.7e9)):
    full, few = (bytes_held(parameters, part * parameters) / 1e9 for part in (1, 0.005))
    print(f"{name}, {parameters / 1e9} billion: in full {full:.0f} GB, LoRA of 0.5 % {few:.0f} GB")

# %% [markdown]
# Activations come on top, and LoRA needs nearly as many: gradients still flow through every layer down to the first A. In our model,
# which share of the memory *in* a step does LoRA save?

# %%
prediction = None  # percent of the bytes in a training step that LoRA saves


# %%
def start(method):
    if method == "full":
        return base()
    state = lm.LanguageModel(base(), learning_rate=0.0).state_dict()
    return lora_from(state, gpt.config, rank=8, alpha=16.0)


def memory(gpt):
    """Bytes held once there are gradients and averages, and the most within a step."""
    trained = [parameter for parameter in gpt.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    batch = collate(EXAMPLES[:16], END)

    def step():
        language_loss(gpt(batch["input_ids"]), batch["labels"]).backward()
        optimizer.step()

    step()
    between = sum(held(gpt, optimizer).values())
    optimizer.zero_grad()
    at_start = sum(held(gpt, optimizer).values())
    with peak("cpu") as most:
        step()
    return between, at_start + most.bytes


rows = {}
for method in ("full", "lora"):
    model = start(method)
    every = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    held_now, in_step = memory(model)
    rows[method] = {
        "trained, thousands": trained / 1e3,
        "predicted, MB": bytes_held(every, trained) / 1e6,
        "held, MB": held_now / 1e6,
        "in a step, MB": in_step / 1e6,
    }
sizes = pd.DataFrame(rows).transpose()
saves = 100 * (1 - sizes.loc["lora", "in a step, MB"] / sizes.loc["full", "in a step, MB"])
print(f"LoRA saves {saves:.0f} % of the bytes in a step; you said {prediction}")
sizes.round(2)

# %% [markdown]
# ## Fine-tune, in full and with LoRA
#
# Now with everything that you wrote. 900 records for training and 100 that it never sees. (Nearly all of those ask in new words what a
# record of the training asks, too: the opposite of a word cannot be guessed.) The held-out loss counts the tokens of answers,
# and an answer is *exact* when all of its tokens are right, the end too. LoRA gets a larger rate, as usual.
# Which part of the held-out answers will be exact after 200 steps of 16 records, in full?

# %%
prediction = None  # part of the answers that are exact, 0 to 1

# %%
RATES = {"full": 3e-3, "lora": 1e-2}


def fine_tuning(method, seed):
    torch.manual_seed(seed)
    steps = by_run_length(quick=4, learner=200, reference=200)
    model = fine_tune(start(method), RATES[method], steps, language_loss, collate, seed)
    if seed == 1:
        TUNED[method] = model.gpt
    milliseconds = 1e3 * np.median(model.seconds[3:])
    return [row | {"step_milliseconds": milliseconds} for row in model.curve]


TUNED = {method: start(method) for method in RATES}
runs = sweep("fine_tuning", fine_tuning, grid(method=["full", "lora"], seed=seeds(1)))
shipped = reference("fine_tuning")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.3))
labels = {"full": "in full", "lora": "LoRA, rank 8"}
overlay(left, runs, shipped, x="step", y="heldout_loss", by="method", labels=labels)
overlay(right, runs, shipped, x="step", y="exact", by="method", labels=labels)
predicted(right, prediction, x=200)
left.set(ylabel="held-out loss, nats a token")
right.set(ylabel="part of the held-out answers that are exact", ylim=(-0.02, 1.02))
plt.show()
last = [table[table["step"] == table["step"].max()] for table in (runs, shipped)]
print(compare(*last, by=["method"], value="step_milliseconds"))
compare(*last, by=["method"], value="heldout_loss")

# %%
training, held_out = split(RECORDS, 100, seed=1)
known = {(record["input"], record["output"]) for record in training}
again = sum((record["input"], record["output"]) in known for record in held_out)
print(f"{again} of {len(held_out)} held-out records ask what a record of the training asks")
table = pd.DataFrame(held_out[:6])
for name, asked in {"base": base(), **TUNED}.items():
    table[name] = answers(asked, held_out[:6])["answer"]
table.head(6)

# %% [markdown]
# **What you should see.** The held-out loss falls by several nats, and in full most answers become exact: the model has learnt the answers,
# and which wordings ask the same. LoRA trains a fourteenth as many parameters and ends higher. Perhaps that is because this base knows
# hardly a word of the answers, so that much has to change, and rank 8 allows little; on large models Hu et al. (2021) find no difference.
# Here a step of LoRA is not faster: it spares the gradients of the frozen weights, but A and B are many small multiplications more. On
# GPT-3 it was a quarter faster (Hu et al. 2021).
#
# Merged, LoRA is one weight again. Stored in 8 bits, a weight takes a quarter of the bytes. What do both do to the loss, and to the speed?


# %%
def row(gpt):
    """Bytes as stored, held-out loss, and passes over one token, as generation makes them."""
    torch.save(gpt.state_dict(), FOLDER / "weights.pth")
    megabytes = (FOLDER / "weights.pth").stat().st_size / 1e6
    passes = by_run_length(quick=5, learner=100, reference=100)
    token = torch.zeros(1, 1, dtype=torch.int64)
    with torch.inference_mode():
        gpt(token)  # the first is slower
        rate = passes / timeit(lambda: gpt(token), number=passes)
    return {"MB": megabytes, "held-out loss": heldout_loss(gpt), "passes a second": rate}


tuned = TUNED["lora"].cpu().eval()
rows = {"LoRA": row(tuned)}
merged = lm.merged(tuned)
rows["merged"] = row(merged)
try:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(merged, Int8WeightOnlyConfig())
    rows["merged, 8 bits"] = row(merged)
except ImportError as error:
    print(f"no torchao here: {error}")
pd.DataFrame(rows).transpose().round(3)

# %% [markdown]
# Merging costs nothing and saves the detours through A and B. Torchao's 8-bit weights (the embedding stays as it is) are turned back
# into floats at each use. That pays where reading weights from memory is what takes the time, on models of gigabytes; ours fits into a
# cache. Training on 4-bit weights (QLoRA) needs bitsandbytes, whose kernels
# Lightning runs on CUDA only: it was not run here.
#
# ## Change the strategy with one argument
#
# `python labs/language_model.py finetune ...` is the lab so far, as a script. On ranks it takes the same arguments and
# `--strategy`:
#
# | `--strategy` | the ranks | runs here |
# |---|---|---|
# | `auto` | one device; of several ranks `ddp` | yes |
# | `ddp` | copies, gradients averaged | yes |
# | `fsdp2` | weights, gradients and optimizer split (Lightning's `ModelParallelStrategy`) | yes |
# | `fsdp` | the same, the older way (`FSDPStrategy`) | on GPUs only |
# | `deepspeed` | optimizer and gradients split (ZeRO stage 2) | on GPUs only |
#
# The last two were not run: no GPU was there. The course's tests build them from their settings, no more.
# This is what Lightning says here:

# %%
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import DeepSpeedStrategy

for name, build in {
    "fsdp": lambda: Trainer(strategy="fsdp", accelerator="cpu", logger=False),
    "deepspeed": lambda: DeepSpeedStrategy(accelerator=CPUAccelerator()).setup_environment(),
}.items():
    try:
        build()
    except (ImportError, RuntimeError, ValueError) as error:
        print(f"{name}: {type(error).__name__}: {error}\n")

# %% [markdown]
# One rank with 16 records a step and two ranks with 8 see the same 16 records, if the samplers agree. Will the losses of 20 steps be
# equal? The ranks' answers have different lengths, so a mean of means is not the mean: look at how `LanguageModel.training_step` weighs
# them.

# %%
prediction = None  # the largest difference of the loss in 20 steps, two ranks with DDP against one


# %%
@cache
def losses(strategy, ranks, precision, repeat):
    out = FOLDER / f"{strategy}-{ranks}-{precision}"
    settings = "--strategy", strategy, "--precision", precision, "--batch-size", 16 // ranks
    steps = by_run_length(quick=4, learner=20, reference=20)
    run(
        SCRIPT, "finetune", "--checkpoint", FOLDER / "base", "--out", out, *settings, "--seed", repeat,
        "--steps", steps, "--every", steps, "--held-out", 50, ranks=ranks, timeout=300, show=False,
    )  # fmt: skip
    return pd.read_csv(out / "losses.csv")


def fine_tuning_strategies(strategy, ranks, precision, repeat):
    one, many = losses("auto", 1, "32-true", repeat), losses(strategy, ranks, precision, repeat)
    return {
        "loss_difference": float((many["loss"] - one["loss"]).abs().max()),
        "step_milliseconds": 1e3 * float(many["seconds"][3:].median()),
    }


by = ["strategy", "ranks", "precision"]
MODES = [("ddp", 2, "32-true"), ("fsdp2", 2, "32-true"), ("ddp", 2, "bf16-mixed")]
chosen = [
    dict(zip(by, mode, strict=True))
    for mode in by_run_length(quick=MODES[:1], learner=MODES, reference=MODES)
]
settings = [mode | {"repeat": repeat} for repeat in seeds(1) for mode in chosen]
modes = sweep("fine_tuning_strategies", fine_tuning_strategies, settings)
print(f"you said {prediction}")
compare(modes, reference("fine_tuning_strategies"), by=by, value="loss_difference")

# %% [markdown]
# **What you should see.** DDP and FSDP2 train the same model as one rank, to rounding; `bf16-mixed` does not, and need not.
#
# ### On a cluster
#
# Each of these lines, in the folder of the repository, starts the same ranks; `rendezvous` in the script tells Lightning, in
# torchrun's words, who is who. The first makes the model that the file of settings begins with:
#
#     hvdlab run -np 2 labs/language_model.py pretrain --strategy ddp --out runs/base
#     hvdlab run -np 2 labs/language_model.py finetune --config labs/configs/lora.yaml --out runs/tuned
#     torchrun --nproc-per-node 2 labs/language_model.py finetune --config labs/configs/lora.yaml --out runs/tuned
#     srun --ntasks-per-node 2 python labs/language_model.py finetune --config labs/configs/lora.yaml --out runs/tuned
#     sbatch --ntasks-per-node=2 docker/slurm/torch.sbatch labs/language_model.py finetune --config labs/configs/lora.yaml --out runs/tuned
#
# A file of settings is what makes a run repeatable; what you type after it overrides it. With a network
# `labs/configs/pythia_fsdp.yaml` takes real weights (EleutherAI's Pythia, 1 billion) and real records (52,000, cleaned) by their names on the
# Hugging Face hub; `litgpt download` brings others. That was not run here: there is neither a network nor a GPU.
#
# ## Your own records
#
# People's instructions are not five kinds of question. If there is a file (`HVDLAB_DATA`), the same model is fine-tuned on it, and judged
# on records that it never saw. The shipped curve is that of the 175 seed tasks of Self-Instruct (Wang et al. 2022). How far will two
# thirds of a million parameters get?

# %%
prediction = None  # the held-out loss after 60 steps


# %%
def fine_tuning_own(seed):
    own = dict(examples=[encode(record) for record in OWN], left=len(OWN) // 5)
    steps = by_run_length(quick=2, learner=60, reference=60)
    return fine_tune(base(), 1e-3, steps, language_loss, collate, seed, **own).curve


own = sweep("fine_tuning_own", fine_tuning_own, grid(seed=seeds(1))) if OWN else None
figure, axes = plt.subplots()
overlay(axes, own, reference("fine_tuning_own"), x="step", y="heldout_loss")
predicted(axes, prediction)
axes.set(ylabel="held-out loss, nats a token", title="Instructions of people")
plt.show()

# %% [markdown]
# The loss falls by much less than above: the records are few, and what they ask for takes a model that has read a library. The way
# there is the same script.
#
# ## Take with you
#
# * Mask the prompt and the padding, keep the end, shift once. None of the mistakes raises an error: *generate* from what you trained, and
#   look.
# * LoRA saves the memory of gradients and optimizer, not that of activations.
# * `strict=False` must be followed by a look at what was not loaded.
# * Lightning makes the strategy an argument. That the ranks then train the same model as one does is yours to check.
