"""Position ids. Multimodal rotary positions are asked from the model class, never computed here.

Shape legend: P prompt tokens, T answer tokens; R rows of position ids (1 for text models, 3 for m-rope: time, height,
width).
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from easyr1.errors import DataError

SECONDS = "second_per_grid_ts"  # between two moments of each video
TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")  # what families call them


def type_names(module: nn.Module) -> tuple[str, ...]:
    """Under which names the forward of a model takes the types of its tokens, if it does."""
    return tuple(name for name in TOKEN_TYPES if name in inspect.signature(module.forward).parameters)


def token_types(ids: torch.Tensor, config: Any) -> torch.Tensor:
    """0 for text, 1 for picture tokens, 2 for video tokens, in the shape of `ids`."""
    types = torch.zeros_like(ids)
    for kind, name in enumerate(("image_token_id", "video_token_id"), start=1):
        token = getattr(config, name, None)
        if token is not None:
            types[ids == token] = kind
    return types


class Positions:
    """Gives the (R, P) positions of a prompt and continues them over its answers."""

    def __init__(self, model: nn.Module) -> None:
        inner = getattr(model, "model", model)
        self._ask = getattr(inner, "get_rope_index", None)
        self.rows = 3 if self._ask is not None else 1
        self._config = getattr(model, "config", None)
        self._takes = frozenset(inspect.signature(self._ask).parameters) if self._ask is not None else frozenset()

    def token_types(self, ids: torch.Tensor) -> torch.Tensor:
        """0 for text, 1 for picture tokens, 2 for video tokens, in the shape of `ids`."""
        return token_types(ids, self._config)

    def of_prompt(self, ids: torch.Tensor, media: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """ids (P,) and the prompt's media inputs -> (R, P)."""
        grids = {name: value.to("cpu") for name, value in media.items() if name.endswith("_grid_thw")}
        if self._ask is None or not grids:
            return torch.arange(len(ids))[None].expand(self.rows, -1)
        self._check(ids, grids)
        known: dict[str, torch.Tensor] = {**grids, "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        known |= {name: value.to("cpu") for name, value in media.items() if name == SECONDS}
        if "mm_token_type_ids" in self._takes:
            known["mm_token_type_ids"] = self.token_types(ids).int()[None]
        positions, _ = self._ask(
            input_ids=ids[None], **{name: value for name, value in known.items() if name in self._takes}
        )
        return positions[:, 0]

    def _check(self, ids: torch.Tensor, grids: Mapping[str, torch.Tensor]) -> None:
        """The class would raise something unreadable, or read the grids wrongly."""
        merged = self._config.vision_config.spatial_merge_size**2  # type: ignore[union-attr]
        patches = sum(int(grid.prod(-1).sum()) for grid in grids.values())
        tokens = int((self.token_types(ids) > 0).sum())
        if tokens * merged != patches:
            raise DataError(
                f"a prompt has {tokens} picture tokens, but its pictures are {patches / merged:g}: it was cut, or its "
                "pictures belong to another model"
            )

    @staticmethod
    def after(prompt: torch.Tensor, length: int) -> torch.Tensor:
        """(R, P) -> (R, T): an answer's positions go on behind the largest of its prompt's."""
        first = int(prompt.max()) + 1
        return torch.arange(first, first + length)[None].expand(prompt.shape[0], -1)
