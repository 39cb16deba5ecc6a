"""Recipes: one name sets what a paper set, any key of the user's own wins, and the start says what happened."""

import pytest

from easyr1.config.load import from_mapping, load, to_mapping
from easyr1.config.recipes import RECIPES
from easyr1.config.resolve import Facts, plan_rows, resolve
from easyr1.config.schema import Config, known_keys, walk
from easyr1.errors import ConfigError

SHIPPED = "config=examples/config.yaml"
UNTOUCHED = ("lr", "batch_size", ".n", "length", "max_steps", "total_epochs")


def values(config: Config) -> dict[str, object]:
    return {key: value for key, _, value in walk(config)}


def notes(*arguments: str) -> list[str]:
    config, given = load(arguments)
    return list(resolve(config, given, Facts(dry_run=True)).notes)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("way", ("algorithm.adv_estimator", "algorithm.recipe"))
def test_a_recipe_sets_its_settings_and_nothing_else(name, way):
    config, given = load([SHIPPED, f"{way}={name}"])
    plain = values(Config())
    changed = {key: value for key, value in values(config).items() if value != plain[key]}
    wanted = {key: value for key, value in RECIPES[name].settings.items() if value != plain[key]}
    assert changed == wanted | {"algorithm.recipe": name}
    assert given == {way}
    assert not [key for key in RECIPES[name].settings if key.endswith(UNTOUCHED)]


@pytest.mark.parametrize("name", ("grpo", "rloo", "remax", "reinforce_plus_plus", "opo", "gdpo", "gae"))
def test_plain_estimators_set_nothing_else(name):
    config, _ = load([f"algorithm.adv_estimator={name}"])
    changed = {key for key, value in values(config).items() if value != values(Config())[key]}
    assert changed == ({"algorithm.adv_estimator"} if name != "grpo" else set())


def test_the_command_line_wins_also_with_the_default_value():
    config, _ = load([SHIPPED, "algorithm.adv_estimator=dapo", "worker.actor.clip_ratio_high=0.3"])
    assert config.worker.actor.clip_ratio_high == 0.3 and config.algorithm.online_filtering
    assert any(
        "clip_ratio_high: 0.3 -> 0.3 (you)" in note
        for note in notes("algorithm.recipe=dapo", "worker.actor.clip_ratio_high=0.3")
    )


def test_a_yaml_value_that_differs_from_the_default_wins(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "algorithm: {adv_estimator: dapo, disable_kl: false, kl_coef: 0.5}\nworker: {actor: {clip_ratio_low: 0.1}}"
    )
    config, _ = load([f"config={file}"])
    assert config.worker.actor.clip_ratio_low == 0.1 and config.worker.actor.clip_ratio_high == 0.28
    assert config.algorithm.disable_kl  # false is the default, so the file says nothing new
    file.write_text("algorithm: {online_filtering: true}")
    config, _ = load([f"config={file}", "algorithm.adv_estimator=gspo"])
    assert config.algorithm.online_filtering and config.worker.actor.loss_type == "gspo"


def test_the_start_tells_key_old_new_and_source():
    told = notes(SHIPPED, "algorithm.adv_estimator=dapo", "algorithm.online_filtering=false")
    assert "worker.actor.clip_ratio_high: 0.3 -> 0.28 (recipe dapo)" in told
    assert "algorithm.online_filtering: False -> False (you)" in told
    config, given = load([SHIPPED, "algorithm.adv_estimator=dapo"])
    rows = dict(plan_rows(resolve(config, given, Facts(dry_run=True)), config))
    assert rows["advantage estimator"].startswith("grpo, recipe dapo: DAPO, arXiv:2503.14476")


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_configuration_loads_as_the_same(name):
    config, _ = load([f"algorithm.adv_estimator={name}"])
    assert from_mapping(to_mapping(config))[0] == config


def test_every_setting_of_a_recipe_is_a_key():
    for recipe in RECIPES.values():
        assert set(recipe.settings) <= set(known_keys()) and "arXiv:" in recipe.source


def test_who_asks_for_a_kl_in_the_loss_has_one_in_any_recipe():
    config, _ = load(["algorithm.adv_estimator=dapo", "algorithm.use_kl_loss=true"])
    assert not config.algorithm.disable_kl and config.algorithm.online_filtering
    assert any(
        "disable_kl: False -> False (you)" in note
        for note in notes("algorithm.recipe=dapo", "algorithm.use_kl_loss=true")
    )


def test_two_recipes_are_one_too_many():
    with pytest.raises(ConfigError, match=r"algorithm\.recipe: 'dapo' contradicts"):
        load(["algorithm.recipe=dapo", "algorithm.adv_estimator=gspo"])
    config, _ = load(["algorithm.recipe=dr_grpo", "algorithm.adv_estimator=grpo"])
    assert config.algorithm.adv_estimator == "grpo" and config.worker.actor.loss_avg_mode == "seq_sum_const"
