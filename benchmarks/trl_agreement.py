"""Do our losses and advantages agree with those of `trl`, written by others?

    python -m venv trlvenv && trlvenv/bin/pip install torch==2.13.0 trl==1.16.0
    PYTHONPATH=. trlvenv/bin/python benchmarks/trl_agreement.py

TRL's side is its own code: real `GRPOTrainer` and `RLOOTrainer` objects, built by their own constructors from their
own configurations around a model of a few weights. Replaced are only what feeds them (the log-probs of the model, the
sampler) and the handle to other processes, so that several can be played one after the other. `_compute_loss` and
`_generate_and_score_completions` run as they are.

Inputs: random ragged batches with holes in the masks (tool output in the middle of an answer), log-ratios from 1e-5 to
+-4, so that every bound holds somewhere, advantages of both signs and 0. Each batch is taken whole, and cut into the
micro-batches of two processes, whose losses TRL adds up and averages over processes. TRL computes losses in float64,
we in float32 from the same float32 numbers; the last column is what TRL's gradient itself loses in float32. "clipped"
is the share of tokens where our metrics say that a bound holds. Exits with 1 when a difference is above `ROUNDING`
times the largest value that it is compared with.

What is named differently, and what has to be set for the same result:

- averages: `grpo` and `sapo` of TRL are our `seq`, `dapo` and `cispo` our `token`, `dr_grpo` our `seq_sum_const` with
  `max_completion_length` for `data.max_response_length`. TRL's `num_items_in_batch` counts the tokens of all processes
  that are left by the masks, and is scaled from the answers sampled at once to one optimizer step; here both are the
  same batch. TRL's `grpo`, `sapo` and `dr_grpo` average micro-batches with equal weights: the same only because all of
  ours here have as many answers.
- CISPO: TRL's `epsilon_high` bounds the ratio itself, our `clip_ratio_high` its distance from 1. Neither bounds it
  from below.
- dual clip: TRL's `delta`, off unless set; ours is 3 unless set to infinity. The same while delta > 1 + epsilon_high.
- GSPO: `importance_sampling_level="sequence"` with `loss_type="grpo"`. TRL has no GSPO-token, so ours is compared with
  GSPO, whose value and gradient it has where the tokens of an answer share an advantage.
- standard deviations: TRL divides by std + 1e-4, we by std + 1e-6. Rows marked "epsilon 1e-4" set ours to TRL's.
- RLOO: without TRL's `normalize_advantages`, `reward_clip_range` and KL in the reward (all off by default but the KL).
  Its loss, one ratio for the whole answer and not divided by the length, is none of ours.
"""

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from interleaved import say
from torch import Tensor

from easyr1.algorithms import advantages as ours
from easyr1.algorithms.losses import LOSSES, Clip, aggregate

try:
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
except ModuleNotFoundError as error:
    sys.exit(
        f"{error.name} is not installed: this script compares with trl, in an environment of its own; "
        "pip install torch==2.13.0 trl==1.16.0"
    )

WRITTEN_FOR = "1.16.0"  # private methods of trl are called
SEEDS = range(20)
ROUNDING = 5e-6  # of the largest value: 42 steps of float32
ANSWERS, MAX_LENGTH, MAX_LOG_RATIO = 16, 24, 4.0
CUTS = ((1, 1), (2, 4))  # processes, micro-batches of each
GROUPS, GROUP_SIZE = 6, 5
THEIR_STD_EPSILON = 1e-4

Pair = tuple[Tensor, Tensor]  # loss, gradient with respect to the log-probs


@dataclass(frozen=True)
class LossCase:
    """One loss under the same settings on both sides."""

    title: str
    loss: str  # key of LOSSES
    average: str
    clip: Clip
    theirs: Mapping[str, Any]  # of trl.GRPOConfig


@dataclass(frozen=True)
class AdvantageCase:
    title: str
    estimator: str
    trainer: str  # GRPO or RLOO
    theirs: Mapping[str, Any]
    std_epsilon: float = ours.STD_EPSILON
    tolerance: float = ROUNDING  # of the largest value
    parts: tuple[str, ...] = ("right",)


