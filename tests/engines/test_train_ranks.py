"""Training on several ranks: the same losses and weights as alone, whatever each rank gets."""

import pytest
import ranked

from easyr1.models.build import ModelSpec
from easyr1.models.ranks import ALONE

KINDS = ("qwen2", "qwen2_5_vl")
SHARES = (ranked.alternating, ranked.pictures_apart, ranked.all_on_the_last)


@pytest.fixture(scope="module", params=KINDS)
def training(request, tmp_path_factory):
    folder = ranked.saved(request.param, tmp_path_factory.mktemp(request.param))
    return ranked.Training(ModelSpec(str(folder)), request.param)


def test_one_rank_of_a_process_group_is_the_plain_model_to_the_last_bit(training):
    ranked.assert_same(ranked.on(1, training), ranked.run(training, ALONE), tolerance=0)


@pytest.mark.parametrize("shares", SHARES)
def test_two_ranks_train_like_one(training, shares):
    training = replace(training, shares=shares)
    ranked.assert_same(ranked.on(2, training), ranked.run(training, ALONE))
