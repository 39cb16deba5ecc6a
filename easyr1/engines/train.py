"""Scores answers and updates weights: whole groups in, micro-batches under a token budget inside.

Policy, reference and critic are objects of one class; what they minimise is their objective. Losses are averaged with
denominators counted over the whole mini-batch, so they do not depend on how it is cut. Does not know rewards, sampling
or the loop.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from easyr1.batch import Group, Sums
from easyr1.engines.lockstep import plan
from easyr1.engines.objective import MiniBatch, Objective, PolicyObjective, Tokens
from easyr1.engines.optimizer import OptimSpec, adamw, clip_gradients, load_state_tensors, state_tensors, state_to
from easyr1.engines.pack import Budget, MediaInputs, MicroBatch, Packer
from easyr1.engines.protocols import Progress
from easyr1.errors import CheckpointError, writing
from easyr1.manifest import read_json
from easyr1.models.log_probs import TokenScores
from easyr1.models.parallel import reduce_gradients, reshard
from easyr1.models.positions import Positions
from easyr1.models.ranks import ALONE, Ranks, writes
from easyr1.models.scored import Scored
from easyr1.models.shards import MODEL_FOLDER, OPTIM_FOLDER, load_shards, save_shards, shapes
from easyr1.seeding import generator

EXTRA_FILE = "extra_state.json"


class TorchTrain:
    """A TrainEngine on one device, or one rank's part of it. Without `optim` it can only score (the reference).

    Over several `ranks` every method is called on all of them at once, with the groups of this rank's replica, maybe
    none. Each draws its dropout from a stream of its own, which follows from `seed`. Gradients are added over ranks
    once an update, or with `reduce_each_micro_batch` more often, so that no rank ever has them whole.

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
        ranks: Ranks = ALONE,
        seed: int = 0,
        reduce_each_micro_batch: bool = False,
    ) -> None:
        self.scored = scored
        self.temperature = temperature
        self.score_budget = score_budget
        self.update_budget = update_budget or score_budget
        self.objective = objective
        self.optim = optim
        self.against = against
        self.ranks = ranks
        self.seed = seed
        self.reduce_each_micro_batch = reduce_each_micro_batch
        self.version = 0  # optimizer steps so far
        self.packer = Packer(Positions(scored.model), media, scored.packed, scored.banned)
        self.optimizer = adamw(scored.parameters(), optim) if optim else None
        self.home = next(scored.parameters()).device

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
        planned = plan(groups, self.score_budget, self.packer, self.ranks)
        for done, pieces in enumerate(planned.micro_batches, start=1):
            batch = self.packer.micro_batch(planned.groups, pieces, self.scored.device)
            numbers = torch.where(batch.allowed, measure(batch), 0.0).float().cpu()
            for (group, sample), values in zip(batch.places, batch.split(numbers), strict=True):
                if group < len(groups):  # no filler
                    found[group][sample] = values.numpy().copy()
            if progress is not None:
                progress(done, len(planned.micro_batches))
        self._reshard()
        return found

    def _reshard(self) -> None:
        for scored in (self.scored, self.against):
            if scored is not None:
                reshard(scored.root)

    def _scores(self, batch: MicroBatch, others: torch.Tensor | None = None) -> TokenScores:
        return self.scored(batch.inputs, batch.targets, self.temperature, others)

    def _compared(self, batch: MicroBatch) -> TokenScores:
        """The scores with the KL to the distributions of `against`, where there is one."""
        if self.against is None:
            return self._scores(batch)
        with torch.no_grad():
            others = self.against(batch.inputs, temperature=self.temperature)
        return self._scores(batch, others)

    def update(
        self, groups: Sequence[Group], lr: float, kl_coef: float = 0.0, progress: Progress | None = None
    ) -> Sums:
        """One optimizer step with learning rate `lr`; counted but not taken where the loss or gradient is not finite.

        Groups may have no samples; without any there is nothing to do. `progress` counts micro-batches.
        """
        assert self.optimizer is not None
        groups = [group for group in groups if group.samples]
        whole = MiniBatch(groups, self.packer.banned)
        planned = plan(groups, self.update_budget, self.packer, self.ranks, whole.counts)
        whole.count(planned.counts)
        if not whole.num_samples:
            return Sums()
        self.scored.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums, loss = Sums(), 0.0
        with self._own_randomness():
            for number, pieces in enumerate(planned.micro_batches, start=1):
                is_last = number == len(planned.micro_batches)
                reduce_gradients(self.scored, is_last or self.reduce_each_micro_batch)
                batch = self.packer.micro_batch(planned.groups, pieces, self.scored.device)
                loss += self._backward(batch, whole, kl_coef, sums)
                if progress is not None:
                    progress(number, len(planned.micro_batches))
        self._step(loss, lr, whole, sums)
        self.optimizer.zero_grad(set_to_none=True)
        self._reshard()
        return sums

    def _backward(self, batch: MicroBatch, whole: MiniBatch, kl_coef: float, sums: Sums) -> float:
        """Add a micro-batch's share to the gradients and to `sums`. Returns its share of the loss."""
        tokens = Tokens(batch, whole, self.scored.device)
        found = self._compared(batch)
        share = self.objective.share(TokenScores(*(column[tokens.kept] for column in found)), tokens, kl_coef)
        loss = share.loss
        if tokens.has_fillers:
            loss = loss + 0.0 * found.log_probs[tokens.fillers].sum()  # a gradient of 0, which the ranks can add
        loss.backward()
        part = float(share.loss.detach())
        # Shares add up to this update's averages; their counts add up to one update.
        fraction = len(tokens.sample) / whole.num_tokens
        for name, value in {"loss": part, **share.parts}.items():
            sums.add(f"{self.objective.prefix}/{name}", float(value), fraction)
        for name, value in share.peaks.items():
            sums.peak(f"{self.objective.prefix}/{name}", float(value))
        return part

    def _step(self, loss: float, lr: float, whole: MiniBatch, sums: Sums) -> None:
        """Let the optimizer take its step, on all ranks or on none; what is told of it, the first replica tells."""
        assert self.optimizer is not None and self.optim is not None
        norm, finite = clip_gradients(self.scored.parameters(), self.optim.max_grad_norm, loss, self.ranks)
        if finite:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            self.version += 1
        if self.ranks.replica == 0:
            told = {"skipped_updates": not finite, "banned_tokens": whole.num_banned, "lr": lr}
            for name, value in (told | {"grad_norm": norm} if finite else told).items():
                sums.add(f"{self.objective.prefix}/{name}", value)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Dropout of this rank in this update, whatever was drawn before; alone, torch's generator goes on."""
        if self.ranks.world == 1:
            yield
            return
        device = self.scored.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(generator(self.seed, self.version, self.ranks.rank).integers(1 << 62)))
            yield

    def sleep(self, weights: bool = True, optimizer: bool = True) -> None:
        """Put weights and optimizer state into host memory until `wake`; nothing moves that is there already."""
        self._reshard()
        if weights and self.home.type != "cpu":
            self.scored.to("cpu")
        if optimizer and self.optimizer is not None:
            state_to(self.optimizer, torch.device("cpu"))

    def wake(self) -> None:
        """Bring back what `sleep` put away."""
        if self.home.type != "cpu":
            self.scored.to(self.home)
        if self.optimizer is not None:
            state_to(self.optimizer, None)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under in-memory Hugging Face names, tied heads included, adapters merged.

        Over several ranks all of them go through it in step, and each gets each tensor whole, one after the other.
        """
        yield from self.scored.merged_tensors()

    def base_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same of the model without its adapters."""
        yield from self.scored.merged_tensors(merge=False)

    def adapter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """A and B of each adapter, whole, under "LAYER.lora_A.weight" and "LAYER.lora_B.weight"."""
        yield from self.scored.adapter_tensors()

    def save(self, folder: Path, model_only: bool = False, progress: Progress = lambda done, all: None) -> None:
        """Weights and, unless `model_only`, optimizer state: tensors in safetensors files, the rest in JSON.

        CheckpointError if they cannot be written.
        """
        save_shards(folder / MODEL_FOLDER, self.scored.saved_tensors())
        progress(1, 3)
        with_optimizer = self.optimizer is not None and not model_only
        if self.optimizer is not None and with_optimizer:
            save_shards(folder / OPTIM_FOLDER, state_tensors(self.optimizer, self._names()))
        progress(2, 3)
        if writes():
            with writing(folder / EXTRA_FILE):
                (folder / EXTRA_FILE).write_text(json.dumps({"version": self.version, "optimizer": with_optimizer}))
        progress(3, 3)

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