SEQUENCE = {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
DR_GRPO = {"loss_type": "dr_grpo", "epsilon": 0.2, "max_completion_length": 64}
DAPO = {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}
SAPO = {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}
EVEN, HIGHER, NARROW = Clip(0.2, 0.2, dual=inf), Clip(0.2, 0.28, dual=inf), Clip(3e-4, 4e-4, dual=inf)
SOFT = Clip(tau_positive=1.0, tau_negative=1.05)
LOSS_CASES = (
    LossCase("GRPO", "default", "seq", EVEN, {"loss_type": "grpo", "epsilon": 0.2}),
    LossCase("GRPO, dual clip", "default", "seq", Clip(0.2, 0.2, dual=3.0), {"loss_type": "grpo", "delta": 3.0}),
    LossCase("Dr. GRPO", "default", "seq_sum_const", EVEN, DR_GRPO),
    LossCase("DAPO", "default", "token", HIGHER, DAPO),
    LossCase("CISPO", "cispo", "token", Clip(high=4.0), {"loss_type": "cispo", "epsilon_high": 5.0}),
    LossCase("SAPO", "sapo", "seq", SOFT, SAPO),
    LossCase("GSPO", "gspo", "seq", NARROW, SEQUENCE),
    LossCase("GSPO-token", "gspo_token", "seq", NARROW, SEQUENCE),
)
GROUP_STD = {"scale_rewards": "group"}
GDPO = {"multi_objective_aggregation": "normalize_then_sum"}
ADVANTAGE_CASES = (
    AdvantageCase("RLOO", "rloo", "RLOO", {"normalize_advantages": False}),
    AdvantageCase("Dr. GRPO", "dr_grpo", "GRPO", {"scale_rewards": "none"}),
    AdvantageCase("GRPO, epsilon 1e-4", "grpo", "GRPO", GROUP_STD, THEIR_STD_EPSILON),
    AdvantageCase("GRPO as it is", "grpo", "GRPO", GROUP_STD, tolerance=1e-3),
    AdvantageCase("GDPO, epsilon 1e-4", "gdpo", "GRPO", GDPO, THEIR_STD_EPSILON, parts=("right", "short")),
)


@dataclass(frozen=True)
class Batch:
    """Answers with their padding, as TRL holds them: B answers, T positions, numbers exact in float32."""

    log_probs_BT: Tensor
    old_BT: Tensor
    answer_BT: Tensor  # 1 up to the end of the answer
    own_BT: Tensor  # 0 on tokens that the policy did not write
    advantages_B: Tensor

    @property
    def mask_BT(self) -> Tensor:
        return (self.answer_BT * self.own_BT).bool()


@dataclass
class Agreement:
    """Largest differences and values over all batches and cuts."""

    loss: float = 0.0
    gradient: float = 0.0
    loss_size: float = 0.0
    gradient_size: float = 0.0
    their_rounding: float = 0.0
    clipped: list[float] = field(default_factory=list)

    def add(self, mine: Pair, theirs: Pair, theirs_float32: Pair) -> None:
        self.loss = max(self.loss, apart(mine[0], theirs[0]))
        self.gradient = max(self.gradient, apart(mine[1], theirs[1]))
        self.loss_size = max(self.loss_size, size(theirs[0]))
        self.gradient_size = max(self.gradient_size, size(theirs[1]))
        self.their_rounding = max(self.their_rounding, apart(theirs_float32[1], theirs[1]))

    @property
    def holds(self) -> bool:
        return self.loss <= ROUNDING * self.loss_size and self.gradient <= ROUNDING * self.gradient_size


def apart(one: Tensor, other: Tensor) -> float:
    """Largest absolute difference; infinite where a side is not finite."""
    difference = (one.double() - other.double()).abs().max()
    return float(difference) if bool(difference.isfinite()) else inf


def size(values: Tensor) -> float:
    return float(values.abs().max())


def random_batch(seed: int) -> Batch:
    random = torch.Generator().manual_seed(seed)
    shape = (ANSWERS, MAX_LENGTH)
    lengths_B = torch.randint(1, MAX_LENGTH + 1, (ANSWERS,), generator=random)
    lengths_B[0], lengths_B[1] = MAX_LENGTH, 1
    own_BT = (torch.rand(shape, generator=random) > 0.2).long()
    own_BT[:, 0] = 1
    spread_B = 10 ** (torch.rand(ANSWERS, generator=random) * 5.5 - 4.5)
    log_ratio_BT = (torch.randn(shape, generator=random) * spread_B[:, None]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    old_BT = (torch.rand(shape, generator=random) * 0.98 + 0.01).log()
    advantages_B = torch.randn(ANSWERS, generator=random) * 1.5
    advantages_B[2] = 0.0
    answer_BT = (torch.arange(MAX_LENGTH) < lengths_B[:, None]).long()
    return Batch(old_BT + log_ratio_BT, old_BT, answer_BT, own_BT, advantages_B)


def micro_batches(parts: int) -> list[slice]:
    rows = ANSWERS // parts
    return [slice(start, start + rows) for start in range(0, ANSWERS, rows)]


def our_loss(case: LossCase, batch: Batch, parts: int) -> tuple[Pair, float]:
    """Loss and gradient as the engine makes them, sums over cuts; and the share of tokens that a bound holds."""
    leaf_BT = batch.log_probs_BT.clone().requires_grad_()
    lengths_B = batch.mask_BT.sum(1)
    whole = {"num_tokens": float(lengths_B.sum()), "num_samples": float(ANSWERS), "lengths": lengths_B}
    max_length = case.theirs.get("max_completion_length", 0)
    total, clipped = torch.zeros(()), 0.0
    for rows in micro_batches(parts):
        mask = batch.mask_BT[rows]
        sample = (torch.arange(ANSWERS)[rows, None] * torch.ones_like(mask, dtype=torch.long))[mask]
        losses, metrics = LOSSES[case.loss](
            leaf_BT[rows][mask], batch.old_BT[rows][mask], batch.advantages_B[sample], clip=case.clip, sample=sample
        )
        total = total + aggregate(losses, sample, case.average, max_length=max_length, **whole)
        clipped += float(sum(metrics[name].sum() for name in metrics if name.startswith("pg_clipfrac")))
    (gradient_BT,) = torch.autograd.grad(total, leaf_BT)
    return (total.detach(), gradient_BT), clipped / whole["num_tokens"]


def their_loss(trainer: Any, batch: Batch, processes: int, micro: int, dtype: torch.dtype) -> Pair:
    """Loss and gradient of an optimizer step: sums over micro-batches, means over processes."""
    leaf_BT = batch.log_probs_BT.to(dtype).requires_grad_()
    trainer.accelerator = SimpleNamespace(
        num_processes=processes, gather=lambda values: values, reduce=lambda values, reduction: values
    )
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = micro
    total = torch.zeros((), dtype=dtype)
    for rows in micro_batches(processes * micro):
        log_probs = leaf_BT[rows]
        trainer._get_per_token_logps_and_entropies = constant((log_probs, torch.zeros_like(log_probs), None))
        ids = torch.zeros_like(batch.answer_BT[rows])
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1],
            "completion_ids": ids,
            "completion_mask": batch.answer_BT[rows],
            "tool_mask": batch.own_BT[rows],
            "advantages": batch.advantages_B[rows].to(dtype),
            "old_per_token_logps": batch.old_BT[rows].to(dtype),
            "num_items_in_batch": batch.mask_BT.sum(),
        }
        total = total + trainer._compute_loss(trainer.model, inputs) / processes
    (gradient_BT,) = torch.autograd.grad(total, leaf_BT)
    return total.detach(), gradient_BT


