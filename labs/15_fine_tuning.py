# %% [markdown]
# # Lab 15: Fine-tuning a language model
#
# In March 2023 a group at Stanford turned a language model with 7 billion parameters into an assistant
# that follows instructions. It used 52,000 examples. The training took three hours on eight GPUs and cost
# less than 100 dollars, and the examples cost less than 500 ([Taori et al.
# 2023](https://crfm.stanford.edu/2023/03/13/alpaca.html)). The original model had needed 82,432 GPU hours
# ([Touvron et al. 2023](https://arxiv.org/abs/2302.13971)), more than 3,000 times as many. This is the
# reason why most people who train language models today *fine-tune* an existing one. In this lab you learn
# how a language model works, fine-tune a small one in two ways, and find three mistakes that raise no
# error. The same script, with other settings, fine-tunes models with billions of parameters.
#
# **After this lab you can**
#
# * explain tokens, embeddings, attention, transformer blocks and next-token prediction, and compute
#   attention and generation in a few lines;
# * prepare instruction records for training, with labels, padding and a loss that are right;
# * explain LoRA, compute the memory that it saves, and load a checkpoint without losing weights;
# * distinguish training from inference in what they compute and what limits them;
# * run the same training with another strategy of Lightning, and choose a model from LitGPT's list.
#
# **Builds on** lab 9 (mixed precision and memory), lab 11 (DDP) and lab 12 (sharding).
#
# **Time** 150 minutes. The computer needs about five minutes of them.

# %% tags=["folded"]
import os
from dataclasses import asdict
from functools import cache, partial
from timeit import timeit

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Trainer
from litgpt import GPT, Config, lora
from litgpt.config import configs
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from hvdlab.course.experiment import LABS, WORK, by_run_length, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, describe, overlay
from hvdlab.course.workbook import Workbook
from hvdlab.data import DataError
from hvdlab.data.instructions import load_records, split, synthetic_records
from hvdlab.exercises import lab15_fine_tuning as exercises
from hvdlab.exercises import lab15_generation as generation
from hvdlab.launch import run
from hvdlab.torch import language_model as lm
from hvdlab.torch.memory import held, peak

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the processor for all ranks, also where there are GPUs
lm.quiet()
SCRIPT, FOLDER = LABS / "language_model.py", WORK / "language_model"
workbook = Workbook(15)
hint = workbook.hint

# %% [markdown]
# This lab runs on processors even if the machine has GPUs, because it compares losses of two ranks to
# several digits with results that were measured on processors. The script `labs/language_model.py` uses
# one GPU per rank if you start it by hand.
#
# ## How neural networks are used
#
# A network has three phases of life, and they have different costs.
#
# * **Pretraining** starts with random weights and a very large amount of data. For a language model it
#   takes weeks on thousands of GPUs, and few organisations do it.
# * **Fine-tuning** continues the training of an existing network on a smaller data set for a purpose, for
#   example to answer questions, to write in the style of a company, or to classify medical texts. It takes
#   minutes to days, and it uses the same loop of forward pass, backward pass and optimizer step.
# * **Inference** is the use of a trained network on new inputs. The weights do not change. There is no
#   backward pass, no gradient and no optimizer state.
#
# For example, a hospital downloads a pretrained model, fine-tunes it in an afternoon with 5,000 of its own
# letters, and then uses it a thousand times a day. Over its life a popular model often costs more for
# inference than for training, because it answers millions of requests.
#
# ## Why language models need supercomputers
#
# Training a language model is one of the largest computations of our time, and it suits machines for
# high-performance computing (HPC) for four reasons.
#
# 1. *Its size is predictable.* A training step needs about 6 floating-point operations per parameter and
#    token: 2 in the forward pass and 4 in the backward pass. Llama 3 has 405 billion parameters and was
#    trained on 15.6 trillion tokens, which gives $6 \cdot 405 \cdot 10^9 \cdot 15.6 \cdot 10^{12} = 3.8
#    \cdot 10^{25}$ operations ([Llama Team 2024](https://arxiv.org/abs/2407.21783)). A GPU that performs
#    $400 \cdot 10^{12}$ operations per second would need 3,000 years.
# 2. *It consists of large matrix products.* GPUs compute them close to their peak speed.
# 3. *All GPUs work on one problem and talk after every step.* It needs the fast networks for which
#    supercomputers are built, and it uses the collectives that you know: all-reduce, all-gather and
#    reduce-scatter.
# 4. *It needs much memory in one place.* With Adam in mixed precision, a parameter takes 16 bytes (lab 12). For
#    example, DeepSpeed stores them like this:
#    In 16 bits there are a copy of the weight and its gradient, $2 + 2$ bytes. In 32 bits there are the
#    weight itself and Adam's two averages, $4 + 4 + 4$ bytes. 405 billion of them take 6.5 TB, which must be
#    sharded over many GPUs.
#
# ## Tokens and embeddings
#
# A network computes with numbers, so a text must become numbers first. A *tokenizer* cuts the text into
# *tokens*, which are frequent pieces of words, and replaces each by its number in a fixed list, the
# *vocabulary*. Byte-pair encoding ([Sennrich et al. 2016](https://arxiv.org/abs/1508.07909)) builds this
# list: it begins with single characters (in GPT-2 and in this lab with single bytes) and joins the most
# frequent pair again and again. For example, in "low
# lower lowest" the pair "l", "o" is frequent, so "lo" becomes a token, then "low". A common word becomes
# one token, and a rare word becomes several.
#
# An *embedding* is a table with one row of numbers, a vector, for each token of the vocabulary. The first
# layer of the network looks up the row of each token. The rows are parameters and are trained like all
# others. For example, with a vocabulary of 1,024 tokens and vectors of width 128, the table has $1024
# \cdot 128 = 131{,}072$ parameters.
#
# ## Attention
#
# The meaning of a token depends on other tokens. In "the bank of the river", the word "river" tells what
# "bank" means. *Attention* lets each token collect information from the tokens before it.
#
# Each token computes three vectors from its own vector with three linear layers. The *query* says what the
# token looks for, the *key* says what it offers, and the *value* is the information itself. The score of
# token $t$ for token $s$ is the dot product of the query of $t$ and the key of $s$, divided by $\sqrt{d}$,
# where $d$ is the length of these vectors. A softmax turns the scores of a row into weights that sum to 1.
# The output is the weighted mean of the values:
#
# $$\text{attention}(Q, K, V) = \text{softmax}\left(\frac{Q K^T}{\sqrt d} + \text{mask}\right) V$$
#
# A language model must not look at later tokens, because it has to predict them. The *causal mask* sets
# the scores of later tokens to minus infinity, so that their weights are zero.
#
# For example, take two tokens with $d = 1$, queries 1 and 2, keys 1 and 0, values 10 and 20. Token 0 sees
# only itself, so its output is 10. Token 1 has the scores $2 \cdot 1 = 2$ and $2 \cdot 0 = 0$. The softmax
# of (2, 0) is (0.88, 0.12), so its output is $0.88 \cdot 10 + 0.12 \cdot 20 = 11.2$.
#
# ### Exercise 1: Causal attention
#
# **What:** write `attention(queries, keys, values)`.
#
# **Why:** this function is the only place in the network where tokens exchange information, and its mask
# is the reason why the whole text can be trained in one pass.
#
# **Signature:** three tensors of shape (tokens, width). Return a tensor of the same shape.
#
# <details><summary>Hint 1</summary>Compute a table of scores with one row per query and one column per
# key. Hide the part above the diagonal, take the softmax of each row, and multiply by the
# values.</details>
#
# <details><summary>Hint 2</summary>With three tokens, the row of token 0 has one visible score, that of
# token 1 has two, and that of token 2 has three. <code>torch.ones(3, 3, dtype=torch.bool).triu(1)</code>
# is True exactly where a score must be hidden.</details>
#
# <details><summary>Hint 3</summary><code>scores = queries @ keys.T / width**0.5</code>, then
# <code>scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values</code></details>


