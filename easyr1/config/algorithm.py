"""Keys of `algorithm`: advantages, KL to the reference model, which groups are worth training on."""

from dataclasses import dataclass
from typing import Literal

from easyr1.config.ranges import CountOrZero, NotNegative, Positive, Share


@dataclass(frozen=True)
class AlgorithmConfig:
    """How scores become advantages."""

    gamma: Share = 1.0
    """Discount per token (gae, reinforce_plus_plus)."""

    lam: Share = 1.0
    """Lambda of generalised advantage estimation (gae)."""

    adv_estimator: str = "grpo"
    """How advantages are estimated, or the name of a recipe; docs/algorithms.md lists the names."""

    recipe: Literal["dapo", "dr_grpo", "gspo", "gspo_token", "cispo", "sapo", "gmpo"] | None = None
    """A published set of settings, which any key that you set overrides; naming it as adv_estimator does the same.
    Our own key."""

    disable_kl: bool = False
    """Train without a reference model: no KL term anywhere, and no memory or time for it."""

    use_kl_loss: bool = True
    """Where the KL to the reference model counts: true = a term of the loss, false = subtracted from the rewards."""

    kl_penalty: str = "low_var_kl"
    """KL per token: kl, abs, mse and low_var_kl estimate it from the sampled token, full takes the whole
    distributions, which costs more memory and time."""

    kl_coef: NotNegative = 1e-2
    """Weight of the KL. 0 only measures it; algorithm.disable_kl=true also saves the reference model."""

    kl_type: Literal["fixed", "adaptive"] = "fixed"
    """Whether kl_coef stays or moves towards kl_target."""

    kl_horizon: Positive = 10000.0
    """Samples over which the adaptive coefficient adjusts."""

    kl_target: Positive = 0.1
    """KL per token that the adaptive coefficient aims for."""

    overlong_buffer_length: CountOrZero = 0
    """Soft over-long punishment (DAPO): answers that come this close to data.max_response_length pay up to
    overlong_penalty_factor; 0 = none. Our own key."""

    overlong_penalty_factor: NotNegative = 1.0
    """Most that an over-long answer pays. Our own key."""

    mask_truncated: bool = False
    """Leave answers that were cut at data.max_response_length out of the loss; they still count in their group's
    mean. Our own key."""

    online_filtering: bool = False
    """Dynamic sampling (DAPO): keep only groups whose mean score lies between filter_low and filter_high, and draw
    more prompts until data.rollout_batch_size groups are kept."""

    filter_key: str = "overall"
    """Score of the reward function that online filtering looks at."""

    filter_low: float = 0.01
    """A group is kept if its mean score is above this."""

    filter_high: float = 0.99
    """A group is kept if its mean score is below this."""
