"""The checks of attention and generation in lab 15: right answers pass, and mistakes are named."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("litgpt", reason="needs LitGPT: run `make setup`")

from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import lab15_generation as exercises  # noqa: E402


def attention(queries, keys, values, *, root=0.5, dim=-1, fill=-torch.inf, lower=False, late=False):
    tokens, width = queries.shape
    scores = queries @ keys.T / width**root
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    hidden = hidden.T if lower else hidden
    if late:
        return scores.softmax(dim).masked_fill(hidden, 0) @ values
    return scores.masked_fill(hidden, fill).softmax(dim) @ values


def row_by_row(queries, keys, values):
    """As right, without a mask: token t uses the first t + 1 keys."""
    rows = []
    for t, query in enumerate(queries):
        weights = (keys[: t + 1] @ query / len(query) ** 0.5).softmax(0)
        rows.append(weights @ values[: t + 1])
    return torch.stack(rows)


def continue_text(next_scores, ids, limit, end):
    new = []
    while len(new) < limit:
        scores = next_scores(ids + new)
        new.append(scores.index(max(scores)))
        if new[-1] == end:
            break
    return new


def without_end(*arguments):
    new = continue_text(*arguments)
    return new[:-1] if new[-1] == arguments[-1] else new


def never_stops_at_the_end(next_scores, ids, limit, end):
    return continue_text(next_scores, ids, limit, None)


def forgets_the_limit(next_scores, ids, limit, end):
    return continue_text(next_scores, ids, 50, end)


def same_input(next_scores, ids, limit, end):
    scores = next_scores(ids)
    return [scores.index(max(scores))] * limit


def in_place(next_scores, ids, limit, end):
    new = continue_text(next_scores, ids, limit, end)
    ids += new
    return new


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (exercises.check_attention, attention),
        (exercises.check_attention, row_by_row),
        (exercises.check_continue_text, continue_text),
    ],
)
def test_a_right_answer_is_right(check, answer, capsys):
    check(answer)
    assert capsys.readouterr().out.startswith("Right: ")


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (exercises.check_attention, lambda q, k, v: (q @ k.T / 3**0.5).softmax(-1) @ v,
         "the tokens after them"),
        (exercises.check_attention, lambda *x: attention(*x, root=0), "not divided by the square root"),
        (exercises.check_attention, lambda *x: attention(*x, root=1), "Divide by its square root"),
        (exercises.check_attention, lambda *x: attention(*x, dim=0), "over the wrong dimension"),
        (exercises.check_attention, lambda *x: attention(*x, fill=0), "Use minus infinity"),
        (exercises.check_attention, lambda *x: attention(*x, late=True), "removed after the softmax"),
        (exercises.check_attention, lambda *x: attention(*x, lower=True), "upside down"),
        (exercises.check_attention, lambda q, k, v: attention(k, q, v), "are exchanged"),
        (exercises.check_attention, lambda q, k, v: v, "token 0 sees only itself"),
        (exercises.check_attention, lambda q, k, v: v[0], "must return a .4, 3. tensor"),
        (exercises.check_continue_text, lambda f, i, n, e: i + continue_text(f, i, n, e),
         "without the prompt"),
        (exercises.check_continue_text, without_end, "the end token belongs to the answer"),
        (exercises.check_continue_text, never_stops_at_the_end, "continues too long"),
        (exercises.check_continue_text, forgets_the_limit, "After `limit` tokens"),
        (exercises.check_continue_text, same_input, "continues too long"),
        (exercises.check_continue_text, in_place, "changes what it is given"),
        (exercises.check_continue_text, lambda f, i, n, e: None, "is `return` missing"),
        (exercises.check_continue_text, lambda f, i, n, e: [0], "expected"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
