"""The facts that explain a failed check name the place that matters, and no comment."""

import pytest

from hvdgrade.submission.review import review
from hvdgrade.submission.script_facts import Place, ScriptFacts
from hvdlab.script_analysis.script import Script

SOURCE = '''"""No Adasum here."""
import numpy as np
import torch
import horovod.torch as hvd
from torch.utils.data import DataLoader
# op=hvd.Adasum would be wrong
rng = np.random.default_rng(0)
order = rng.permutation(10)
loader = DataLoader([], 8)
for x, y in loader:
    x = x + torch.randn(3)
    loss = torch.nn.functional.cross_entropy(x, y, reduction="sum")
optimizer = hvd.DistributedOptimizer(None, op=hvd.Adasum)
'''


def test_names_the_first_place_of_each_kind():
    facts = ScriptFacts.of(Script(SOURCE.encode()))
    assert facts.adasum == Place(13, "Adasum")
    assert facts.reader == Place(9, "DataLoader")
    assert facts.random == Place(11, "torch.randn")  # in the loop, before the shuffle outside of it
    assert facts.sum_loss == Place(12, 'reduction="sum"')
    assert "horovod.torch" in facts.imports
    assert ScriptFacts.from_json(facts.to_json()) == facts == review(SOURCE.encode()).facts


@pytest.mark.parametrize("line", ["# Adasum", "x = 'Adasum'", "x.reduction = 'sum'", "rng.seed(1)"])
def test_words_in_comments_and_strings_are_no_facts(line):
    facts = ScriptFacts.of(Script(f"import torch\n{line}\n".encode()))
    assert facts == ScriptFacts(imports=frozenset({"torch"}))


def test_a_source_that_cannot_be_analysed_has_no_facts():
    assert review(b"x = (").facts == ScriptFacts()
