"""The training loop: sample, score, credit, update, until the steps are done.

Knows engines by their contracts alone; not how answers are sampled, models trained or numbers logged.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from easyr1.algorithms.kl import KLCoefficient
from easyr1.algorithms.needs import FULL_KL, NEEDS
from easyr1.batch import Group, Prompt, Sums, all_samples
from easyr1.cluster.engines import Balance
from easyr1.config.load import to_mapping
from easyr1.config.plan import Plan
from easyr1.config.schema import Config
from easyr1.data.loader import Loader
from easyr1.engines.protocols import Sampling, TrainEngine
from easyr1.tracking.clock import Clock
from easyr1.tracking.loggers import Tracker
from easyr1.tracking.progress import Progress, Tick
from easyr1.tracking.report import write_report
from easyr1.tracking.services import attempt
from easyr1.trainer.carried import from_records, to_records
from easyr1.trainer.checkpoint import Checkpoints, step_folder, what_came_back
from easyr1.trainer.collect import Collector, Draws, DynamicSampler
from easyr1.trainer.credit import KlInReward, assign, without_truncated
from easyr1.trainer.learner import Learner
from easyr1.trainer.metrics import count_tokens, mismatch_metrics, score_means, training_metrics
from easyr1.trainer.random_state import random_state, restore_random_state
from easyr1.trainer.sample_rows import Picture, is_logged_step, training_rows, validation_rows
from easyr1.trainer.stop import Stopped, StopSignals
from easyr1.trainer.validate import validate, validation_metrics

Measure = Callable[[Sequence[Group], Tick], list[list[np.ndarray]]]  # a number for every token of every sample


@dataclass
class Trainer:
    """A run: its parts, and how far it is."""

    config: Config
    plan: Plan
    total_steps: int
    loader: Loader
    draws: Draws  # of the loader
    val_prompts: Sequence[Prompt]
    collector: Collector
    val_collector: Collector
    dynamic: DynamicSampler | None  # None: every group is trained on
    sampling: Sampling
    val_sampling: Sampling
    actor: Learner
    critic: Learner | None  # None: the estimator asks for no values
    reference: TrainEngine | None  # None: no KL is measured
    kl: KLCoefficient
    checkpoints: Checkpoints
    tracker: Tracker
    progress: Progress
    picture: Callable[[str], Picture]  # handle -> what the model sees
    balance: Balance  # of what the ranks are given
    copy_model_files: Callable[[Path], object]  # configuration, tokenizer and processor into a folder
    stop: StopSignals
    step: int = 0
    showed_pictures: bool = False
    validated: bool = False  # whether the last step, or a start at step 0, has its validation
    saved_step: int = 0  # the last step that a checkpoint holds; 0: none needs one
    next_report: float = 0.0  # time.monotonic() from which on a validation renews the report
    whole: dict[str, Any] = field(default_factory=dict)  # what else a checkpoint of the last whole step holds

    def fit(self) -> dict[str, float]:
        """Train to the last step. Returns the metrics of the last validation.

        Raises Stopped on SIGTERM and Ctrl-C, once the last whole step is saved.
        """
        self.whole = self.state()
        with self.stop:
            try:
                last = self.validate_first()
                while self.step < self.total_steps and not self.config.trainer.val_only:
                    last = self.take_step() or last
                    self.stop.check()
            except Stopped:
                self.leave()
                raise
        self.report()
        return last

    def validate_first(self) -> dict[str, float]:
        """The validation before the first step, or the one still owed for the step that the run goes on from."""
        trainer = self.config.trainer
        owed = self.is_due(trainer.val_freq) if self.step else trainer.val_before_train
        if not trainer.val_only and (self.validated or not owed):
            return {}
        found = self.validate()
        if self.step and self.step == self.saved_step and not trainer.val_only:
            self.checkpoints.note_score(self.step, found["val/reward_score"])
        return found

    def take_step(self) -> dict[str, float]:
        """One rollout and its updates. Returns the metrics of its validation, if it was due."""
        clock = Clock()
        self.balance.take()  # that of a validation
        with self.stop.at_once():  # what changes in here is put back by `whole`
            groups, metrics = self.gather(clock)
            self.collector.rollout.rest()
            self.score(groups, clock)
        self.step += 1
        metrics = self.credit(groups, clock) | metrics
        metrics |= self.update(groups, clock)
        self.tracker.log(metrics | self.balance.take() | clock.metrics(*count_tokens(groups)), self.step)
        if is_logged_step(self.step, self.total_steps):
            count = self.config.trainer.train_groups_to_log
            self.tracker.log_groups(training_rows(groups, count, self.step, self.picture), self.step)
        self.validated, self.whole = False, self.state()
        validation_is_due = self.is_due(self.config.trainer.val_freq) and self.stop.asked is None
        found = self.validate() if validation_is_due else {}
        if self.is_due(self.config.trainer.save_freq):
            self.save(found.get("val/reward_score"))
        return found

    def gather(self, clock: Clock) -> tuple[list[Group], dict[str, float]]:
        """The groups of this step, and with dynamic sampling what it took to get them."""
        self.draws.skipped = 0
        if self.dynamic is None:
            groups, metrics = self.collector.collect(self.draws.next(), self.sampling, clock), {}
        else:
            groups, metrics = self._gather_useful(clock)
        if self.draws.skips:
            metrics |= {"data/skipped_rows": self.draws.skipped}
        if NEEDS[self.config.algorithm.adv_estimator].greedy_baseline:
            self.collector.add_baselines(groups, self.sampling, clock)
        return groups, metrics

    def _gather_useful(self, clock: Clock) -> tuple[list[Group], dict[str, float]]:
        assert self.dynamic is not None
        gathering = self.dynamic.gather(self.draws.next, self.plan.prompts_per_rollout, self.sampling, clock)
        means = score_means(gathering.sampled).items()  # of all that was sampled: what is kept is chosen by its score
        return gathering.groups, gathering.metrics() | {f"reward/{name}": value for name, value in means}

    def score(self, groups: Sequence[Group], clock: Clock) -> None:
        """Fill what a step needs of each token: old log-probs, the reference's, and values."""
        if self.plan.old_log_probs == "recomputed":
            self._fill("old_log_probs", self.actor.engine.score, groups, "old", clock)
        if self.reference is not None and self.config.algorithm.kl_penalty != FULL_KL:
            self._fill("ref_log_probs", self.reference.score, groups, "ref", clock)
        if self.plan.kl == "reward" and self.config.algorithm.kl_penalty == FULL_KL:
            self._fill("full_kl", self.actor.engine.divergence, groups, "ref", clock)
        if self.critic is not None:
            self._fill("values", self.critic.engine.score, groups, "values", clock)
        for sample in all_samples(groups):
            waited = sample.completion.weights_version != self.actor.engine.version  # older weights sampled it
            if waited or self.plan.old_log_probs == "sampler":
                sample.old_log_probs = sample.completion.log_probs

    def _fill(self, name: str, measure: Measure, groups: Sequence[Group], phase: str, clock: Clock) -> None:
        with clock.phase(phase), self.progress.phase(name.replace("_", " ")) as tick:
            found = measure(groups, tick)
        for sample, numbers in zip(all_samples(groups), chain.from_iterable(found), strict=True):
            setattr(sample, name, numbers)

    def credit(self, groups: Sequence[Group], clock: Clock) -> dict[str, float]:
        """Turn scores into advantages."""
        data, algorithm = self.config.data, self.config.algorithm
        in_reward = KlInReward(algorithm.kl_penalty, self.kl.coef) if self.plan.kl == "reward" else None
        with clock.phase("adv"):
            kl = assign(groups, algorithm.adv_estimator, in_reward, gamma=algorithm.gamma, lam=algorithm.lam)
            metrics = training_metrics(groups, data.max_prompt_length, data.max_response_length)
        if kl is not None:
            metrics |= {"actor/kl_penalty": kl, "actor/kl_coef": self.kl.coef}
            self.kl.update(kl, len(all_samples(groups)))
        return metrics

    def update(self, groups: Sequence[Group], clock: Clock) -> dict[str, float]:
        """All optimizer steps of one training step, the critic's first; the sampler gets the new weights."""
        in_loss = self.kl.coef if self.plan.kl == "loss" else 0.0
        if self.config.algorithm.mask_truncated:
            groups = without_truncated(groups)
        learners = [self.critic] if self.critic is not None else []
        if self.step > self.config.trainer.critic_warmup or self.critic is None:
            learners.append(self.actor)
        sums = Sums()
        for learner in learners:
            with clock.phase(f"update_{learner.name}"), self.progress.phase(f"updating the {learner.name}") as tick:
                sums.merge(learner.learn(groups, self.step, tick, in_loss))
        with self.progress.phase("giving the sampler the new weights"):
            self.collector.rollout.load((), self.actor.engine.version)
        metrics = sums.means()
        if any(metrics.get(f"{learner.name}/skipped_updates") for learner in learners):
            message = f"step {self.step}: an update was skipped, its loss or gradient was not finite"
            self.tracker.event("warning", message=message)
        if "actor/kl_loss" in metrics:
            metrics["actor/kl_coef"] = in_loss
            if math.isfinite(metrics["actor/kl_loss"]):  # it is not where an update was skipped
                self.kl.update(metrics["actor/kl_loss"], len(all_samples(groups)))
        return mismatch_metrics(metrics)

    def validate(self) -> dict[str, float]:
        """Answer the validation rows; log the scores and some answers, and renew the report if it is due."""
        data, trainer = self.config.data, self.config.trainer
        clock = Clock()
        with clock.phase("validation"), self.stop.at_once():
            collector, sampling, size = self.val_collector, self.val_sampling, data.val_batch_size
            groups = validate(self.val_prompts, collector, sampling, size, Clock(), self.draws.usable)
        picture = None if self.showed_pictures else self.picture
        self.tracker.log_samples(validation_rows(groups, trainer.val_generations_to_log, picture), self.step)
        self.showed_pictures = True  # the rows are the same every time, so once is enough
        found = validation_metrics(groups, data.max_prompt_length, self.val_sampling.max_tokens)
        self.tracker.log(found | {"timing_s/validation": clock.seconds["validation"]}, self.step)
        self.validated = True
        if time.monotonic() >= self.next_report:
            self.report()
        return found

    def state(self) -> dict[str, Any]:
        """Where the run is between two steps, but for weights and optimizers."""
        return {
            "loader": self.loader.state(),
            "kl": self.kl.state(),
            "waiting_groups": list(self.dynamic.waiting) if self.dynamic else [],
            "random": random_state(self.computes),
        }

    def save(self, val_score: float | None) -> None:
        """Write a checkpoint of the last whole step."""
        state = self.whole | {
            "waiting_groups": to_records(self.whole["waiting_groups"]),
            "validated": self.validated,
            "trackers": self.tracker.identity(),
            "config": to_mapping(self.config),
        }
        clock = Clock()
        with clock.phase("save_checkpoint"), self.progress.phase("saving a checkpoint"):
            folder = self.checkpoints.save(self.step, self.engines(), state, val_score, self.copy_model_files)
        self.saved_step = self.step
        self.tracker.log({"timing_s/save_checkpoint": clock.seconds["save_checkpoint"]}, self.step)
        self.tracker.event("checkpoint", step=self.step, folder=str(folder))

    def leave(self) -> None:
        """Save the last whole step if no checkpoint holds it, and say what there is to go on from."""
        if self.config.trainer.val_only or self.step == 0:
            message = "no step was taken, so nothing was saved"
        else:
            if self.step != self.saved_step:
                self.save(None)
            message = f"step {self.step} of {self.total_steps} is saved; {self._how_to_go_on()}"
        self.tracker.event("stopped", step=self.step, message=message)
        self.report()

    def _how_to_go_on(self) -> str:
        trainer = self.config.trainer
        if trainer.find_last_checkpoint and trainer.load_checkpoint_path is None:
            return "the same command goes on from there"
        folder = step_folder(self.checkpoints.folder, self.step)
        return f"go on from there with trainer.load_checkpoint_path={folder}"

    def report(self) -> None:
        """Renew the report; a run goes on without one. Validations renew it no oftener than takes 1 % of the time."""
        start = time.monotonic()
        with self.progress.phase("writing the report"):
            _, error = attempt(lambda: write_report(self.checkpoints.folder))
        if error is not None:
            self.tracker.event("warning", message=f"the report could not be written ({error!r})")
        self.next_report = time.monotonic() + 100 * (time.monotonic() - start)

    def resume(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; `state` is what `Checkpoints.load` gave for it."""
        whole = [engine.load(folder / name) for name, engine in self.engines().items()]
        self.collector.rollout.load((), self.actor.engine.version)
        self.loader.restore(state["loader"])
        self.kl.load(state["kl"])
        if self.dynamic is not None:
            self.dynamic.waiting = from_records(state["waiting_groups"], self.loader.at)
        restore_random_state(state["random"], self.computes)
        self.step, self.validated = state["step"], state["validated"]
        self.saved_step = self.step if self.checkpoints.is_own(folder) else 0
        came_back = what_came_back(state, optimizers=all(whole))
        message = f"from {folder}: {came_back}; step {self.step} of {self.total_steps} is done"
        self.tracker.event("resume", step=self.step, message=message)

    @property
    def computes(self) -> bool:
        """Whether this process is the one rank; if not, it leaves the devices to those that are."""
        return self.plan.in_driver

    def engines(self) -> dict[str, TrainEngine]:
        """What is trained, under the name of its folder in a checkpoint."""
        return {learner.name: learner.engine for learner in (self.actor, self.critic) if learner is not None}

    def is_due(self, every: int) -> bool:
        """Whether something that happens every so many steps happens now; the last step is always one."""
        return self.step == self.total_steps or (every > 0 and self.step % every == 0)
