"""The checks of lab 7 pass right answers, and name the mistake in wrong ones."""

import numpy as np
import pytest
from changed import changed

from hvdlab import reference
from hvdlab.exercises import NotYet
from hvdlab.exercises import lab07_large_batch_remedies as exercises

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)

# --- ghost batch norm ------------------------------------------------------------------------------


def ghost(x, ghost_size, eps):
    y = np.zeros_like(x)
    for start in range(0, len(x), ghost_size):
        part = x[start : start + ghost_size]
        mean, var = part.mean(axis=0, keepdims=True), part.var(axis=0, keepdims=True)
        y[start : start + ghost_size] = (part - mean) / np.sqrt(var + eps)
    return y


def along(axis):
    return changed(ghost, "mean(axis=0", f"mean(axis={axis}", "var(axis=0", f"var(axis={axis}")


def ghost_in_place(x, size, eps):
    x[:] = ghost(x, size, eps)
    return x


def whole_ghosts(x, size):
    return len(x) // size * size


def untouched(x, size, eps):
    y = x.copy()
    y[: whole_ghosts(x, size)] = ghost(x, size, eps)[: whole_ghosts(x, size)]
    return y


def merged(x, size, eps):
    edges = [*range(size, whole_ghosts(x, size), size)]
    return np.concatenate([ghost(part, len(part), eps) for part in np.split(x, edges)])