# %%
def attention(queries, keys, values):
    # BEGIN SOLUTION: return the causal attention of one head
    tokens, width = queries.shape
    scores = queries @ keys.T / width**0.5
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return weights @ values
    # END SOLUTION


# %%
generation.check_attention(attention)

# %% [markdown]
# ## The transformer block
#
# A *transformer* ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)) is a stack of equal blocks.
# Each block has two parts. Attention moves information between tokens. A *feed-forward network*, that is,
# two or three linear layers with a nonlinear function between them, then processes each token by itself.
# Both parts have a *residual connection*: their output is added to their input, so that a block only has
# to learn a change (the optional notebook of lab 3 measures what this changes). A *normalisation* before each
# part keeps the numbers in a useful range. Several attentions with smaller width run next to each other in one block and
# are called *heads*.
#
# ![A transformer block. The token vectors pass a normalisation and attention, whose output is added to the input, then a normalisation and a feed-forward network, whose output is added again. A stack of such blocks ends in one score per token of the vocabulary.](pictures/transformer_block.svg)
#
# After the last block a linear layer, the *head of the language model*, computes one number for each token
# of the vocabulary, the *logits*. Their softmax is the probability of each token to be the next one. `GPT`
# in this lab is the implementation of LitGPT ([Lightning AI](https://github.com/Lightning-AI/litgpt)), a Python
# package with readable code for published language models, and with commands that download, fine-tune and run
# them. GPT stands for *generative pretrained transformer*. Our model has two blocks of width 128 with four
# heads.
#
# ## Next-token prediction
#
# The training task is simple: predict the next token. Any text gives its own labels, so no person has to
# label the data. For the text with the tokens [5, 9, 2, 7], position 0 has seen 5 and should predict 9,
# position 1 has seen 5 and 9 and should predict 2, and so on. One forward pass gives a prediction at every
# position, because the causal mask hides the future from each of them.
#
# ![Two rows of tokens. The inputs are the tokens of a sentence, and the label of each position is the next token of the same sentence, so the labels are the inputs shifted by one position.](pictures/token_shift.svg)
#
# The loss of a position is the cross entropy $-\ln p$, where $p$ is the probability that the model gave to
# the right token. Its unit is called *nat*. For example, $p = 0.5$ costs 0.69 nats and $p = 0.01$ costs
# 4.6 nats. The loss of the model is the mean over all positions.
#
# The next cell trains a base model. It learns some English from the language reference that comes with
# every Python, half a megabyte, with a tokenizer of 1,024 tokens that is trained first. One script does
# this on two ranks: `LanguageModel` (in `hvdlab.torch.language_model`) contains the model and its training
# step, `Trainer` is Lightning's training loop, and `--strategy` says how the ranks share the work. At the
# start the model knows nothing, so it gives about the same probability to each token.

# %%
# Prediction 1: what is the loss in nats before the first step, with a vocabulary of 1,024 tokens? Replace both
# values of None.
workbook.predict(1, None, reason=None)

# %%
steps = by_run_length(quick=9, learner=200, reference=200)
settings = "--strategy", "ddp", "--steps", steps, "--every", steps // 3, "--batch-size", 8
run(SCRIPT, "pretrain", "--out", FOLDER / "base", *settings, ranks=2, timeout=600)
gpt, tokenizer = lm.load(FOLDER / "base")
print(f"{sum(p.numel() for p in gpt.parameters()):,} parameters")
print(f"ln 1024 = {np.log(1024):.3f}")
workbook.result(1, pd.read_csv(FOLDER / "base" / "losses.csv")["loss"].iloc[0])

# %% [markdown]
# **What the result means.** A uniform guess gives each token the probability 1/1024, so the loss is $\ln
# 1024 = 6.93$ nats. This is the first number to check in any training of a language model. If the first
# loss is much larger, something is wrong with the initial weights or with the labels.
#
# ## Generation and sampling
#
# A trained model *generates* text one token after the other. It computes the logits of the next token, one
# token is chosen and appended, and the longer text is the next input. A special token, the *end token*,
# stops the loop.
#
# ![The generation loop. The tokens so far enter the model, which gives a score for each token of the vocabulary. One token is chosen and appended to the input, and the loop repeats until the end token.](pictures/generation_loop.svg)
#
# There are several methods to choose. *Greedy* decoding takes the token with the highest probability.
# *Sampling* draws a token at random with the probabilities of the model. A *temperature* $T$ divides the
# logits before the softmax. For example, the logits (2, 1, 0) give the probabilities (0.67, 0.24, 0.09).
# With $T = 0.5$ they become (0.87, 0.12, 0.02), which is closer to greedy, and with $T = 2$ they become
# (0.51, 0.31, 0.19). When $T$ approaches 0, sampling becomes greedy. *Top-k sampling* draws only among the
# $k$ tokens with the largest logits, so that no very improbable token is drawn.
#
# ### Exercise 2: Generation loop
#
# **What:** write `continue_text(next_scores, ids, limit, end)` with greedy decoding.
#
# **Why:** the loop shows why inference differs from training. Training processes all positions of a text
# at the same time. Generation must wait for each token before it can compute the next one.
#
# **Signature:** `next_scores(ids)` returns one score for each token of the vocabulary, and `ids` is a list
# of tokens. Return the list of the new tokens, up to `limit` of them, including `end` if it was generated.
# Leave `ids` unchanged.
#
# <details><summary>Hint 1</summary>Repeat at most <code>limit</code> times: compute the scores of the text
# so far, take the best token, append it, and stop if it is the end.</details>
#
# <details><summary>Hint 2</summary>Let the scores always prefer the last token plus one, with end = 4.
# From [0, 1] the loop appends 2, then 3, then 4, and stops. It returns [2, 3, 4].</details>
#
# <details><summary>Hint 3</summary><code>best = int(np.argmax(next_scores(ids + new)))</code> inside the
# loop, where <code>new</code> is the list of new tokens.</details>


