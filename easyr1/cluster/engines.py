"""The engines of a run as the loop sees them: groups and prompts are shared out by cost, results put back in order.

What crosses to other processes is light: ids and numbers for each token, handles of pictures, neither text nor rows.
Knows neither models nor what becomes of results.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from easyr1.balance import Part, Size, imbalance, loads, share_out
from easyr1.batch import Completion, Group, Prompt, Sums, merge_sums
from easyr1.cluster.group import Progress, WorkerGroup
from easyr1.engines.protocols import Sampling
from easyr1.engines.sync import Bucket
from easyr1.engines.train import EXTRA_FILE
from easyr1.manifest import read_json

MediaTokens = Callable[[str], int]  # handle of a picture -> tokens that it has in a prompt


@dataclass
class Balance:
    """How evenly the calls of a step were shared out: largest over mean cost of a replica, averaged over calls."""

    sums: Sums = field(default_factory=Sums)

    def note(self, what: str, shares: Sequence[Sequence[Part]]) -> None:
        """One replica has nothing to tell."""
        if len(shares) > 1:
            self.sums.add(f"balance/{what}", imbalance(loads(shares)))

    def take(self) -> dict[str, float]:
        """The metrics since the last time."""
        found, self.sums = self.sums.means(), Sums()
        return found


class SharedTrain:
    """A TrainEngine on the ranks of a group, which hold it under `name`."""

    def __init__(self, group: WorkerGroup, name: str, media_tokens: MediaTokens, balance: Balance) -> None:
        self.group = group
        self.name = name
        self.media_tokens = media_tokens
        self.balance = balance
        self.version = 0  # optimizer steps so far

    def score(self, groups: Sequence[Group], progress: Progress | None = None) -> list[list[np.ndarray]]:
        """For each group, for each sample, the (T,) log-probs (or values) of its tokens."""
        return self._of_each_token("score", groups, progress)

    def divergence(self, groups: Sequence[Group], progress: Progress | None = None) -> list[list[np.ndarray]]:
        """For each group, for each sample, the (T,) KL divergence of whole distributions to the reference."""
        return self._of_each_token("divergence", groups, progress)

    def update(
        self, groups: Sequence[Group], lr: float, kl_coef: float = 0.0, progress: Progress | None = None
    ) -> Sums:
        """One optimizer step on one mini-batch, of which each replica takes a share. Without samples: none."""
        groups = [group for group in groups if group.samples]
        if not groups:
            return Sums()
        parts = self._share("update", groups)
        shares = _taken(groups, parts)
        found = self.group.call_sharded(f"{self.name}.update", shares, lr, kl_coef, progress=progress)
        sums = merge_sums(found)
        self.version += not sums.totals[f"{self.name}/skipped_updates"][0]
        return sums

    def save(self, folder: Path, model_only: bool = False) -> None:
        """Every rank writes its part."""
        self.group.call_all(f"{self.name}.save", folder, model_only)

    def load(self, folder: Path) -> bool:
        """Every rank takes its part; False if the optimizer's state was not there."""
        whole = all(self.group.call_all(f"{self.name}.load", folder))
        self.version = read_json(folder / EXTRA_FILE)["version"]
        return whole

    def _of_each_token(
        self, method: str, groups: Sequence[Group], progress: Progress | None
    ) -> list[list[np.ndarray]]:
        parts = self._share(method, groups)
        shares = self.group.call_sharded(f"{self.name}.{method}", _taken(groups, parts), progress=progress)
        found: list[list[np.ndarray]] = [[np.empty(0)] * len(group.samples) for group in groups]
        for share, results in zip(parts, shares, strict=True):
            for part, arrays in zip(share, results, strict=True):
                for answer, array in zip(part.answers, arrays, strict=True):
                    found[part.group][answer] = array
        return found

    def _share(self, method: str, groups: Sequence[Group]) -> list[list[Part]]:
        sizes = [_size(group, self.media_tokens) for group in groups]
        parts = share_out(sizes, self.group.num_replicas)
        self.balance.note(f"{self.name}_{method}", parts)
        return parts


class SharedRollout:
    """A RolloutEngine on the ranks of a group, each of which answers its share of the prompts.

    A prompt's answers are sampled together, so that it is computed once; they do not depend on who samples them.
    """

    def __init__(self, group: WorkerGroup, balance: Balance, source: WorkerGroup | None = None) -> None:
        """`source` are the ranks that hold the policy, where the group's own do not."""
        self.group = group
        self.balance = balance
        self.source = source

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """For each prompt its `sampling.n` answers, in the order asked."""
        # One size stands for all answers, which are not there yet; they are what decoding costs.
        expected = sampling.n * sampling.max_tokens // 2
        shares = share_out([Size(len(prompt.ids) + expected, ()) for prompt in prompts], self.group.num_replicas)
        self.balance.note("rollout_generate", shares)
        asked = [[prompts[part.group].light() for part in share] for share in shares]
        answered = self.group.call_sharded("rollout.generate", asked, sampling, progress=progress)
        found: list[list[Completion]] = [[] for _ in prompts]
        for share, answers in zip(shares, answered, strict=True):
            for part, own in zip(share, answers, strict=True):
                found[part.group] = own
        return found

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take the weights of the ranks' own policy, so that nothing comes by way of this process, or the source's."""
        assert not list(weights)
        if self.source is not None:
            stream_weights(self.source, self.group, version)
            return
        versions = self.group.call_all("sync.push")
        assert set(versions) == {version}, f"the ranks' policies are at {versions}, not at {version}"

    def rest(self) -> None:
        """No answers are wanted until the next `load`. Ranks that only sample have nobody to make room for."""
        if self.source is not None:
            return
        self.group.call_all("rollout.rest")


def _size(group: Group, media_tokens: MediaTokens) -> Size:
    media = sum(media_tokens(handle) for handle in group.prompt.media)
    return Size(len(group.prompt.ids), tuple(len(sample) for sample in group.samples), media)


def _taken(groups: Sequence[Group], shares: Sequence[Sequence[Part]]) -> list[list[Group]]:
    """The groups of each share, with those of their samples that belong to it."""
    return [[_part_of(groups[part.group], part) for part in share] for share in shares]


def _part_of(group: Group, part: Part) -> Group:
    return Group(group.prompt.light(), [group.samples[answer].light() for answer in part.answers])


def stream_weights(source: WorkerGroup, target: WorkerGroup, version: int) -> None:
    """Bring the samplers of another group up to the policy of `source`, bucket by bucket.

    On the ranks of `source` there is a WeightSync as "sync", on those of `target` a WeightInlet as "inlet". No more
    than one bucket is under way at a time.
    """
    while (bucket := _of_speaker(source.call_all("sync.next_bucket"))) is not None:
        target.call_all("inlet.take", bucket)
    target.call_all("inlet.finish", version)


def _of_speaker(found: Sequence[Bucket | None]) -> Bucket | None:
    """The bucket that one of the ranks has; None behind the last."""
    return None if found[0] is None else next(bucket for bucket in found if bucket)
