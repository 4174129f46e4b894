"""Exercises of lab 15 on attention, and on generation token by token."""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from hvdlab.exercises import NotYet, call_unchanged, numbers
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def attention(queries, keys, values):
    tokens, width = queries.shape
    scores = queries @ keys.T / width**0.5
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return weights @ values


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


# fmt: off
RANDOM = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(1))
THEIRS = F.scaled_dot_product_attention(*RANDOM[:, None, None], is_causal=True)[0, 0].numpy()
FILL = "masked_fill(hidden, -torch.inf)"
check_attention = FunctionExercise(
    attention,
    [
        Case((column(1.0, 2), column(1.0, 0), column(10.0, 20)), "Token 0 sees only itself. Token 1 has the "
             "scores 2 and 0, so its weights are 0.88 and 0.12.", 
             "attention of queries 1, 2, keys 1, 0 and values 10, 20",
             [[10], [(10 * np.exp(2) + 20) / (np.exp(2) + 1)]]),
        Case(tuple(RANDOM), "The result must be softmax(q k^T / sqrt(width)) v, where token t sees the "
             "tokens 0 to t. Compare the first row: token 0 sees only itself, so its output is the first row "
             "of the values.", "attention of 4 tokens of width 3", THEIRS),
    ],
    {
        "Tokens see the tokens after them. Set those scores to minus infinity before the softmax.":
            (f".{FILL}", ""),
        "The scores are not divided by the square root of the width.": (" / width**0.5", ""),
        "The scores are divided by the width. Divide by its square root.": ("width**0.5", "width"),
        "The scores are divided by the root of the number of tokens: it is the root of the width.":
            ("width**0.5", "tokens**0.5"),
        "The softmax runs over the wrong dimension: the weights of each row must sum to 1.":
            [("softmax(-1)", "softmax(0)"), ("softmax(-1)", "softmax(0).nan_to_num()")],
        "A hidden score of 0 is a weight of exp(0), not of 0. Use minus infinity.":
            [("-torch.inf", "0"), (FILL, "tril()")],
        "The weights of hidden tokens are removed after the softmax, so the rest does not sum to 1.":
            (f"{FILL}.softmax(-1)", "softmax(-1).masked_fill(hidden, 0)"),
        "The softmax is missing: scores are not weights.": (f"{FILL}.softmax(-1)", "masked_fill(hidden, 0)"),
        "A token sees only itself and the tokens after it. The mask is upside down.": ("triu(1)", "tril(-1)"),
        "Keys and queries are exchanged: row t belongs to the query of token t.":
            ("queries @ keys.T", "keys @ queries.T"),
        "Some outputs are nan: a token must at least see itself, so keep the diagonal.":
            ("triu(1)", "triu(0)"),
    },
    passed="your attention agrees with PyTorch's scaled_dot_product_attention. Each token takes a weighted "
    "mean of the values of itself and of the tokens before it.",
    shape=None, rtol=1e-5, atol=1e-5,
)
# fmt: on


def continue_text(next_scores, ids, limit, end):
    new = []
    while len(new) < limit:
        best = int(np.argmax(next_scores(ids + new)))
        new.append(best)
        if best == end:
            break
    return new


def counts_up(ids: list[int]) -> list[float]:
    """Give the highest score to the last token plus one, modulo 5."""
    return [float(token == (ids[-1] + 1) % 5) for token in range(5)]


def tokens_and_questions(
    continue_text: Callable, next_scores: Callable, ids: list[int], limit: int, end: int
) -> dict[str, object]:
    """Return the new tokens, and what `next_scores` was asked last."""
    asked = []

    def scores(ids: list[int]) -> list[float]:
        asked.append(list(ids))
        if len(asked) > 100:
            raise NotYet(
                "continue_text does not end: stop at the token `end` and after `limit` tokens."
            )
        return next_scores(ids)

    found = call_unchanged(continue_text, scores, ids, limit, end, name="continue_text")
    return {
        "": numbers(found, "continue_text", None),
        "What next_scores gets last in": np.array(asked[-1]) if asked else None,
    }


# fmt: off
check_continue_text = FunctionExercise(
    continue_text,
    [
        Case((counts_up, ids, limit, 4), reason)
        for ids, limit, reason in (
            ([0, 1], 10, "The scores count up, and 4 is the end, which belongs to the answer: 2, 3, 4."),
            ([0], 2, "After `limit` tokens the answer stops, even without an end: 1, 2."),
            ([3, 0], 3, "`limit` is the number of the new tokens, without the prompt: 1, 2, 3."),
            ([3], 10, "The first new token is the end already: 4."),
            ([4, 0], 1, "An end within the prompt does not count: 1."))
    ],
    {
        "Return the new tokens only, without the prompt.": ("return new", "return ids + new"),
        "The end token belongs to the answer.":
            [("return new", "return [token for token in new if token != end]"),
             ("        new.append(best)\n        if best == end:\n            break",
              "        if best == end:\n            break\n        new.append(best)")],
        "It continues too long: stop at the token `end`.": ("if best == end", "if False"),
        "It continues too long: stop after `limit` tokens.": ("len(new) < limit", "len(new) < 50"),
        "It stops a token too early: `limit` is the number of the new tokens.":
            ("len(new) < limit", "len(new) < limit - 1"),
        "`limit` is the number of the new tokens, without those of the prompt.":
            ("len(new) < limit", "len(ids + new) < limit"),
        "An end within the prompt does not count: look at the new tokens only.":
            ("while ", "while end not in ids and "),
        "next_scores must get the tokens that were generated so far as well.": ("ids + new))", "ids))"),
        "next_scores must get the prompt as well, not only the last tokens.":
            ("ids + new))", "(ids + new)[-1:]))"),
    },
    passed="each new token becomes part of the input of the next one. This is why an answer is generated one "
    "token at a time, and cannot be computed in parallel.",
    observe=tokens_and_questions,
)
# fmt: on
