"""Scores answers and updates weights: whole groups in, micro-batches under a token budget inside.

Policy and reference are two objects of one class. Losses are averaged with denominators counted over the whole
mini-batch, so they do not depend on how it is cut. Does not know rewards, sampling or the loop. Shape legend: N answer
tokens of a micro-batch, B samples of the mini-batch.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, load_model, save_file, save_model

from easyr1.algorithms.kl import PENALTIES
from easyr1.algorithms.losses import LOSSES, aggregate
from easyr1.batch import Group, Sample, Sums
from easyr1.engines.optimizer import OptimSpec, adamw, load_state_tensors, state_tensors
from easyr1.engines.pack import Budget, MediaInputs, MicroBatch, Packer, cut
from easyr1.engines.protocols import Progress
from easyr1.errors import DataError
from easyr1.models.positions import Positions
from easyr1.models.scored import Scored

log = logging.getLogger(__name__)

MODEL_FILE = "model_world_size_1_rank_0.safetensors"
OPTIM_FILE = "optim_world_size_1_rank_0.safetensors"
EXTRA_FILE = "extra_state_world_size_1_rank_0.json"


@dataclass(frozen=True)
class Objective:
    """What an update minimises. `kl_penalty` None: no KL term in the loss."""

    loss: str = "default"
    average: str = "token"
    clip_low: float = 0.2
    clip_high: float = 0.3
    clip_dual: float = 3.0
    kl_penalty: str | None = None


class TorchTrain:
    """A TrainEngine on one device. Without `optim` it can only score (the reference).

    `temperature` is the sampler's: both sides must normalise alike.
    """

    def __init__(
        self,
        scored: Scored,
        media: MediaInputs,
        temperature: float,
        score_budget: Budget,
        update_budget: Budget | None = None,
        objective: Objective | None = None,
        optim: OptimSpec | None = None,
    ) -> None:
        self.scored = scored
        self.temperature = temperature
        self.score_budget = score_budget
        self.update_budget = update_budget or score_budget
        self.objective = objective or Objective()
        self.optim = optim
        self.version = 0  # optimizer steps so far
        self.packer = Packer(Positions(scored.model), media, scored.packed, scored.banned)
        self.optimizer = adamw(scored.parameters(), optim) if optim else None

    @torch.no_grad()
    def score(self, groups: Sequence[Group], progress: Progress | None = None) -> list[list[np.ndarray]]:
        """For each group, for each sample, the (T,) log-probs of its tokens; 0 at ids that may never be sampled."""
        self.scored.eval()
        found: list[list[np.ndarray]] = [[np.empty(0)] * len(group.samples) for group in groups]
        parts = cut(groups, self.score_budget)
        for done, pieces in enumerate(parts, start=1):
            batch = self.packer.micro_batch(groups, pieces, self.scored.device)
            log_probs, _ = self.scored(batch.inputs, batch.targets, self.temperature)
            log_probs = torch.where(batch.allowed, log_probs, 0.0).float().cpu()
            for (group, sample), values in zip(batch.places, batch.split(log_probs), strict=True):
                found[group][sample] = values.numpy().copy()
            if progress is not None:
                progress(done, len(parts))
        return found

    def update(self, groups: Sequence[Group], lr: float, kl_coef: float = 0.0) -> Sums:
        """One optimizer step with learning rate `lr`; a gradient that is not finite is counted and not applied."""
        assert self.optimizer is not None and self.optim is not None
        self.scored.train()
        self.optimizer.zero_grad(set_to_none=True)
        whole = _MiniBatch(groups, self.packer.banned)
        sums = Sums()
        loss = 0.0
        for pieces in cut(groups, self.update_budget):
            batch = self.packer.micro_batch(groups, pieces, self.scored.device)
            share = self._share(batch, whole, kl_coef, sums)
            share.backward()
            loss += float(share.detach())
        sums.add("actor/loss", loss)
        norm = torch.nn.utils.clip_grad_norm_(self.scored.parameters(), self.optim.max_grad_norm)
        finite = bool(norm.isfinite())
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.version += 1
            sums.add("actor/grad_norm", float(norm))
        sums.add("actor/skipped_updates", not finite)
        sums.add("actor/banned_tokens", whole.num_banned)
        sums.add("actor/lr", lr)
        self.optimizer.zero_grad(set_to_none=True)
        return sums

    def _share(self, batch: MicroBatch, whole: "_MiniBatch", kl_coef: float, sums: Sums) -> torch.Tensor:
        """This micro-batch's share of the loss over the whole mini-batch, with its metrics added to `sums`."""
        objective = self.objective
        log_probs, entropy = self.scored(batch.inputs, batch.targets, self.temperature)
        samples = [whole.samples[place] for place in batch.places]
        numbers = torch.tensor([whole.number[place] for place in batch.places], device=log_probs.device)
        kept = batch.allowed
        sample = numbers.repeat_interleave(torch.tensor(batch.lengths, device=log_probs.device))[kept]
        log_probs, entropy = log_probs[kept], entropy[kept]
        device = log_probs.device

        def flat(name: str) -> torch.Tensor:
            """(N,) values of the samples, NaN where a sample has none."""
            arrays = [_or_nan(getattr(one, name), len(one)) for one in samples]
            return torch.from_numpy(np.concatenate(arrays)).to(device)[kept]

        def average(values: torch.Tensor) -> torch.Tensor:
            return aggregate(
                values,
                sample,
                objective.average,
                num_tokens=whole.num_tokens,
                num_samples=len(whole.samples),
                lengths=whole.lengths,
            )

        old = flat("old_log_probs")
        old = torch.where(old.isnan(), log_probs.detach(), old)  # none given: the policy is the one that sampled
        losses, metrics = LOSSES[objective.loss](
            log_probs,
            old,
            flat("advantages"),
            clip_low=objective.clip_low,
            clip_high=objective.clip_high,
            clip_dual=objective.clip_dual,
            sample=sample,
        )
        share = average(losses)
        shares = {"pg_loss": share.detach(), **{name: average(metric) for name, metric in metrics.items()}}
        if objective.kl_penalty is not None:
            kl = average(PENALTIES[objective.kl_penalty](log_probs, flat("ref_log_probs")))
            share = share + kl_coef * kl
            shares["kl_loss"] = kl.detach()
        shares["entropy_loss"] = average(-log_probs.detach())
        shares["entropy"] = average(entropy)
        # A share is a part of this update's average: the parts add up, and the count is one for all of them together.
        fraction = len(log_probs) / whole.num_tokens
        for name, value in shares.items():
            sums.add(f"actor/{name}", float(value), fraction)
        return share

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under in-memory Hugging Face names, tied heads included."""
        yield from self.scored.model.state_dict().items()

    def save(self, folder: Path, model_only: bool = False) -> None:
        """Weights and, unless `model_only`, optimizer state, as safetensors and JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.scored.model, str(folder / MODEL_FILE))
        if self.optimizer is not None and not model_only:
            save_file(state_tensors(self.optimizer, self._names()), folder / OPTIM_FILE)
        (folder / EXTRA_FILE).write_text(json.dumps({"version": self.version}))

    def load(self, folder: Path) -> None:
        """Everything that `save` wrote; without optimizer state the optimizer starts anew, which is said."""
        missing, unexpected = load_model(self.scored.model, str(folder / MODEL_FILE), strict=False)
        if missing or unexpected:
            raise DataError(
                f"{folder / MODEL_FILE} belongs to another model: {len(missing)} weights missing "
                f"({', '.join(sorted(missing)[:3])}), {len(unexpected)} unknown ({', '.join(sorted(unexpected)[:3])})"
            )
        if self.optimizer is not None and (folder / OPTIM_FILE).exists():
            load_state_tensors(self.optimizer, self._names(), load_file(folder / OPTIM_FILE))
        elif self.optimizer is not None:
            log.warning("%s has no optimizer state (trainer.save_model_only); the optimizer starts anew", folder)
        self.version = json.loads((folder / EXTRA_FILE).read_text())["version"]

    def _names(self) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self.scored.model.named_parameters()}


def _or_nan(array: np.ndarray | None, length: int) -> np.ndarray:
    return np.full(length, np.nan, np.float32) if array is None else array


class _MiniBatch:
    """What must be counted over all micro-batches: samples by place, and tokens that may be trained on."""

    def __init__(self, groups: Sequence[Group], banned: torch.Tensor) -> None:
        self.samples: dict[tuple[int, int], Sample] = {
            (index, number): sample
            for index, group in enumerate(groups)
            for number, sample in enumerate(group.samples)
        }
        self.number = {place: number for number, place in enumerate(self.samples)}
        counts = [int((~np.isin(sample.completion.ids, banned.numpy())).sum()) for sample in self.samples.values()]
        self.lengths = torch.tensor(counts)
        self.num_tokens = sum(counts)
        self.num_banned = sum(len(sample) for sample in self.samples.values()) - self.num_tokens
