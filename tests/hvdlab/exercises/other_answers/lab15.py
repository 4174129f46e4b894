"""Right answers of lab 15 in other styles."""

import math
from functools import partial

import numpy as np
import torch
from litgpt import GPT, lora
from torch import nn
from torch.nn import functional as F

from hvdlab.torch import language_model as lm


def attention_row_by_row(queries, keys, values):
    """Without a mask: token t uses the first t + 1 keys."""
    rows = []
    for t, query in enumerate(queries):
        weights = (keys[: t + 1] @ query / len(query) ** 0.5).softmax(0)
        rows.append(weights @ values[: t + 1])
    return torch.stack(rows)


def attention_with_numpy(queries, keys, values):
    weights = np.tril(np.exp(queries.numpy() @ keys.numpy().T / math.sqrt(queries.shape[1])))
    return weights @ values.numpy() / weights.sum(1, keepdims=True)


def attention_of_torch(queries, keys, values):
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def text_with_a_copy(next_scores, ids, limit, end):
    text = list(ids)
    for _ in range(limit):
        scores = next_scores(text)
        text.append(scores.index(max(scores)))
        if text[-1] == end:
            break
    return text[len(ids) :]


def text_as_recursion(next_scores, ids, limit, end):
    if limit == 0:
        return []
    token = torch.tensor(next_scores(ids)).argmax()
    more = [] if token == end else text_as_recursion(next_scores, [*ids, token], limit - 1, end)
    return [token, *more]


def example_with_loops(prompt, answer, end):
    ids, labels = [], []
    for token in prompt:
        ids.append(token)
        labels.append(-100)
    for token in [*answer, end]:
        ids.append(token)
        labels.append(token)
    return [ids, labels]


def example_as_tensors(prompt, answer, end):
    ids = torch.tensor([*prompt, *answer, end])
    return ids, ids.masked_fill(torch.arange(len(ids)) < len(prompt), -100)


def loss_by_hand(logits, labels):
    chances = logits.log_softmax(-1)
    return -torch.stack(
        [
            chances[row, at - 1, label]
            for row, line in enumerate(labels.tolist())
            for at, label in enumerate(line)
            if label != -100 and at > 0
        ]
    ).mean()


def collate_of_torch(examples, end):
    """With one thing more."""
    ids, labels = ([torch.tensor(row) for row in rows] for rows in zip(*examples, strict=True))
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    ids, labels = pad(ids, padding_value=end), pad(labels, padding_value=-100)
    return {"input_ids": ids, "labels": labels, "attention_mask": labels != -100}


def collate_into_full_tensors(examples, end):
    shape = len(examples), max(len(ids) for ids, _ in examples)
    ids, labels = torch.full(shape, end), torch.full(shape, -100)
    for row, (some, of_some) in enumerate(examples):
        ids[row, : len(some)] = torch.tensor(some)
        labels[row, : len(some)] = torch.tensor(of_some)
    return {"labels": labels, "input_ids": ids}


class OtherNames(nn.Module):
    """Nobody says what the frozen layer is called, or which of the two is zero."""

    def __init__(self, linear, rank, alpha):
        nn.Module.__init__(self)
        self.base, self.scale = linear.requires_grad_(False), alpha / rank
        self.A = nn.Parameter(torch.zeros(rank, linear.in_features))
        self.B = nn.Parameter(torch.randn(linear.out_features, rank))

    def forward(self, x):
        return F.linear(x, self.merged())

    def merged(self):
        return self.base.weight + self.scale * self.B @ self.A


class WithBuffer(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().clone())
        self.A = nn.Parameter(torch.empty(rank, linear.in_features))
        nn.init.kaiming_uniform_(self.A)
        self.register_parameter("B", nn.Parameter(torch.zeros(len(self.weight), rank)))
        self.rank, self.alpha = rank, alpha

    def forward(self, x):
        change = F.linear(F.linear(x, self.A), self.B) * self.alpha / self.rank
        return F.linear(x, self.weight) + change

    @torch.no_grad()
    def merged(self):
        return torch.addmm(self.weight, self.B, self.A, alpha=self.alpha / self.rank)


def lora_with_all_names(state, config, rank, alpha):
    layers = {name: getattr(config, name) for name in config.__dataclass_fields__}
    model = lora.GPT(lora.Config(**layers, **lm.EVERYWHERE, lora_r=rank, lora_alpha=alpha))
    names = GPT(config).state_dict().keys()
    for name in names:
        if f"gpt.{name}" not in state:
            raise ValueError(f"{name} is missing")
    model.load_state_dict({name: state[f"gpt.{name}"] for name in names}, strict=False)
    for name, value in model.named_parameters():
        value.requires_grad = "lora_" in name
    return model


def lora_of_a_model(state, config, rank, alpha):
    base = lm.LanguageModel(GPT(config), learning_rate=0.0)
    try:
        base.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError("a weight is missing") from error
    return lm.with_lora(base.gpt, rank, alpha)


attention = [attention_row_by_row, attention_with_numpy, attention_of_torch]
continue_text = [text_with_a_copy, text_as_recursion]
example = [example_with_loops, example_as_tensors]
language_loss = [
    loss_by_hand,
    lm.next_token_loss,
    lambda logits, labels: F.cross_entropy(logits.transpose(1, 2)[..., :-1], labels[:, 1:]),
]
collate = [collate_of_torch, collate_into_full_tensors, lm.padded]
LoRALinear = [OtherNames, WithBuffer]
lora_from = [lora_with_all_names, lora_of_a_model]
bytes_held = [
    lambda parameters, trained: 4 * (parameters - trained) + 16 * trained,
    lambda parameters, trained: np.dot([4, 12], [parameters, trained]),
]