# %%
def continue_text(next_scores, ids, limit, end):
    # BEGIN SOLUTION: return the new tokens
    new = []
    while len(new) < limit:
        best = int(np.argmax(next_scores(ids + new)))
        new.append(best)
        if best == end:
            break
    return new
    # END SOLUTION


# %%
generation.check_continue_text(continue_text)


def next_scores(ids):
    with torch.inference_mode():
        return gpt(torch.tensor([ids]))[0, -1]


for text in ("The return statement", "If a class"):
    ids = tokenizer.encode(text).tolist()
    new = continue_text(next_scores, ids, 30, tokenizer.eos_id)
    print(text, "...", " ".join(tokenizer.decode(torch.tensor(new)).split()))

# %% [markdown]
# The base model continues the text in the style of Python's reference. Your loop computes the whole text
# again for each new token. Real programs keep the keys and values of earlier tokens in a *KV cache*. The prompt
# goes through the network once, and then only each new token. This is possible because of the causal mask: an
# earlier token never looks at a later one, so its keys and values do not change when the text grows. For
# example, with a prompt of 10 tokens and 5 new ones your loop puts $10 + 11 + 12 + 13 + 14 = 60$ tokens through
# the network. With the cache it is $10 + 1 + 1 + 1 + 1 = 14$, because the prompt gives the first new token, and
# the last one need not be put in. The cache costs memory: two vectors for each
# token in each layer. With 32 layers of width 4,096 and 2 bytes per number it takes $2 \cdot 32 \cdot 4096
# \cdot 2 = 0.5$ MB per token, so 1 GB for a text of 2,000 tokens.
#
# ## Training compared with inference
#
# Training and inference use the same network and are limited by different parts of the machine.
#
# | | training | inference |
# |---|---|---|
# | operations per parameter and token | 6 | 2 |
# | memory per parameter | 16 bytes with Adam and mixed precision | 2 bytes in float16, 1 in 8 bits |
# | memory in addition | activations of all layers, for the backward pass | KV cache |
# | tokens at a time | all positions of many texts | one new token per request |
# | limited by | computing speed and the network | reading the weights from memory |
# | matters most | throughput, tokens per second | latency, the time until the answer |
#
# For example, a model with 1 billion parameters in float16 has 2 GB of weights. For each token of one
# request, all of them are read. A processor with 50 GB/s memory bandwidth can therefore generate at most
# 25 tokens per second, however fast it computes. Smaller numbers help directly: with 8 bits per weight the
# bound is 50 tokens per second. This is why models for phones, cars and cameras, called *edge devices*,
# are stored with 8 or 4 bits per weight. They also run without an Internet connection and keep private data on
# the device.
#
# One reading of the weights can serve several texts. If 8 requests are computed together, each weight is read
# once for 8 tokens. The time per token stays nearly the same, so the total rate is nearly 8 times as high. More
# texts help until the processor cannot compute faster. Training works far beyond this point: it uses each weight
# that it reads for thousands of tokens, so arithmetic limits it.
#
# ## Instruction records
#
# A base model continues texts. It has never seen an instruction followed by an answer, so it does not know
# that a question should be answered and that an answer ends. *Instruction fine-tuning* teaches both. Each
# example is an *instruction record*, or record for short, with three texts. The format became common with
# Alpaca:
#
# ```json
# {
#   "instruction": "Give three tips for staying healthy.",
#   "input": "",
#   "output": "1. Eat many vegetables. 2. Move every day. 3. Sleep enough."
# }
# ```
#
# `instruction` says what to do, `input` is the material, which may be empty, and `output` is the desired
# answer. This record was written for the course in the style of Alpaca. A *prompt template* turns a record
# into text, always in the same way, so that the model recognises where the question ends and where the
# answer begins. If there are records of people in your folder `HVDLAB_DATA` (`alpaca.json`, `alpaca.jsonl`
# or `alpaca_seed_tasks.jsonl`), the next cell shows one of them. Alpaca itself began with the 175 *seed
# tasks* of Self-Instruct ([Wang et al. 2022](https://arxiv.org/abs/2212.10560)), which people wrote. A
# large model then generated the 52,000 records from them.

# %%
WRITTEN = {
    "instruction": "Give three tips for staying healthy.",
    "input": "",
    "output": "1. Eat many vegetables. 2. Move every day. 3. Sleep enough.",
}
try:
    OWN = load_records()
    print(f"{len(OWN)} records of people were found\n")
except DataError as error:
    OWN = []
    print(error, "\n")
shown = OWN[1] if len(OWN) > 1 else WRITTEN
print(lm.prompt(shown) + shown["output"])

# %% [markdown]
# The experiments use **synthetic** records, small questions that a program makes. A tiny model can learn
# to answer them, and right answers can be counted.

# %% tags=["folded"]
RECORDS = synthetic_records()


def answers(gpt, records, limit=16):
    """Return what a model answers to records, and whether it ended by itself."""
    rows = []
    for record in records:
        answer, ended = lm.generate(gpt, tokenizer, lm.prompt(record), limit)
        rows.append({**record, "answer": answer, "ended": ended})
    return pd.DataFrame(rows)


def base():
    return lm.load(FOLDER / "base")[0]


# %%
answers(gpt, RECORDS[:4])  # the base model, before fine-tuning