def strided(x, size, eps):
    y = x.copy()
    ghosts = -(-len(x) // size)
    for i in range(ghosts):
        y[i::ghosts] = ghost(x[i::ghosts], len(x), eps)
    return y


def equal_parts(x, size, eps):
    parts = np.array_split(x, -(-len(x) // size))
    return np.concatenate([ghost(part, len(part), eps) for part in parts])


def test_ghost_batch_norm_passes(capsys):
    exercises.check_ghost_batch_norm(ghost)
    assert "Right" in capsys.readouterr().out


MISTAKES[exercises.check_ghost_batch_norm] = [
    (ghost_in_place, "changes what it is given"),
    (lambda x, size, eps: ghost(x, len(x), eps), "statistics of the whole batch"),
    (changed(ghost, "var(axis=0", "var(axis=0, ddof=1"), "unbiased"),
    (along(None), "Features are mixed"),
    (along((0, 1)), "Features are mixed"),
    (along(1), "layer norm"),
    (changed(ghost, "np.sqrt(var + eps)", "(var + eps)"), "divide by its root"),
    (changed(ghost, "np.sqrt(var + eps)", "(np.sqrt(var) + eps)"), "under the root"),
    (lambda x, size, eps: ghost(x, size, 0), "eps is not used"),
    (changed(ghost, "(0, len(x), ", "(0, len(x) // ghost_size * ghost_size, "), "becomes zeros"),
    (lambda x, size, eps: ghost(x, size, eps)[: whole_ghosts(x, size)], "of 2 rows, is dropped"),
    (untouched, "left as it came"),
    (merged, "smaller ghost of its own"),
    (equal_parts, "nearly equal parts"),
    (strided, "strided"),
    (lambda x, size, eps: None, "is `return` missing"),
    (lambda x, size, eps: ghost(x, size, eps)[0], "must return an array of numbers of shape"),
    (lambda x, size, eps: "text", "must return an array of numbers"),
]  # fmt: skip


# --- growing the batch -----------------------------------------------------------------------------


def growth(n, batch, milestones, factor, epochs, shift=0, down=False, grown=None):
    total = 0
    for epoch in range(epochs):
        passed = sum(milestone <= epoch + shift for milestone in milestones)
        size = grown(batch, factor, passed) if grown else batch * factor**passed
        total += n // size if down else -(-n // size)
    return total


def takes_milestones_away(n, batch, milestones, factor, epochs):
    total = 0
    for epoch in range(epochs):
        if milestones and epoch == milestones[0]:
            batch *= factor
            milestones.pop(0)
        total += -(-n // batch)
    return total


def grows_in_every_epoch(n, batch, milestones, factor, epochs):
    total = 0
    for epoch in range(epochs):
        if any(epoch >= milestone for milestone in milestones):
            batch *= factor
        total += -(-n // batch)
    return total


@pytest.mark.parametrize("kind", [int, float, np.int64, np.array])
def test_updates_pass(capsys, kind):
    exercises.check_updates_with_growth(lambda *a: kind(growth(*a)))
    assert "Right" in capsys.readouterr().out


MISTAKES[exercises.check_updates_with_growth] = [
    (lambda *a: growth(*a, grown=lambda batch, factor, passed: batch), "does not grow"),
    (lambda *a: growth(*a, down=True), "Short batches are dropped"),
    (lambda *a: growth(*a, shift=-1), "an epoch late"),
    (lambda *a: growth(*a, shift=1), "an epoch early"),
    (lambda *a: growth(*a, grown=lambda b, f, p: b * f ** min(p, 1)), "once only"),
    (lambda *a: growth(*a, grown=lambda b, f, p: b * f * p or b), "4 . 4, not 4 . 4"),
    (lambda *a: growth(*a, grown=lambda b, f, p: b + f * p), "multiply"),
    (lambda n, b, m, f, e: -(-n // (b * f ** len(m))), "add up all epochs"),
    (lambda n, b, m, f, e: -(-n * e // b) if not m else growth(n, b, m, f, e), "round once"),
    (lambda n, *a: growth(n + 1, *a), "one update too many"),
    (grows_in_every_epoch, "again in every epoch"),
    (takes_milestones_away, "changes what it is given"),
    (lambda *a: growth(*a) + 8, "is 34, expected 26"),
    (lambda *a: growth(*a) + 0.5, "one whole number"),
    (lambda *a: None, "one whole number"),
]  # fmt: skip


# --- LARS ------------------------------------------------------------------------------------------


def lars(w, g, v, rate, momentum, decay, trust):
    w_norm, g_norm, u = np.linalg.norm(w), np.linalg.norm(g), g + decay * w
    local = trust * w_norm / (g_norm + decay * w_norm) if w_norm > 0 and g_norm > 0 else 1.0
    v = momentum * v + local * u
    return w - rate * v, v


GUARD = "w_norm > 0 and g_norm > 0"
NORMS = "(g_norm + decay * w_norm)"


def lars_in_place(w, g, v, *a):
    w[:], v[:] = lars(w, g, v, *a)
    return w, v


@pytest.mark.parametrize(
    "answer",
    [
        lars,
        lambda w, g, v, *a: [np.asarray(x) for x in lars(w, g, v, *a)],
        lambda *a: np.array(lars(*a)),
    ],
)
def test_lars_passes(capsys, answer):
    exercises.check_lars_update(answer)
    assert "Right" in capsys.readouterr().out


def test_lars_passes_the_reference():
    exercises.check_lars_update(
        lambda w, g, v, rate, momentum, decay, trust: reference.lars(
            w, g, v, rate, momentum=momentum, weight_decay=decay, trust_coefficient=trust
        )
    )


MISTAKES[exercises.check_lars_update] = [
    (changed(lars, NORMS, "np.linalg.norm(u)"), "joint norm"),
    (changed(lars, NORMS, "g_norm"), "decay is missing in the denominator"),
    (changed(lars, NORMS, "(g_norm + w_norm)"), "without the decay"),
    (changed(lars, GUARD, "True"), "never leave zero"),
    (changed(lars, GUARD, "(w_norm > 0) == (g_norm > 0)"), "nan"),
    (changed(lars, GUARD, "w_norm > 0"), "guard is missing"),
    (changed(lars, "rate * v", "v"), "learning rate is left out"),
    (changed(lars, "+ local", "+ rate * local", "- rate * v", "- v"), "inside of the velocity"),
    (changed(lars, "* u", "* g", "rate * v", "rate * (v + decay * w)"), "decay is outside of the step"),
    (changed(lars, "local * u", "local * g + decay * w"), "decay is outside:"),
    (changed(lars, "momentum * v + ", ""), "old velocity is not used"),
    (lambda *a: lars(*a[:-1], 1.0), "trust coefficient is left out"),
    (lars_in_place, "lars_in_place changes what it is given"),
    (lambda *a: lars(*a)[0], "must return"),
    (lambda *a: None, "must return"),
    (lambda *a: (None, None), "is `return` missing"),
    (lambda w, *a: (w[:1], w), "must return an array of numbers of shape"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