def constant(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def build_trainer(kind: str, parts: Sequence[str], folder: str, settings: Mapping[str, Any]) -> Any:
    """A trainer of TRL around the least model that it accepts. Its rewards are columns of the data."""
    answers = GROUPS * GROUP_SIZE
    given = {"max_completion_length": MAX_LENGTH, "beta": 0.0, **settings}
    config = getattr(trl, f"{kind}Config")(
        output_dir=folder,
        per_device_train_batch_size=answers,
        num_generations=GROUP_SIZE,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to="none",
        **given,
    )
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 3}
    model = Qwen2ForCausalLM(Qwen2Config(num_attention_heads=2, num_key_value_heads=1, **sizes))
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model,
        reward_funcs=[column(name) for name in parts],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "question"}] * answers),
        processing_class=tokenizer,
    )
    trainer.model.train()
    return trainer


def column(name: str) -> Callable[..., list[float]]:
    return lambda prompts, completions, **columns: columns[name]


def random_scores(seed: int) -> dict[str, Tensor]:
    """(groups x size,) of each part: groups of 0 and 1, of many values, and one whose answers are all alike."""
    random = torch.Generator().manual_seed(1000 + seed)
    shape = (GROUPS, GROUP_SIZE)
    right, short = (torch.rand(shape, generator=random) > 0.5).float(), torch.rand(shape, generator=random)
    right[0], short[0] = 0.5, 0.25
    right[1:3] = torch.rand((2, GROUP_SIZE), generator=random) * 10 - 5
    right[3:, 0], right[3:, 1] = 0.0, 1.0
    return {"right": right.flatten(), "short": short.flatten()}


