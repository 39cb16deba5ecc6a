"""What each algorithm needs, as facts that can be checked before torch or a model is loaded.

Imports nothing heavy: whoever checks a configuration hands these tables down to it. The functions themselves stand in
`advantages`, `losses` and `kl`, whose tables hold exactly these names (a test compares them).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """What an estimator must be given beside rewards and groups."""

    min_n: int = 1  # answers per prompt, rollout.n
    values: bool = False  # a critic's values, (T_i,) per sample
    greedy_baseline: bool = False  # the score of one greedy answer per prompt


NEEDS: dict[str, Needs] = {
    "grpo": Needs(min_n=2),
}
LOSS_NAMES: tuple[str, ...] = ("default",)
AVG_MODES: tuple[str, ...] = ("token", "seq")
KL_NAMES: tuple[str, ...] = ("kl", "abs", "mse", "low_var_kl")
KL_TYPES: tuple[str, ...] = ("fixed", "adaptive")

# As a loss, the gradient of d = log pi - log ref averages to zero over samples of pi: it adds noise, not a pull.
KL_WITHOUT_PULL_AS_LOSS: frozenset[str] = frozenset({"kl"})
