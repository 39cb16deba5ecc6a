"""One name for a published set of settings: algorithm.adv_estimator=dapo, or algorithm.recipe=dapo.

A recipe beats defaults and nothing else: every key that the user sets stays as set. Recipes never touch the learning
rate, batch sizes, the number of answers or lengths.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from easyr1.errors import ConfigError

ESTIMATOR_KEY = "algorithm.adv_estimator"
RECIPE_KEY = "algorithm.recipe"


@dataclass(frozen=True)
class Recipe:
    """Settings by dotted key, and where they were published."""

    settings: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class Change:
    """What became of one key of a recipe."""

    key: str
    default: Any
    value: Any
    source: str  # who decided


def _recipe(source: str, estimator: str = "grpo", **settings: Any) -> Recipe:
    """`settings` as section__key=value."""
    keys = {key.replace("__", "."): value for key, value in settings.items()}
    return Recipe({ESTIMATOR_KEY: estimator, "algorithm.disable_kl": True, **keys}, source)


RECIPES: Mapping[str, Recipe] = {
    "dapo": _recipe(
        "DAPO, arXiv:2503.14476: clip-higher, token mean, dynamic sampling, no KL (sections 3.1 to 3.3, 4.1)",
        algorithm__online_filtering=True,
        worker__actor__clip_ratio_low=0.2,
        worker__actor__clip_ratio_high=0.28,
        worker__actor__loss_avg_mode="token",
    ),
    "dr_grpo": _recipe(
        "Dr. GRPO, arXiv:2503.20783: no standard deviation, constant length norm, no KL (section 3)",
        estimator="dr_grpo",
        worker__actor__loss_avg_mode="seq_sum_const",
    ),
    "gspo": _recipe(
        "GSPO, arXiv:2507.18071: one ratio an answer, bounds 3e-4 and 4e-4 (section 5.1)",
        worker__actor__loss_type="gspo",
        worker__actor__loss_avg_mode="seq",
        worker__actor__clip_ratio_low=3e-4,
        worker__actor__clip_ratio_high=4e-4,
    ),
    "gspo_token": _recipe(
        "GSPO-token, arXiv:2507.18071 (section 4.3), with the bounds of GSPO",
        worker__actor__loss_type="gspo_token",
        worker__actor__loss_avg_mode="seq",
        worker__actor__clip_ratio_low=3e-4,
        worker__actor__clip_ratio_high=4e-4,
    ),
    "cispo": _recipe(
        "CISPO, arXiv:2506.13585: the weight is cut from above only, token mean, no KL; a bound of 5 is one of those "
        "that ScaleRL, arXiv:2510.13786, found equally good",
        worker__actor__loss_type="cispo",
        worker__actor__clip_ratio_high=4.0,
        worker__actor__loss_avg_mode="token",
    ),
    "sapo": _recipe(
        "SAPO, arXiv:2511.20347: soft bounds with temperatures 1.0 and 1.05, mean over answers",
        worker__actor__loss_type="sapo",
        worker__actor__loss_avg_mode="seq",
        worker__actor__tau_positive=1.0,
        worker__actor__tau_negative=1.05,
    ),
    "gmpo": _recipe(
        "GMPO, arXiv:2507.20673: geometric mean of ratios, bounds exp(-0.4) and exp(0.4) (section 4)",
        worker__actor__loss_type="gmpo",
        worker__actor__loss_avg_mode="seq",
        worker__actor__clip_ratio_low=0.3297,
        worker__actor__clip_ratio_high=0.4918,
    ),
}


def expand(leaves: dict[str, Any], given: frozenset[str]) -> None:
    """Apply the recipe that `leaves` (dotted key -> value) name, if any, to all keys that are not in `given`.

    A recipe named as the estimator moves to algorithm.recipe, and its own estimator takes the place.
    """
    named = leaves[ESTIMATOR_KEY]
    if named in RECIPES:
        if RECIPE_KEY in given and leaves[RECIPE_KEY] not in (None, named):
            raise ConfigError(
                RECIPE_KEY, f"{leaves[RECIPE_KEY]!r} contradicts {ESTIMATOR_KEY}={named}; name one recipe"
            )
        leaves[RECIPE_KEY] = named
        leaves[ESTIMATOR_KEY] = RECIPES[named].settings[ESTIMATOR_KEY]
    recipe = RECIPES.get(leaves[RECIPE_KEY])
    if recipe is None:
        return
    kept = set(given)
    if "algorithm.use_kl_loss" in given and leaves["algorithm.use_kl_loss"]:
        kept.add("algorithm.disable_kl")  # who asks for a KL in the loss has one
    leaves.update({key: value for key, value in recipe.settings.items() if key not in kept})


def changes(
    name: str | None, values: Mapping[str, Any], defaults: Mapping[str, Any], given: frozenset[str]
) -> Iterator[Change]:
    """What recipe `name` set, and which of its settings the user's own took precedence over."""
    recipe = RECIPES.get(name) if name is not None else None
    for key, wanted in recipe.settings.items() if recipe is not None else ():
        own = values[key] != wanted or (key in given and (key != ESTIMATOR_KEY or RECIPE_KEY in given))
        if own or wanted != defaults[key]:
            yield Change(key, defaults[key], values[key], "you" if own else f"recipe {name}")
