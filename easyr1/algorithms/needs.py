"""What each algorithm needs, as facts that can be checked before torch or a model is loaded.

Imports nothing heavy: whoever checks a configuration hands these tables down to it. The functions themselves stand in
`advantages`, `returns`, `losses` and `kl`, whose tables hold exactly these names (a test compares them).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """What an estimator must be given beside rewards and groups."""

    min_n: int = 1  # answers per prompt, rollout.n
    values: bool = False  # a critic's values, (T_i,) per sample
    greedy_baseline: bool = False  # the score of one greedy answer per prompt
    parts: bool = False  # the parts of the score, each (B,); a KL in the reward is none of them
    discount: tuple[str, ...] = ()  # which of gamma and lam it takes

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the keyword arguments that it is called with."""
        flags = {"values": self.values, "baselines": self.greedy_baseline, "parts": self.parts}
        return (*[name for name, wanted in flags.items() if wanted], *self.discount)


NEEDS: dict[str, Needs] = {
    "grpo": Needs(min_n=2),
    "grpo_passk": Needs(min_n=2),
    "dr_grpo": Needs(min_n=2),
    "rloo": Needs(min_n=2),
    "opo": Needs(min_n=2),
    "gdpo": Needs(min_n=2, parts=True),
    "reinforce_plus_plus": Needs(discount=("gamma",)),
    "reinforce_plus_plus_baseline": Needs(min_n=2),
    "remax": Needs(greedy_baseline=True),
    "gae": Needs(values=True, discount=("gamma", "lam")),
}
LOSS_NAMES: tuple[str, ...] = ("default", "gspo", "gspo_token", "cispo", "sapo", "gmpo")
AVG_MODES: tuple[str, ...] = ("token", "seq", "seq_sum_const")
FULL_KL = "full"  # the divergence of whole distributions; the others are estimates from the sampled token
KL_NAMES: tuple[str, ...] = ("kl", "abs", "mse", "low_var_kl", FULL_KL)
KL_TYPES: tuple[str, ...] = ("fixed", "adaptive")

# As a loss, the gradient of d = log pi - log ref averages to zero over samples of pi: it adds noise, not a pull.
KL_WITHOUT_PULL_AS_LOSS: frozenset[str] = frozenset({"kl"})
