"""Checks of lab 15 for attention and for generation, token by token."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from hvdlab.exercises import NotYet, call, exercise, right


@exercise
def check_attention(attention: Callable) -> None:
    """Demand softmax(q k^T / sqrt(d)) v, in which a token sees itself and the tokens before it.

    Args:
        attention: The learner's `attention(queries, keys, values)` of one head.
    """
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = (torch.randn(4, 3, generator=generator) for _ in range(3))
    answer = call(attention, queries.clone(), keys.clone(), values.clone())
    if not (torch.is_tensor(answer) and answer.shape == (4, 3)):
        raise NotYet(
            f"attention of 4 tokens of width 3 must return a (4, 3) tensor. Received: {answer!r}"
        )
    expected = F.scaled_dot_product_attention(
        queries[None, None], keys[None, None], values[None, None], is_causal=True
    )[0, 0]
    if torch.allclose(answer, expected, atol=1e-5):
        return right(
            "your attention agrees with PyTorch's scaled_dot_product_attention. Each token takes a weighted "
            "mean of the values of itself and of the tokens before it."
        )
    scores = queries @ keys.T / 3**0.5
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    causal = scores.masked_fill(hidden, -torch.inf)
    mistakes = {
        "Tokens see the tokens after them. Set those scores to minus infinity before the softmax.":
            scores.softmax(-1) @ values,
        "The scores are not divided by the square root of the width, here 3.":
            (queries @ keys.T).masked_fill(hidden, -torch.inf).softmax(-1) @ values,
        "The scores are divided by the width. Divide by its square root.":
            (queries @ keys.T / 3).masked_fill(hidden, -torch.inf).softmax(-1) @ values,
        "The softmax runs over the wrong dimension: the weights of each row must sum to 1.":
            causal.softmax(0).nan_to_num() @ values,
        "A hidden score of 0 is a weight of exp(0), not of 0. Use minus infinity.":
            scores.masked_fill(hidden, 0).softmax(-1) @ values,
        "The weights of hidden tokens are removed after the softmax, so the rest does not sum to 1.":
            scores.softmax(-1).masked_fill(hidden, 0) @ values,
        "The softmax is missing: scores are not weights.": scores.masked_fill(hidden, 0) @ values,
        "A token sees only the tokens after it. The mask is upside down.":
            scores.masked_fill(hidden.T, -torch.inf).softmax(-1) @ values,
        "Keys and queries are exchanged: row t belongs to the query of token t.":
            (keys @ queries.T / 3**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ values,
    }  # fmt: skip
    for sentence, wrong in mistakes.items():
        if torch.allclose(answer, wrong, atol=1e-5, equal_nan=True):
            raise NotYet(sentence)
    if answer.isnan().any():
        raise NotYet(
            "some outputs are nan: a token must at least see itself, so keep the diagonal."
        )
    raise NotYet(
        "the outputs differ from softmax(q k^T / sqrt(width)) v. Compare the first row: token 0 sees only "
        "itself, so its output is the first row of the values."
    )


@exercise
def check_continue_text(continue_text: Callable) -> None:
    """Demand a loop that appends the likeliest token until the end or the limit.

    Args:
        continue_text: The learner's `continue_text(next_scores, ids, limit, end)`.
    """
    asked: list[list[int]] = []

    def counts_up(ids: list[int]) -> list[float]:
        """Give the highest score to the last token plus one, modulo 5."""
        asked.append(list(ids))
        if len(asked) > 100:
            raise NotYet(
                "continue_text does not end: stop at the token `end` and after `limit` tokens."
            )
        return [float(token == (ids[-1] + 1) % 5) for token in range(5)]

    for ids, limit, expected, why in (
        ([0, 1], 10, [2, 3, 4], "The scores count up, and 4 is the end, which belongs to the answer."),
        ([0], 2, [1, 2], "After `limit` tokens the answer stops, even without an end."),
        ([3], 10, [4], "The first new token is the end already."),
        ([4, 0], 1, [1], "An end within the prompt does not count."),
    ):  # fmt: skip
        asked.clear()
        given = list(ids)
        answer = call(continue_text, counts_up, given, limit, 4)
        case = f"continue_text(next_scores, {ids}, limit={limit}, end=4)"
        if given != ids:
            raise NotYet(
                f"{case} changes what it is given: use a list of your own for the new tokens."
            )
        if answer is None:
            raise NotYet(f"{case} returned None: is `return` missing?")
        found = [int(token) for token in answer]
        if found == expected:
            if len(asked) > 1 and asked[1] == ids:
                raise NotYet("next_scores must get the tokens that were generated so far as well.")
            continue
        if found == [*ids, *expected]:
            raise NotYet(f"{case} is {found}: return the new tokens only, without the prompt.")
        if [*found, 4] == expected:
            raise NotYet(f"{case} is {found}: the end token belongs to the answer.")
        if len(found) > len(expected):
            raise NotYet(f"{case} is {found}, expected {expected}. It continues too long. {why}")
        raise NotYet(f"{case} is {found}, expected {expected}. {why}")
    right(
        "each new token becomes part of the input of the next one. This is why an answer is generated one "
        "token at a time, and cannot be computed in parallel."
    )
