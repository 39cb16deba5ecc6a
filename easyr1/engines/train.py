"""Scores answers and updates weights: whole groups in, micro-batches under a token budget inside.

Policy, reference and critic are objects of one class; what they minimise is their objective. Losses are averaged with
denominators counted over the whole mini-batch, so they do not depend on how it is cut. Does not know rewards, sampling
or the loop.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from easyr1.batch import Group, Sums
from easyr1.engines.objective import MiniBatch, Objective, PolicyObjective, Tokens
from easyr1.engines.optimizer import OptimSpec, adamw, load_state_tensors, state_tensors
from easyr1.engines.pack import Budget, MediaInputs, MicroBatch, Packer, cut
from easyr1.engines.protocols import Progress
from easyr1.errors import CheckpointError
from easyr1.manifest import read_json
from easyr1.models.log_probs import TokenScores
from easyr1.models.positions import Positions
from easyr1.models.scored import Scored
from easyr1.models.shards import MODEL_FOLDER, OPTIM_FOLDER, load_shards, save_shards, shapes

EXTRA_FILE = "extra_state.json"


class TorchTrain:
    """A TrainEngine on one device. Without `optim` it can only score (the reference).

    `temperature` is the sampler's: both sides must normalise alike. With `against`, a frozen root, the whole
    distributions are compared at every token, which costs (tokens x vocabulary) numbers for each micro-batch.
    """

    def __init__(
        self,
        scored: Scored,
        media: MediaInputs,
        temperature: float,
        score_budget: Budget,
        update_budget: Budget | None = None,
        objective: Objective = PolicyObjective(),
        optim: OptimSpec | None = None,
        against: Scored | None = None,
    ) -> None:
        self.scored = scored
        self.temperature = temperature
        self.score_budget = score_budget
        self.update_budget = update_budget or score_budget
        self.objective = objective
        self.optim = optim
        self.against = against
        self.version = 0  # optimizer steps so far
        self.packer = Packer(Positions(scored.model), media, scored.packed, scored.banned)
        self.optimizer = adamw(scored.parameters(), optim) if optim else None

    def score(self, groups: Sequence[Group], progress: Progress | None = None) -> list[list[np.ndarray]]:
        """For each group, for each sample, the (T,) log-probs (or values) of its tokens; 0 at ids never sampled."""
        return self._of_each_token(groups, lambda batch: self._scores(batch).log_probs, progress)

    def divergence(self, groups: Sequence[Group], progress: Progress | None = None) -> list[list[np.ndarray]]:
        """For each group, for each sample, the (T,) KL divergence to `against` where each token was drawn."""
        return self._of_each_token(groups, lambda batch: self._compared(batch).kl, progress)

    @torch.no_grad()
    def _of_each_token(
        self, groups: Sequence[Group], measure: Callable[[MicroBatch], torch.Tensor], progress: Progress | None
    ) -> list[list[np.ndarray]]:
        self.scored.eval()
        found: list[list[np.ndarray]] = [[np.empty(0)] * len(group.samples) for group in groups]
        parts = cut(groups, self.score_budget)
        for done, pieces in enumerate(parts, start=1):
            batch = self.packer.micro_batch(groups, pieces, self.scored.device)
            numbers = torch.where(batch.allowed, measure(batch), 0.0).float().cpu()
            for (group, sample), values in zip(batch.places, batch.split(numbers), strict=True):
                found[group][sample] = values.numpy().copy()
            if progress is not None:
                progress(done, len(parts))
        return found

    def _scores(self, batch: MicroBatch, others: torch.Tensor | None = None) -> TokenScores:
        return self.scored(batch.inputs, batch.targets, self.temperature, others)

    def _compared(self, batch: MicroBatch) -> TokenScores:
        """The scores with the KL to the distributions of `against`, where there is one."""
        if self.against is None:
            return self._scores(batch)
        with torch.no_grad():
            others = self.against(batch.inputs, temperature=self.temperature)
        return self._scores(batch, others)

    def update(self, groups: Sequence[Group], lr: float, kl_coef: float = 0.0) -> Sums:
        """One optimizer step with learning rate `lr`; counted but not taken where the loss or gradient is not finite.

        Groups may have no samples; without any there is nothing to do.
        """
        assert self.optimizer is not None and self.optim is not None
        groups = [group for group in groups if group.samples]
        if not groups:
            return Sums()
        self.scored.train()
        self.optimizer.zero_grad(set_to_none=True)
        whole = MiniBatch(groups, self.packer.banned)
        sums, prefix, loss = Sums(), self.objective.prefix, 0.0
        for pieces in cut(groups, self.update_budget):
            batch = self.packer.micro_batch(groups, pieces, self.scored.device)
            tokens = Tokens(batch, whole, self.scored.device)
            scores = TokenScores(*(column[tokens.kept] for column in self._compared(batch)))
            share = self.objective.share(scores, tokens, kl_coef)
            share.loss.backward()
            part = float(share.loss.detach())
            loss += part
            # Shares add up to this update's averages; their counts add up to one update.
            fraction = len(tokens.sample) / whole.num_tokens
            for name, value in {"loss": part, **share.parts}.items():
                sums.add(f"{prefix}/{name}", float(value), fraction)
            for name, value in share.peaks.items():
                sums.peak(f"{prefix}/{name}", float(value))
        norm = torch.nn.utils.clip_grad_norm_(self.scored.parameters(), self.optim.max_grad_norm)
        finite = math.isfinite(norm) and math.isfinite(loss)  # a clamp can hide a broken number from the gradient
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.version += 1
            sums.add(f"{prefix}/grad_norm", float(norm))
        sums.add(f"{prefix}/skipped_updates", not finite)
        sums.add(f"{prefix}/banned_tokens", whole.num_banned)
        sums.add(f"{prefix}/lr", lr)
        self.optimizer.zero_grad(set_to_none=True)
        return sums

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under in-memory Hugging Face names, tied heads included, adapters merged."""
        yield from self.scored.merged_tensors()

    def save(self, folder: Path, model_only: bool = False) -> None:
        """Weights and, unless `model_only`, optimizer state: tensors in safetensors files, the rest in JSON."""
        save_shards(folder / MODEL_FOLDER, self.scored.saved_tensors())
        with_optimizer = self.optimizer is not None and not model_only
        if self.optimizer is not None and with_optimizer:
            save_shards(folder / OPTIM_FOLDER, state_tensors(self.optimizer, self._names()))
        (folder / EXTRA_FILE).write_text(json.dumps({"version": self.version, "optimizer": with_optimizer}))

    def load(self, folder: Path) -> bool:
        """Take up what `save` wrote. False if the optimizer's state was not among it, so that it starts anew."""
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder.parent} was made without a {folder.name}; start a new run, or resume with the "
                "algorithm.adv_estimator of the old one"
            )
        self._read_model(folder)
        extra = read_json(folder / EXTRA_FILE)
        self.version = extra["version"]
        if self.optimizer is not None and extra["optimizer"]:
            load_state_tensors(self.optimizer, self._names(), self._read_optimizer(folder / OPTIM_FOLDER))
        return self.optimizer is None or extra["optimizer"]

    def _read_model(self, folder: Path) -> None:
        try:
            load_shards(folder / MODEL_FOLDER, self.scored.saved_tensors())
        except CheckpointError as error:
            if ".lora_" not in str(error):
                raise
            raise CheckpointError(
                f"{error}. Set worker.{folder.name}.model.lora (rank, target_modules, exclude_modules) as it was, or "
                "merge the checkpoint (easyr1 merge) and start from the result"
            ) from error

    def _read_optimizer(self, folder: Path) -> dict[str, torch.Tensor]:
        """The optimizer's tensors, each spread over the ranks as its parameter is."""
        parameters = dict(self.scored.saved.named_parameters())
        tensors = {}
        for name, shape in shapes(folder).items():
            like = parameters.get(name.rpartition("/")[0])
            if like is None or tuple(like.shape) != shape.size:  # a count of steps
                like = torch.empty(shape.size)
            tensors[name] = torch.zeros_like(like, dtype=shape.dtype, requires_grad=False)
        load_shards(folder, tensors)
        return tensors

    def _names(self) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self.scored.saved.named_parameters()}
