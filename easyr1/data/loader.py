"""The order in which prompts are drawn, from (seed, epoch) alone, and the place in it.

The orders of epoch 0, 1, 2, ... form one endless stream, and draws cut it from the left. Each order holds every row
once, so at any time two rows differ by at most one in how often they were drawn. An epoch of the trainer is
floor(draws / batch_size) steps; what is then left in an order comes first in the next step, followed by the
next order. In such a batch the rows of the old order are not drawn again: the new order starts with other rows, and
is otherwise as it was shuffled. So no batch holds a row twice (but where rows are left out, as data.on_bad_media=skip
does, and others take their place), and where batches divide the rows evenly every order is a plain permutation.

With weights an order holds round(weight x rows) draws of each source, at least one. A whole weight w puts each row of
the source into every order w times. A fraction takes turns: the rows of a source stand in a seeded ring, each epoch
takes as many as it needs and the next goes on behind them, so no row is passed over, and after any number of whole
epochs two rows of one source differ by at most one. A row of weight above 1 may come twice in one batch, as two
groups. Without shuffling an order is the file order, once for each round of repeats.

Knows nothing of what a row is.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from easyr1.batch import Prompt
from easyr1.errors import ConfigError
from easyr1.seeding import generator

RING = -1  # in place of an epoch: the random numbers that order the rings


@dataclass(frozen=True)
class Share:
    """Neighbouring rows that form a source, and how many draws of an epoch are theirs."""

    rows: int
    draws: int

    @classmethod
    def weighted(cls, rows: int, weight: float) -> "Share":
        return cls(rows, max(1, round(weight * rows)) if rows else 0)


class Loader:
    """Draws prompts; its position is (epoch, index) and can be taken up again exactly."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        batch_size: int,
        shuffle: bool = True,
        seed: int = 1,
        shares: Sequence[Share] | None = None,
    ) -> None:
        """`shares` None draws every row once an epoch. Raises ConfigError if an epoch holds less than a batch."""
        self._prompts = prompts
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._shares = None if shares is None else tuple(shares)
        self._draws = len(prompts) if shares is None else sum(share.draws for share in shares)
        if self._draws < batch_size:
            raise ConfigError(
                "data.rollout_batch_size",
                f"it is {batch_size}, but only {self._draws} rows are left; lower it or give more rows.",
            )
        self._start()

    @property
    def steps_per_epoch(self) -> int:
        return self._draws // self._batch_size

    def next(self, count: int | None = None) -> list[Prompt]:
        """The next `count` prompts (a batch, if None), each with its epoch and its index in that epoch's order."""
        drawn = []
        for _ in range(self._batch_size if count is None else count):
            if self._index == len(self._order):
                self._advance()
            prompt = self._prompts[self._order[self._index]]
            drawn.append(replace(prompt, epoch=self._epoch, index=self._index))
            self._index += 1
        return drawn

    def at(self, epoch: int, index: int) -> Prompt:
        """The prompt that was drawn at a place of the past or of this epoch."""
        other = Loader(self._prompts, self._batch_size, self._shuffle, self._seed, self._shares)
        other.restore(self.state() | {"epoch": epoch, "index": index})
        return other.next(1)[0]

    @property
    def draws_per_epoch(self) -> int:
        return len(self._prompts) if self._shares is None else sum(share.draws for share in self._shares)

    def state(self) -> dict[str, Any]:
        """The position, and what it is a position in; plain numbers."""
        return {
            "epoch": self._epoch,
            "index": self._index,
            "rows": len(self._prompts),
            "draws": None if self._shares is None else [[share.rows, share.draws] for share in self._shares],
            "seed": self._seed,
            "shuffle": self._shuffle,
            "batch_size": self._batch_size,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a position that `state` gave.

        Raises ConfigError if it is a position in another order; where orders meet, they depend on the batch size, too.
        """
        now = self.state()
        for name, key in (
            ("rows", "data.train_files"),
            ("draws", "data.train_weights"),
            ("seed", "data.seed"),
            ("shuffle", "data.shuffle"),
            ("batch_size", "data.rollout_batch_size"),
        ):
            then = state.get(name)  # the first checkpoints know no "draws"
            if then != now[name]:
                raise ConfigError(
                    key,
                    f"the checkpoint's order of rows has {name} {then}, this run's has {now[name]}; set it, "
                    "and what filters rows, as it was, or start a new run from the checkpoint's weights.",
                )
        self._start()
        while self._epoch < state["epoch"]:
            self._advance()
        self._index = int(state["index"])

    def _start(self) -> None:
        self._epoch = 0
        self._index = 0
        self._order = self._permutation(0)

    def _advance(self) -> None:
        self._epoch += 1
        self._index = 0
        begun = self._epoch * self._draws % self._batch_size  # draws of the old order in the open batch
        old = frozenset(self._order[len(self._order) - begun :])
        self._order = starting_without(old, self._permutation(self._epoch), (self._batch_size - begun) if begun else 0)

    def _permutation(self, epoch: int) -> list[int]:
        rows = self._rows(epoch)
        if not self._shuffle:
            return rows
        return [rows[place] for place in generator(self._seed, epoch).permutation(len(rows)).tolist()]

    def _rows(self, epoch: int) -> list[int]:
        """The rows of an epoch, unshuffled: all of them once, then those that come again, and so on."""
        if self._shares is None:
            return list(range(len(self._prompts)))
        counts: list[int] = []
        for number, share in enumerate(self._shares):
            ring = generator(self._seed, RING, number).permutation(share.rows).tolist()
            counts += [turns(place, share, epoch) for place in ring]
        return [row for again in range(max(counts)) for row, count in enumerate(counts) if count > again]


def turns(place: int, share: Share, epoch: int) -> int:
    """How often the row at a place of a source's ring comes in an epoch; over all places it is `share.draws`.

    >>> [[turns(place, Share(rows=4, draws=6), epoch) for place in range(4)] for epoch in (0, 1)]
    [[1, 1, 2, 2], [2, 2, 1, 1]]
    """
    before, after = ((epoch + number) * share.draws + place for number in (0, 1))
    return after // share.rows - before // share.rows


def starting_without(rows: Set[int], order: Sequence[int], count: int) -> list[int]:
    """`order` with `rows` moved behind the first `count` others; all else stays in its order.

    >>> starting_without({3, 0}, [3, 1, 0, 2, 4], count=2)
    [1, 2, 3, 0, 4]
    """
    head = [place for place, row in enumerate(order) if row not in rows][:count]
    drawn = frozenset(head)
    return [order[place] for place in head] + [row for place, row in enumerate(order) if place not in drawn]
