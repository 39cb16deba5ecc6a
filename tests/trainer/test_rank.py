"""What a rank does with its engines besides calling them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from easyr1.config.actor import OffloadConfig
from easyr1.config.schema import Config
from easyr1.models.ranks import ALONE
from easyr1.trainer.rank import resting

MANY = replace(ALONE, world=2, mesh=object())  # type: ignore[arg-type]


def engine(trained: bool = True, is_own: bool = True):
    scored = SimpleNamespace()
    scored.root = scored if is_own else SimpleNamespace()
    return SimpleNamespace(scored=scored, optimizer=object() if trained else None)


def config(both: bool) -> Config:
    offload, plain = OffloadConfig(both, both), Config()
    parts = {name: replace(getattr(plain.worker, name), offload=offload) for name in ("actor", "ref", "critic")}
    return replace(plain, worker=replace(plain.worker, **parts))


def put_away(config: Config, engines, ranks):
    names = {id(one): name for name, one in engines.items()}
    return {names[id(one.engine)]: (one.weights, one.optimizer) for one in resting(config, engines, ranks)}


@pytest.mark.parametrize("both", (True, False))
def test_models_rest_as_their_keys_say_and_never_on_a_rank_that_is_alone(both):
    engines = {"actor": engine(), "reference": engine(trained=False), "critic": engine()}
    wanted = {"actor": (True, True), "reference": (True, False), "critic": (True, True)} if both else {}
    assert put_away(config(both), engines, MANY) == wanted
    assert put_away(config(both), engines, ALONE) == {}


def test_a_reference_that_is_the_policy_without_its_adapters_has_nothing_to_put_away():
    engines = {"actor": engine(), "reference": engine(trained=False, is_own=False)}
    assert put_away(config(True), engines, MANY) == {"actor": (True, True)}