# %% [markdown]
# The base model neither answers nor stops. The column `ended` says whether it generated the end token.
#
# ## Labels of an instruction example
#
# A record becomes one sequence of tokens: the prompt, the answer and the end token. Each token also has a
# *label*. It is the token itself if it counts in the loss, and -100 if it does not, because PyTorch's
# cross entropy ignores -100. The model should learn to answer and not to ask, so only the answer and the
# end count.
#
# For example, let the prompt be [5, 6, 7], the answer [8, 9] and the end 1. The ids are [5, 6, 7, 8, 9, 1]
# and the labels are [-100, -100, -100, 8, 9, 1].
#
# ### Exercise 3: Ids and labels
#
# **What:** write `example(prompt, answer, end)`.
#
# **Why:** prompts are often longer than answers. If they count, most of the gradient teaches the model to
# write questions.
#
# **Signature:** two lists of tokens and one token. Return `(ids, labels)`, two lists of the same length.
# Do not shift the labels: each label stands at the position of its own token.
#
# <details><summary>Hint 1</summary>The ids are three things one after the other. How many labels belong to
# the first of them?</details>
#
# <details><summary>Hint 2</summary>For the prompt [5, 6] and the answer [8], with end 1, there are 4 ids
# and the labels are [-100, -100, 8, 1].</details>
#
# <details><summary>Hint 3</summary><code>[-100] * len(prompt)</code>, then the answer, then the
# end.</details>


# %%
def example(prompt, answer, end):
    # BEGIN SOLUTION: return ids and labels
    ids = prompt + answer + [end]
    labels = [-100] * len(prompt) + answer + [end]
    return ids, labels
    # END SOLUTION


# %%
exercises.check_example(example, tokenizer)

# %% tags=["folded"]
END = tokenizer.eos_id


def encode(record):
    """Return the learner's example of a record, at most 256 tokens."""
    prompt, answer = lm.prompt(record), record["output"]
    ids, labels = example(tokenizer.encode(prompt).tolist(), tokenizer.encode(answer).tolist(), END)
    return ids[:256], labels[:256]


EXAMPLES = [encode(record) for record in RECORDS]

figure, axes = plt.subplots(figsize=(12, 2.4))
for number, (token, label) in enumerate(zip(*EXAMPLES[0], strict=True)):
    row, column = divmod(number, 15)
    text = repr(tokenizer.decode(torch.tensor([token])) or "end")[1:-1]
    box = {"boxstyle": "round", "facecolor": "0.9" if label == -100 else "C1", "edgecolor": "0.5"}
    axes.text(column, -row, text, ha="center", va="center", fontsize=8, bbox=box)
axes.set(xlim=(-1, 15), ylim=(-row - 0.6, 0.6))
axes.axis("off")
counted = sum(label != -100 for _, labels in EXAMPLES for label in labels)
of_all = counted / sum(len(ids) for ids, _ in EXAMPLES)
axes.set_title(f"Coloured tokens count in the loss: here, and in all records, {of_all:.0%} of them")
describe(figure, "The tokens of one record in a grid. The tokens of the prompt are grey and do not count in the "
         "loss. Only the last tokens, the answer and the end, are coloured and count.")  # fmt: skip

# %% [markdown]
# ## First mistake: the shift of the loss
#
# This loss was found in a training script. It ignores -100, the shapes fit, and there is no warning. For
# the moment `padded` from our module makes the batches in the right way, and we fine-tune for a few steps.


# %%
def found_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


# %% tags=["folded"]
def loader(examples, batch_size, collate=lm.padded, seed=None):
    """Return batches in the order of the examples, or shuffled by a seed."""
    order = dict(shuffle=seed is not None, generator=torch.Generator().manual_seed(seed or 0))
    return DataLoader(examples, batch_size, collate_fn=partial(collate, end=END), **order)