def our_advantages(case: AdvantageCase, scores: Mapping[str, Tensor], seed: int) -> Tensor:
    """(B,) in the order of the scores; computed in another order."""
    order = torch.randperm(GROUPS * GROUP_SIZE, generator=torch.Generator().manual_seed(seed))
    groups = torch.arange(GROUPS).repeat_interleave(GROUP_SIZE)[order]
    shuffled = {name: scores[name][order] for name in case.parts}
    rewards = [score[None] for score in sum(shuffled.values())]
    with patch.object(ours, "STD_EPSILON", case.std_epsilon):
        answer, _ = ours.estimate(case.estimator, rewards, groups, parts=shuffled)
    return torch.cat(answer)[order.argsort()]


def their_advantages(trainer: Any, case: AdvantageCase, scores: Mapping[str, Tensor]) -> Tensor:
    count = GROUPS * GROUP_SIZE
    prompts, answers, texts = [[2]] * count, [[2, 1]] * count, [""] * count
    generated = (prompts, answers, texts)
    if case.trainer == "GRPO":
        generated = (prompts, answers, None, texts, None, {}, None, [])
    trainer._generate = constant(generated)
    trainer._get_per_token_logps_and_entropies = constant((torch.zeros(count, 2), None, None))
    columns = {name: scores[name].tolist() for name in case.parts}
    rows = [{"prompt": "question", **{name: columns[name][row] for name in columns}} for row in range(count)]
    return trainer._generate_and_score_completions(rows)["advantages"]


def compare_loss(case: LossCase, folder: str) -> Agreement:
    trainer = build_trainer("GRPO", ("right",), folder, case.theirs)
    agreement = Agreement()
    for seed in SEEDS:
        batch = random_batch(seed)
        for processes, micro in CUTS:
            mine, clipped = our_loss(case, batch, processes * micro)
            exact, rounded = (
                their_loss(trainer, batch, processes, micro, dtype) for dtype in (torch.float64, torch.float32)
            )
            agreement.add(mine, exact, rounded)
            agreement.clipped.append(clipped)
    return agreement


def compare_advantages(case: AdvantageCase, folder: str) -> tuple[float, float]:
    """Largest difference, largest value."""
    trainer = build_trainer(case.trainer, case.parts, folder, case.theirs)
    difference = largest = 0.0
    for seed in SEEDS:
        scores = random_scores(seed)
        theirs = their_advantages(trainer, case, scores)
        difference = max(difference, apart(our_advantages(case, scores, seed), theirs))
        largest = max(largest, size(theirs))
    return difference, largest


def settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def main() -> int:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if trl.__version__ != WRITTEN_FOR:
        say(f"written for trl {WRITTEN_FOR}, this is {trl.__version__}: an error may come from that")
    say(f"trl {trl.__version__}, torch {torch.__version__}; {len(SEEDS)} batches, {len(CUTS)} cuts of each\n")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        say("| loss | ours | TRL's settings | clipped | loss: max diff (max) | gradient: max diff (max) | float32 |")
        say("|---|---|---|---|---|---|---|")
        for case in LOSS_CASES:
            found = compare_loss(case, folder)
            share = f"{sum(found.clipped) / len(found.clipped):.0%}" if max(found.clipped) else "soft"
            say(
                f"| {case.title} | {case.loss}, {case.average} | {settings_text(case.theirs)} | {share} "
                f"| {found.loss:.1e} ({found.loss_size:.2g}) | {found.gradient:.1e} ({found.gradient_size:.2g}) "
                f"| {found.their_rounding:.1e} |"
            )
            failed += [] if found.holds else [case.title]
        say("\n| advantages | ours | TRL's settings | max diff (max) |\n|---|---|---|---|")
        for case in ADVANTAGE_CASES:
            difference, largest = compare_advantages(case, folder)
            settings = f"{case.trainer}Trainer, {settings_text(case.theirs)}"
            say(f"| {case.title} | {case.estimator} | {settings} | {difference:.1e} ({largest:.2g}) |")
            failed += [] if difference <= case.tolerance * largest else [f"{case.title} (advantages)"]
    if failed:
        say(f"\nno agreement: {', '.join(failed)}; allowed is {ROUNDING:g} of the largest value unless stated")
        return 1
    say(f"\nall agree: within {ROUNDING:g} of the largest value (GRPO as it is, with another epsilon: 1e-3)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
