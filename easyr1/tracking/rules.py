"""What in a run's curves deserves a warning: one small function a rule, each with its threshold beside it.

A rule takes the curves by metric name and says what it found, or None. docs/report.md tells the same to readers.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from easyr1.tracking.history import Series
from easyr1.tracking.wording import number

Curves = Mapping[str, Series]

WINDOW = 10  # steps: what is said of a state is said of the last so many
SAME_REWARD = 1e-6  # rewards closer than this are one reward
MANY_TRUNCATED = 0.2  # share of answers
MANY_FLAT_GROUPS = 0.8  # share of groups whose answers all scored alike
LARGE_GAP = 0.02  # nats, KL of the sampler's policy to the trainer's
KL_FACTOR, KL_STEPS, KL_FLOOR = 5.0, 5, 0.02  # a KL below the floor, as in the first steps, may rise as it likes
NORM_FACTOR, NORM_STEPS = 10.0, 5  # a median of fewer steps says little
SOLVED = 0.9  # training accuracy, where there is none the whole reward
ENTROPY_SHARE, LOW_ENTROPY, ENTROPY_STEPS = 0.1, 0.05, 5  # of the start; nats a token


def constant_reward(curves: Curves) -> str | None:
    """The mean training reward is the same in each of the last 10 steps."""
    values = _last(curves, "reward/overall", "critic/score/mean")
    if len(values) < WINDOW or max(values) - min(values) > SAME_REWARD:
        return None
    return (
        f"the training reward was {number(values[-1])} in each of the last {WINDOW} steps; "
        "where it never changes, nothing can be learnt: look at the reward function"
    )


def truncation(curves: Curves) -> str | None:
    """More than 20 % of the answers of the last 10 steps, or of the last validation, hit the limit of length."""
    training = _last(curves, "response_length/clip_ratio")
    validation = _last(curves, "val_response_length/clip_ratio")[-1:]
    for values, where in ((training, "training"), (validation, "the last validation")):
        if values and fmean(values) > MANY_TRUNCATED:
            return (
                f"{fmean(values):.0%} of the answers in {where} were cut at data.max_response_length, "
                "before they could give a result"
            )
    return None


def no_spread(curves: Curves) -> str | None:
    """In more than 80 % of the groups of the last 10 steps all answers score alike."""
    values = _last(curves, "rollout/flat_groups")
    if not values or fmean(values) <= MANY_FLAT_GROUPS:
        return None
    cure = (
        "the task is all but solved, take harder rows"
        if solved(curves)
        else "take harder or easier rows, or algorithm.online_filtering=true"
    )
    return (
        f"in {fmean(values):.0%} of the groups of the last {len(values)} steps all answers scored alike and taught "
        f"nothing; {cure}"
    )


def mismatch(curves: Curves) -> str | None:
    """Sampler and trainer disagree on the same tokens by more than 0.02 nats over the last 10 steps."""
    values = _last(curves, "rollout/kl")
    if not values or fmean(values) <= LARGE_GAP:
        return None
    return (
        f"sampler and trainer differ by {number(fmean(values))} nats a token over the last {len(values)} steps "
        f"(more than {LARGE_GAP}); worker.rollout.correction can make up for it"
    )


def rising_kl(curves: Curves) -> str | None:
    """The KL to the reference rises fivefold within 5 steps, to more than 0.02."""
    points = _first(curves, "actor/kl_loss", "actor/kl_penalty")
    for place, (step, value) in enumerate(points):
        recent = points[max(0, place - KL_STEPS) : place]  # a step has one point at the most
        lowest = min((before for at, before in recent if step - at <= KL_STEPS), default=None)
        if lowest is not None and value > KL_FLOOR and value >= KL_FACTOR * lowest:
            return (
                f"the KL to the reference rose from {number(lowest)} to {number(value)} within {KL_STEPS} steps, "
                f"at step {step}; a lower worker.actor.optim.lr or a higher algorithm.kl_coef holds it"
            )
    return None


def large_gradients(curves: Curves) -> str | None:
    """A gradient norm is above ten times the median of the run."""
    for name in ("actor/grad_norm", "critic/grad_norm"):
        points = curves.get(name, [])
        middle = median([value for _, value in points]) if len(points) >= NORM_STEPS else 0.0
        steps = [step for step, value in points if value > NORM_FACTOR * middle > 0]
        if steps:
            return (
                f"{name} was above {NORM_FACTOR:g} times its median of {number(middle)} at step {steps[0]}"
                f"{and_others(len(steps) - 1)}"
            )
    return None


def entropy_collapse(curves: Curves) -> str | None:
    """The entropy of the last 5 steps is under a tenth of that of the first 5, and under 0.05 nats a token.

    Not where the task is all but solved: who is right may be sure.
    """
    values = [value for _, value in curves.get("actor/entropy", [])]
    if len(values) < 2 * ENTROPY_STEPS:
        return None
    first, last = fmean(values[:ENTROPY_STEPS]), fmean(values[-ENTROPY_STEPS:])
    if last >= min(ENTROPY_SHARE * first, LOW_ENTROPY) or solved(curves):
        return None
    return (
        f"the entropy fell from {number(first)} to {number(last)} nats a token: all answers become the same, and "
        "nothing new is tried"
    )


def solved(curves: Curves) -> bool:
    """Whether the training accuracy (where there is none, the reward) of the last 10 steps is 0.9 or more."""
    values = _last(curves, "reward/accuracy", "reward/overall", "critic/score/mean")
    return bool(values) and fmean(values) >= SOLVED


RULES: tuple[Callable[[Curves], str | None], ...] = (
    constant_reward,
    truncation,
    no_spread,
    mismatch,
    rising_kl,
    large_gradients,
    entropy_collapse,
)


def not_finite(found: Sequence[tuple[int, str, str]]) -> list[str]:
    """A warning for each metric that was NaN or infinite; `found` as (step, metric, what it was)."""
    steps: dict[str, list[int]] = {}
    for step, name, _ in found:
        steps.setdefault(name, []).append(step)
    return [f"{name} was not a finite number at step {at[0]}{and_others(len(at) - 1)}" for name, at in steps.items()]


def and_others(count: int) -> str:
    """ " and 2 other steps", or nothing."""
    return f" and {count} other step{'' if count == 1 else 's'}" if count else ""


def _first(curves: Curves, *names: str) -> Series:
    return next((curves[name] for name in names if name in curves), [])


def _last(curves: Curves, *names: str) -> list[float]:
    return [value for _, value in _first(curves, *names)[-WINDOW:]]
