"""Training with split blocks on real ranks: right and wrong blocks, as in lab 13."""

import numpy as np
import pytest
from split_blocks import all_reduce_both_ways, bias_on_every_rank, block, f_and_g, no_f, part_of

from hvdlab.course.split_training import BATCH, HIDDEN, LAYERS, STEPS, train


def local(split, shared, most):
    import torch

    torch.nn.utils.clip_grad_norm_([*split, *shared], most)


@pytest.mark.mpi
@pytest.mark.data
def test_each_mistake_has_its_symptoms():
    found = train([block, bias_on_every_rank, no_f, all_reduce_both_ways], part_of, f_and_g)
    off = [np.abs(np.subtract(one["losses"], one["alone"])) for one in found]
    apart = [one["copies apart"] for one in found]

    assert len(found[0]["losses"]) == STEPS
    assert off[0].max() < 1e-5
    assert found[0]["weights off"] < 1e-5
    assert apart[0] == 0
    foretold = 2 * LAYERS * 4 * BATCH * HIDDEN  # two ranks: an all-reduce sends an array once
    assert foretold < found[0]["sent"] < 1.1 * foretold

    assert off[1][0] > 1e-3 and apart[1] == 0  # the bias: wrong from the first loss on
    assert off[2][0] < 1e-6 < 1e-3 < off[2].max() and apart[2] > 1e-3
    assert off[3][0] < 1e-6 < 1e-3 < off[3].max() and apart[3] == 0


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.thorough
def test_clipping_by_a_rank_alone_drives_the_copies_apart():
    (found,) = train([block], part_of, f_and_g, clip=local)
    assert found["copies apart"] > 1e-4
    assert found["losses"][0] == pytest.approx(found["alone"][0], abs=1e-6)
