"""The order in which prompts are drawn, from (seed, epoch) alone, and the place in it.

The orders of epoch 0, 1, 2, ... form one endless stream, and draws cut it from the left. Each order holds every row
once, so at any time two rows differ by at most one in how often they were drawn. An epoch of the trainer is
floor(rows / batch_size) steps; rows that are then left in an order are the first of the next step, followed by the
next order. In such a batch the rows of the old order are not drawn again: the new order starts with other rows, and
is otherwise as it was shuffled. So no batch holds a row twice, and where batches divide the rows evenly every order is
a plain permutation.

Knows nothing of what a row is.
"""

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import islice

from easyr1.batch import Prompt
from easyr1.errors import ConfigError
from easyr1.seeding import generator


class Loader:
    """Draws prompts; its position is (epoch, index) and can be taken up again exactly."""

    def __init__(self, prompts: Sequence[Prompt], batch_size: int, shuffle: bool = True, seed: int = 1) -> None:
        """Raises ConfigError if there are fewer prompts than a batch needs."""
        if len(prompts) < batch_size:
            raise ConfigError(
                "data.rollout_batch_size",
                f"it is {batch_size}, but only {len(prompts)} rows are left; lower it or give more rows.",
            )
        self._prompts = prompts
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._start()

    @property
    def steps_per_epoch(self) -> int:
        return len(self._prompts) // self._batch_size

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
        other = Loader(self._prompts, self._batch_size, self._shuffle, self._seed)
        other.restore(self.state() | {"epoch": epoch, "index": index})
        return other.next(1)[0]

    def state(self) -> dict[str, int | bool]:
        """The position, and what it is a position in; plain numbers."""
        return {
            "epoch": self._epoch,
            "index": self._index,
            "rows": len(self._prompts),
            "seed": self._seed,
            "shuffle": self._shuffle,
            "batch_size": self._batch_size,
        }

    def restore(self, state: dict[str, int | bool]) -> None:
        """Take up a position that `state` gave.

        Raises ConfigError if it is a position in another order; where orders meet, they depend on the batch size, too.
        """
        now = self.state()
        for name, key in (
            ("rows", "data.train_files"),
            ("seed", "data.seed"),
            ("shuffle", "data.shuffle"),
            ("batch_size", "data.rollout_batch_size"),
        ):
            if state[name] != now[name]:
                raise ConfigError(
                    key,
                    f"the checkpoint's order of rows has {name} {state[name]}, this run's has {now[name]}; set it, "
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
        begun = self._epoch * len(self._prompts) % self._batch_size  # draws of the old order in the open batch
        old = frozenset(self._order[len(self._order) - begun :])
        self._order = starting_without(old, self._permutation(self._epoch), (self._batch_size - begun) if begun else 0)

    def _permutation(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(len(self._prompts)))
        return generator(self._seed, epoch).permutation(len(self._prompts)).tolist()


def starting_without(rows: Set[int], order: Sequence[int], count: int) -> list[int]:
    """`order` with `rows` moved behind the first `count` others; all else stays in its order.

    >>> starting_without({3, 0}, [3, 1, 0, 2, 4], count=2)
    [1, 2, 3, 0, 4]
    """
    head = list(islice((row for row in order if row not in rows), count))
    drawn = frozenset(head)
    return head + [row for row in order if row not in drawn]