def fine_tune(gpt, rate, steps, loss=None, collate=lm.padded, seed=1, examples=EXAMPLES, left=100):
    """Train with Lightning on one device. The held-out loss is always computed in the right way."""
    training, held_out = split(examples, left, seed)
    model = lm.LanguageModel(gpt, rate, loss)
    every = max(1, steps // by_run_length(quick=2, learner=10, reference=10))
    trainer = Trainer(devices=1, max_steps=steps, val_check_interval=every, **lm.BY_STEPS)
    lm.fit(trainer, model, loader(training, 16, collate, seed), loader(held_out, 50))
    return model


FEW, SOME = (by_run_length(quick=4, learner=n, reference=n) for n in (60, 100))

# %%
model = fine_tune(base(), 3e-3, FEW, loss=found_loss)
print(f"training loss {model.losses[0]:.2f} at first, {model.losses[-1]:.2f} at last")
print("held-out loss", [round(row["heldout_loss"], 2) for row in model.curve])
answers(model.gpt, RECORDS[:3])

# %% [markdown]
# The training loss falls to nearly zero, but the held-out loss rises and the answers are useless. The
# found loss compares the logits at position $t$ with the token at position $t$, which the model has just
# read. So the model learns to repeat its input, and that is easy.
#
# ### Exercise 4: Repair the loss
#
# **What:** write `language_loss(logits, labels)`.
#
# **Why:** every language model is trained with this line, and libraries disagree on who shifts: some
# models do it inside, and some leave it to you. If nobody shifts, or if both do, the loss falls all the
# same.
#
# **Signature:** `logits` has the shape (batch, tokens, vocabulary) and `labels` the shape (batch, tokens).
# Return one number, the mean over the labels that count.
#
# <details><summary>Hint 1</summary>The logits at position t were computed from the tokens up to t. Which
# token do they predict?</details>
#
# <details><summary>Hint 2</summary>For the labels [-100, -100, 8, 1], the logits at position 1 predict the
# 8 and those at position 2 predict the 1. The logits at position 3 predict nothing.</details>
#
# <details><summary>Hint 3</summary>Compare <code>logits[:, :-1]</code> with <code>labels[:,
# 1:]</code>.</details>


# %%
def language_loss(logits, labels):
    # BEGIN SOLUTION: return the mean loss of the next tokens that count
    guesses = logits[:, :-1].flatten(0, 1)
    wanted = labels[:, 1:].flatten()
    return F.cross_entropy(guesses, wanted, ignore_index=-100)
    # END SOLUTION


# %%
exercises.check_language_loss(language_loss)

# %% [markdown]
# ## Second mistake: the padding
#
# A batch is one tensor, so examples of different lengths must be filled up to the same length. This is
# called *padding*. Many tokenizers have no padding token, so programs use the end token and set its labels
# to -100. This function was found, too.


# %%
def found_collate(examples, end):
    width = max(len(ids) for ids, _ in examples)
    ids = torch.tensor([ids + [end] * (width - len(ids)) for ids, _ in examples])
    labels = torch.tensor([labels + [end] * (width - len(labels)) for _, labels in examples])
    labels[labels == end] = -100  # padding does not count
    return {"input_ids": ids, "labels": labels}


# %%
# Prediction 2: the function removes every end from the labels. What will the model that it trains do wrong?
# Put a few words in place of the first None, and the reason in place of the second.
prediction = workbook.predict(2, None, form=str, reason=None)

# %%
model = fine_tune(base(), 3e-3, SOME, language_loss, found_collate)
print(f"your prediction: {prediction}")
print("training loss", [round(loss, 2) for loss in model.losses[:: max(1, len(model.losses) // 6)]])
print("held-out loss", [round(row["heldout_loss"], 2) for row in model.curve])
answers(model.gpt, RECORDS[:4])

# %% [markdown]
# **What the result means.** Look at the column `ended`. The end of each answer has the same number as the
# padding, so the line with the comment removes it from the loss as well. The model begins with an answer
# and does not stop. The training loss cannot show this, because it leaves out the very token that is
# wrong.
#
# ![Two examples of different length in a batch. The ids are padded with the end token. The labels of the prompt and of the padding are minus 100, but the first end token of each example keeps its label.](pictures/padding_and_labels.svg)
#
# ### Exercise 5: Repair the padding
#
# **What:** write `collate(examples, end)`.
#
# **Why:** a model that does not end its answers is the most common result of a first fine-tuning.
#
# **Signature:** `examples` is a list of `(ids, labels)`. Return a dict of `input_ids` and `labels`, int64
# tensors of shape (examples, longest). Pad on the right, and use `end` to pad the ids.
#
# <details><summary>Hint 1</summary>The positions of the padding are known from the lengths. You do not
# have to search for tokens.</details>
#
# <details><summary>Hint 2</summary>For ids [5, 6, 8, 1] and [5, 9, 1] with end 1, the second row of ids is
# [5, 9, 1, 1] and the second row of labels is [-100, 9, 1, -100].</details>
#
# <details><summary>Hint 3</summary><code>labels + [-100] * (width - len(labels))</code> for each example,
# and the same with <code>end</code> for the ids.</details>


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
# ## Low-rank adaptation (LoRA)
#
# *Full fine-tuning* changes every weight, and Adam keeps two more numbers for each of them. **LoRA** ([Hu et
# al. 2021](https://arxiv.org/abs/2106.09685)) leaves a weight matrix $W$ as it is, *frozen*, and learns a
# change of low rank $r$:
#
# $$y = W x + \frac{\alpha}{r} B A x, \qquad A: r \times \text{inputs}, \quad B: \text{outputs} \times r$$
#
# ![LoRA on one layer. The input goes through the large frozen matrix W, and next to it through the small matrices A and B. Both results are added. Only A and B are trained.](pictures/lora.svg)
#
# For example, a layer with 4,096 inputs and 4,096 outputs has 16.8 million weights. With $r = 8$, $A$ and
# $B$ have $2 \cdot 8 \cdot 4096 = 65{,}536$ numbers, which is 0.4 %. The product $BA$ has the shape of $W$, but
# only $r$ of its rows are linearly independent. (Linear algebra calls this number the rank of a matrix. It has
# nothing to do with the ranks that train together.) The fixed number $\alpha$ scales the change, so that a
# different $r$ needs about the same learning rate. At the start one of the two matrices is zero and the other is
# random, so the change is zero and training begins with the base model. If both were zero, the gradients of both
# would be zero, and neither would ever change. The idea behind it is that
# fine-tuning changes what a model does only a little, so that a change of low rank is enough. On GPT-3
# with 175 billion parameters LoRA reduced the number of trained parameters by a factor of 10,000 and the
# memory by a factor of 3 (Hu et al. 2021).
#
# ### Exercise 6: LoRA on one layer
#
# **What:** complete `LoRALinear(linear, rank, alpha)`.
#
# **Why:** only a few percent of the parameters are trained, and after merging, the model is as fast as
# before.
#
# **Signature:** the class freezes `linear`, which has no bias. It has parameters `A` and `B` and two
# methods: `forward(x)`, and `merged()`, which returns one weight matrix that computes the same. At the
# start the layer must compute what `linear` does, and it must be able to learn.
#
# <details><summary>Hint 1</summary>The change is a product. It is zero if one factor is zero. If both are
# zero, the gradient of each is zero too, and nothing is learnt.</details>
#
# <details><summary>Hint 2</summary>For 5 inputs, 4 outputs and rank 2, A has the shape (2, 5) and B the
# shape (4, 2). With alpha = 6 the scale is 3. A random A and a zero B give a change of zero.</details>
#
# <details><summary>Hint 3</summary><code>self.A = nn.Parameter(torch.randn(rank, linear.in_features) /
# linear.in_features**0.5)</code>, <code>self.B</code> of zeros; <code>linear.requires_grad_(False)</code>
# freezes; the change of x is <code>x @ self.A.T @ self.B.T</code>, times the scale.</details>


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
# ## Third mistake: weights that are not loaded
#
# LitGPT has LoRA for a whole model. The found function takes what Lightning saves of a model, its
# `state_dict`, that is, a dict from names to weights, and makes a LoRA model of it. LoRA starts as its
# base model, so both numbers that the next cell prints should be equal.


# %%
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
lora_loss, base_loss = heldout_loss(found_lora(saved, gpt.config, 8, 16.0)), heldout_loss(base())
print(f"held-out loss of the LoRA model {lora_loss:.3f}, of the base model {base_loss:.3f}")
print(list(saved)[:3])

# %% [markdown]
# The two losses differ, so the LoRA model is not the base model. Which of them is higher proves nothing.
# After a long pretraining it is the loss of the *base* model: this model is confidently wrong, because it
# expects Python's documentation and not short answers. A model with random weights spreads its probability
# over all tokens, and its loss is near $\ln 1024$.
#
# ### Exercise 7: Repair the loading
#
# **What:** write `lora_from(state, config, rank, alpha)`, which does what the found function should do.
#
# **Why:** `strict=False` appears in every LoRA script, because A and B are not in the checkpoint. It also
# hides that nothing else was loaded. The training then continues from random weights, and the loss falls
# all the same.
#
# **Signature:** as `found_lora`. Raise a `ValueError` if a weight of the base model is missing:
# `load_state_dict` returns the missing and the unexpected names.
#
# <details><summary>Hint 1</summary>Lightning's names begin with the name of the attribute that holds the
# network, <code>gpt.</code>, and the model expects them without it.</details>
#
# <details><summary>Hint 2</summary>The state contains "gpt.lm_head.weight", and the model wants
# "lm_head.weight". With <code>strict=False</code> the first name counts as unexpected and the second as
# missing. After the repair no name may be unexpected, and only names with <code>lora_</code> may be
# missing.</details>
#
# <details><summary>Hint 3</summary><code>name.removeprefix("gpt.")</code> for each name, then
# <code>missing, unexpected = model.load_state_dict(...)</code>.</details>


# %%
def lora_from(state, config, rank, alpha):
    # BEGIN SOLUTION: load every weight of the base, and freeze it
    model = lora.GPT(lora.Config(**asdict(config), **lm.EVERYWHERE, lora_r=rank, lora_alpha=alpha))
    state = {name.removeprefix("gpt."): value for name, value in state.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or any("lora_" not in name for name in missing):
        raise ValueError(f"missing: {missing}; unexpected: {unexpected}")
    lora.mark_only_lora_as_trainable(model)
    return model
    # END SOLUTION


# %%
exercises.check_lora_from(lora_from)

# %% [markdown]
# ## Memory of full fine-tuning and LoRA
#
# When its gradients are ready, a rank in float32 holds three kinds of numbers of 4 bytes: every parameter,
# a gradient for each *trained* parameter, and Adam's two averages for each trained parameter. For example,
# 100 parameters of which 10 are trained take $100 \cdot 4 + 10 \cdot (4 + 8) = 520$ bytes.
#
# ### Exercise 8: Bytes held
#
# **What:** write `bytes_held(parameters, trained)`.
#
# **Why:** it says whether a model fits into a GPU before you rent one.
#
# **Signature:** two numbers, of all parameters and of the trained ones. Return bytes.
#
# <details><summary>Hint 1</summary>A frozen parameter is one number. How many numbers belong to a trained
# one?</details>
#
# <details><summary>Hint 2</summary>With 2 parameters of which 1 is trained there are 2 weights, 1 gradient
# and 2 averages: 5 numbers, 20 bytes.</details>
#
# <details><summary>Hint 3</summary>4 bytes for each parameter, and 4 + 8 more for each trained
# one.</details>


# %%
def bytes_held(parameters, trained):
    # BEGIN SOLUTION: return the bytes of weights, gradients and Adam's averages
    weights, gradients, averages = 4 * parameters, 4 * trained, 8 * trained
    return weights + gradients + averages
    # END SOLUTION


# %%
exercises.check_bytes_held(bytes_held)
for name, parameters in (("phi-1.5", 1.4e9), ("LLaMA", 6.7e9)):
    full, few = (bytes_held(parameters, fraction * parameters) / 1e9 for fraction in (1, 0.005))
    print(f"{name}, {parameters / 1e9} billion: full {full:.0f} GB, LoRA with 0.5 % {few:.0f} GB")

# %% [markdown]
# Does mixed precision help? `bf16-mixed`, the setting of this lab, does not reduce these numbers. It keeps
# *all* weights in float32, also the frozen ones, because autocast makes its 16-bit copies only for a step (lab
# 9). LLaMA with LoRA then needs $6.7 \cdot 4 = 26.8$ GB for the weights and $0.005 \cdot 6.7 \cdot 12 = 0.4$ GB
# for gradients and averages, which does not fit into a GPU with 24 GB. The setting `bf16-true` stores every
# number in 2 bytes: $6.7 \cdot 2 = 13.4$ GB for the weights, and $2 + 4$ bytes more for each trained parameter,
# 0.2 GB. This fits. The price is that the trained matrices are also rounded to 16 bits after every step, so
# small updates get lost (lab 9). The next cell asks Lightning for the formats.

# %% tags=["folded"]
formats = {}
for precision in ("bf16-mixed", "bf16-true"):
    plugin = Trainer(accelerator="cpu", precision=precision, logger=False).precision_plugin
    layers = {"frozen": nn.Linear(2, 2).requires_grad_(False), "trained": nn.Linear(2, 2)}
    formats[precision] = {
        kind: str(plugin.convert_module(layer).weight.dtype) for kind, layer in layers.items()
    }
pd.DataFrame(formats)

# %% [markdown]
#
# Activations come in addition. LoRA needs nearly as many of them as full fine-tuning, because gradients
# still flow through every layer down to the first A. In our small model the activations of a step are much
# larger than the weights.

# %%
# Prediction 3: how many percent of the bytes within a training step does LoRA save in our model? Replace
# both values of None.
workbook.predict(3, None, reason=None)


# %% tags=["folded"]
def start(method):
    if method == "full":
        return base()
    state = lm.LanguageModel(base(), learning_rate=0.0).state_dict()
    return lora_from(state, gpt.config, rank=8, alpha=16.0)


def memory(gpt):
    """Return the bytes held once there are gradients and averages, and the most within a step."""
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
print(f"LoRA saves {saves:.0f} % of the bytes in a step")
workbook.result(3, saves)
sizes.round(2)

# %% [markdown]
# **What the result means.** Your formula agrees with the bytes that are held between two steps. Within a
# step the activations dominate, so LoRA saves only about 15 % here. A prediction near 70 % is what
# your formula gives: it counts weights, gradients and optimizer state, and leaves out the activations. With a model of billions of parameters and short texts, the weights and the
# optimizer state dominate, and LoRA saves most of the memory.
#
# ## Full fine-tuning compared with LoRA
#
# Now we use everything that you wrote: 900 records for training, and 100 that the model never sees, the
# *held-out* records. The records ask for facts, such as the opposite of a word, and a fact that was not
# learned cannot be guessed. So nearly all held-out records ask in other words what a training record asks. The
# held-out loss counts the tokens of the answers. An answer is *exact* if the model predicts every token of it,
# including the end. (Nothing is generated: at each position the model reads the prompt and the true tokens
# before, also after a wrong prediction.) LoRA gets a larger learning rate, as usual. As
# in the earlier labs, `sweep` runs each setting and `reference` returns the results that the course ships,
# drawn as lines.

# %%
# Prediction 4: which method has the lower held-out loss after 200 steps on this small model, "full" or "lora"?
workbook.predict(4, None, form=["full", "lora"], reason=None)

# %% tags=["folded"]
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

# %%
runs = sweep("fine_tuning", fine_tuning, grid(method=["full", "lora"], seed=seeds(1)))
shipped = reference("fine_tuning")

# %% tags=["folded"]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.3))
labels = {"full": "full", "lora": "LoRA, rank 8"}
overlay(left, runs, shipped, x="step", y="heldout_loss", by="method", labels=labels)
overlay(right, runs, shipped, x="step", y="exact", by="method", labels=labels)
left.set(ylabel="held-out loss, nats per token")
right.set(ylabel="fraction of exact held-out answers", ylim=(-0.02, 1.02))
describe(figure, "Held-out loss and fraction of exact answers over 200 steps. Full fine-tuning ends with a lower "
         "loss and more exact answers than LoRA with rank 8 on this small model.")  # fmt: skip
last = [table[table["step"] == table["step"].max()] for table in (runs, shipped)]
mine, theirs = (table.groupby("method")["heldout_loss"].mean() for table in last)
workbook.result(4, mine.combine_first(theirs).idxmin())
print(compare(*last, by=["method"], value="step_milliseconds"))
compare(*last, by=["method"], value="heldout_loss")

# %%
training, held_out = split(RECORDS, 100, seed=1)
table = pd.DataFrame(held_out[:6])
for name, asked in {"base": base(), **TUNED}.items():
    table[name] = answers(asked, held_out[:6])["answer"]
table.head(6)

# %% [markdown]
# **What the result means.** In the reference runs (n = 3) the held-out loss falls from 8.6 nats to 0.65
# with full fine-tuning and to 1.1 with LoRA. 69 % and 38 % of the answers are exact. Full fine-tuning wins
# here. A possible reason is that this base model knows hardly a word of the answers, so much has to
# change, and rank 8 allows only little change. On large models Hu et al. (2021) find no difference. So the
# reasoning "LoRA changes less, therefore it is worse" holds only if the base model is far from the task.
#
# A step of LoRA is not faster here. It saves the gradients of the frozen weights, but A and B are many
# small multiplications more. On GPT-3 it was a quarter faster (Hu et al. 2021).
#
# ## Merging and quantization
#
# For inference, LoRA can be *merged*: $W + \frac{\alpha}{r} B A$ is one matrix again, so the model has its
# old size and speed. *Quantization* stores each weight with fewer bits, for example as an 8-bit integer
# and a common scale per row. This takes a quarter of the bytes of float32.


# %% tags=["folded"]
def row(gpt):
    """Return bytes as stored, held-out loss, and passes over one token, as generation makes them."""
    torch.save(gpt.state_dict(), FOLDER / "weights.pth")
    megabytes = (FOLDER / "weights.pth").stat().st_size / 1e6
    passes = by_run_length(quick=5, learner=100, reference=100)
    token = torch.zeros(1, 1, dtype=torch.int64)
    with torch.inference_mode():
        gpt(token)  # the first is slower
        rate = passes / timeit(lambda: gpt(token), number=passes)
    return {"MB": megabytes, "held-out loss": heldout_loss(gpt), "passes per second": rate}


tuned = TUNED["lora"].cpu().eval()
rows = {"LoRA": row(tuned)}
merged = lm.merged(tuned)
rows["merged"] = row(merged)
try:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(merged, Int8WeightOnlyConfig())
    rows["merged, 8 bits"] = row(merged)
except ImportError as error:
    print(f"torchao is not installed: {error}")
pd.DataFrame(rows).transpose().round(2)

# %% [markdown]
# Merging does not change the loss and makes each pass faster. The 8-bit weights of torchao (the embedding
# stays as it is) are turned back into floats at each use. That pays on models of gigabytes, where reading
# the weights takes most of the time. Our model fits into a cache, so it becomes slower. Training on 4-bit
# weights (QLoRA) needs the library bitsandbytes, which Lightning runs on CUDA only.
#
# ## Strategies of Lightning
#
# Lightning separates the model from the method that distributes it. `LanguageModel` says what a step is,
# and `Trainer(strategy=..., precision=..., devices=...)` says how it is executed. The same code runs with
# mixed precision, and on GPUs of different vendors or on processors, without a change in the model. The
# script `labs/language_model.py` passes its option `--strategy` on:
#
# | `--strategy` | what the ranks do | runs here |
# |---|---|---|
# | `auto` | one device; with several ranks, `ddp` | yes |
# | `ddp` | each rank holds a copy, and gradients are averaged | yes |
# | `fsdp2` | weights, gradients and optimizer state are sharded (Lightning's `ModelParallelStrategy`) | yes |
# | `fsdp` | the same with the older implementation (`FSDPStrategy`) | on GPUs only |
# | `deepspeed` | optimizer state and gradients are sharded (ZeRO stage 2) | on GPUs only |
#
# The last two need GPUs, and this lab uses processors ([what ran on which
# hardware](../docker/README.md#hardware-that-the-course-ran-on)).
#
# Does another strategy train the same model? One rank with 16 records per step and two ranks with 8
# records each see the same 16 records. But the answers have different lengths, so a mean of the means of
# two ranks is not the mean over all tokens. For example, rank 0 has 2 tokens with a mean loss of 1, and
# rank 1 has 8 tokens with a mean loss of 2. The mean of means is 1.5, and the mean over all 10 tokens is
# 1.8. Therefore `LanguageModel.training_step` multiplies the loss of each rank by a factor: the number of its
# tokens, divided by the mean of these numbers over the ranks. Here the factors are 2/5 and 8/5, and the mean of
# $0.4 \cdot 1$ and $1.6 \cdot 2$ is 1.8. Gradient accumulation (lab 9) has the same problem and the same
# solution, with micro-batches in place of ranks.

# %%
# Prediction 5: rank 0 has 3 tokens with a mean loss of 2, and rank 1 has 1 token with a loss of 6. What is the
# mean over all tokens, which a single process computes? Replace both values of None.
workbook.predict(5, None, reason=None)


# %% tags=["folded"]
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

# %%
print("mean over all tokens: (3 x 2 + 1 x 6) / 4 = 3")
workbook.result(5, np.average([2, 6], weights=[3, 1]))
modes = sweep("fine_tuning_strategies", fine_tuning_strategies, settings)
compare(modes, reference("fine_tuning_strategies"), by=by, value="loss_difference")

# %% [markdown]
# **What the result means.** DDP and FSDP2 train the same model as a single rank: the losses of 20 steps
# differ by less than $10^{-5}$, which is rounding. `bf16-mixed` differs by about 0.009, because it
# computes with fewer digits. The mean of prediction 5 is $(3 \cdot 2 + 1 \cdot 6) / 4 = 3$. A prediction
# of 4 is the mean of the two means, and a script that averages the gradients of ranks without weights
# trains with it.
#
# ## Model files and the model list
#
# Where does a pretrained model come from? Most are published on the [Hugging Face
# hub](https://huggingface.co/models). `litgpt download microsoft/phi-1_5` fetches one of them, and `litgpt
# download list` prints all that LitGPT knows. Some models demand that you accept a licence and pass an
# access token. The next cell prints the same list from the installed package, without a network. Most
# names contain the size, for example 7B for 7 billion parameters. The cell also counts the parameters of
# some models with PyTorch's `meta` device, which builds a network without storing its weights.

# %%
by_owner = {}
for entry in configs:
    by_owner.setdefault(entry["hf_config"]["org"], []).append(entry["hf_config"]["name"])
print(f"LitGPT knows {len(configs)} models.")
for owner, names in sorted(by_owner.items(), key=lambda item: -len(item[1])):
    print(f"{owner} ({len(names)}): {', '.join(names)}")
for name in ("pythia-14m", "pythia-160m", "pythia-1b", "phi-1_5", "phi-2", "Llama-3.1-8B"):
    with torch.device("meta"):
        count = sum(p.numel() for p in GPT(Config.from_name(name)).parameters())
    print(f"{count / 1e9:6.2f} billion parameters: {name}")

# %% [markdown]
# A checkpoint is a folder with four kinds of files: the weights, a configuration (number of blocks, width,
# vocabulary), the tokenizer, and the prompt style. A weights file is a dict from names to tensors. Files
# that use Python's *pickle* can run any code when they are loaded, so load them with `weights_only=True`,
# or use the format *safetensors*, which contains only numbers. A *model card* on the hub says on which
# data the model was trained and what its licence allows. The next cell looks into the folder of our own
# base model.

# %%
for path in sorted((FOLDER / "base").iterdir()):
    print(f"{path.name:28} {path.stat().st_size / 1e3:10,.1f} kB")
weights = torch.load(FOLDER / "base" / "lit_model.pth", weights_only=True)
for name, tensor in list(weights.get("model", weights).items())[:5]:
    print(f"{name:40} {tuple(tensor.shape)}")

# %% [markdown]
# ## Fine-tuning phi-1.5 on a cluster
#
# Each of these lines, in the folder of the repository, starts the same ranks. The first makes the model
# from which the settings in `lora.yaml` begin:
#
#     hvdlab run -np 2 labs/language_model.py pretrain --strategy ddp --out runs/base
#     hvdlab run -np 2 labs/language_model.py finetune --config labs/configs/lora.yaml --out runs/tuned
#     torchrun --nproc-per-node 2 labs/language_model.py finetune --config labs/configs/lora.yaml --out runs/tuned
#     srun --ntasks-per-node 2 python labs/language_model.py finetune --config labs/configs/lora.yaml --out runs/tuned
#
# A file with settings makes a run repeatable, and options on the command line override it.
# `labs/configs/phi_alpaca.yaml` describes a run with real weights and real records: phi-1.5 of Microsoft, 1.4
# billion parameters, on 52,000 cleaned Alpaca records, with four ranks and 8 records per rank. The *global
# batch size* is therefore 32. If only 2 records at a time fit into a GPU, each rank makes 4 micro-batches per
# step, $4 \cdot 4 \cdot 2 = 32$, and training is the same. As long as the whole model with its optimizer
# state fits into one GPU, `ddp` is the better choice. FSDP saves memory, but it must also gather the weights
# in every layer, so it sends 1.5 times as much (lab 12). With the strategy `fsdp` each of the four GPUs holds
# a quarter of the weights, gradients and optimizer state, $16 \cdot 1.4 / 4 = 5.6$ GB, and the activations
# come in addition:
#
#     litgpt download microsoft/phi-1_5
#     sbatch --ntasks-per-node=4 --gres=gpu:4 docker/slurm/torch.sbatch labs/language_model.py finetune --config labs/configs/phi_alpaca.yaml --out runs/phi
#
# LitGPT has a command of its own for the same task: `litgpt finetune_full microsoft/phi-1_5 --data Alpaca
# --devices 4 --train.global_batch_size 32`. These runs were **not run** for the course, because it has
# neither a network nor such GPUs. The tests check that the settings are accepted and that LitGPT knows the
# model. `labs/configs/pythia_fsdp.yaml` does the same with Pythia, 1 billion parameters.
#
# ## Records of people
#
# Instructions of people are more varied than five kinds of question. If your folder `HVDLAB_DATA` has such
# records, the next cell fine-tunes our model on them and evaluates it on records that it has never seen.
# The reference curve belongs to the 175 seed tasks of Self-Instruct.


# %% tags=["folded"]
def fine_tuning_own(seed):
    own = dict(examples=[encode(record) for record in OWN], left=len(OWN) // 5)
    steps = by_run_length(quick=2, learner=60, reference=60)
    return fine_tune(base(), 1e-3, steps, language_loss, collate, seed, **own).curve


own = sweep("fine_tuning_own", fine_tuning_own, grid(seed=seeds(1))) if OWN else None
figure, axes = plt.subplots()
overlay(axes, own, reference("fine_tuning_own"), x="step", y="heldout_loss")
axes.set(ylabel="held-out loss, nats per token", title="Instructions written by people")
describe(figure, "Held-out loss on instructions of people over 60 steps of fine-tuning. It falls from about 5.4 "
         "to 4.8 nats, much less than on the synthetic records.")  # fmt: skip

# %% [markdown]
# In the reference runs the loss falls from 5.4 to 4.8 nats, much less than above. The records are few, and
# they ask for knowledge that a model with two thirds of a million parameters cannot have. The same script
# with a large pretrained model is the remedy.
#
# ## Summary
#
# * A language model predicts the next token. Attention lets each token use the tokens before it, and a
#   transformer is a stack of blocks with attention and a feed-forward network.
# * Before training, the loss is $\ln$ of the vocabulary size, here 6.9 nats.
# * Fine-tuning continues the training of an existing model. Inference uses it, one token at a time, and is
#   limited by reading the weights.
# * Give the prompt and the padding the label -100, keep the end token, and shift exactly once. None of
#   these mistakes raises an error, so generate from what you trained and read the answers.
# * LoRA trains a change of low rank. It saves the memory of gradients and optimizer state, but hardly that
#   of activations. Here it reached a loss of 1.1, and full fine-tuning reached 0.65.
# * After `strict=False`, check what was not loaded.
# * With Lightning the strategy is an argument. DDP and FSDP2 trained the same model as one rank, to
#   $10^{-5}$.
#
# **Calculators:** the page `labs/calculators/memory.html` computes the memory of LoRA and QLoRA for larger models,
# and `kv_cache.html` next to it how many sequences fit a GPU that generates text. Open them in a browser.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="c")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=5.545)

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="a")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer=1.17)

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="d")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer="b")

# %% [markdown]
# Next: in [lab 16](16_find_the_fault.ipynb) you diagnose training runs that fail.
