"""Position ids. Multimodal rotary positions are asked from the model class, never computed here.

Shape legend: P prompt tokens, T answer tokens; R rows of position ids (1 for text models, 3 for m-rope: time, height,
width).
"""

import inspect
from collections.abc import Mapping

import torch
from torch import nn


class Positions:
    """Gives the (R, P) positions of a prompt and continues them over its answers."""

    def __init__(self, model: nn.Module) -> None:
        inner = getattr(model, "model", model)
        self._ask = getattr(inner, "get_rope_index", None)
        self.rows = 3 if self._ask is not None else 1
        config = getattr(model, "config", None)
        self._token_types = {
            getattr(config, "image_token_id", None): 1,
            getattr(config, "video_token_id", None): 2,
        }
        self._token_types.pop(None, None)
        self._takes = frozenset(inspect.signature(self._ask).parameters) if self._ask is not None else frozenset()

    def token_types(self, ids: torch.Tensor) -> torch.Tensor:
        """0 for text, 1 for picture tokens, 2 for video tokens, in the shape of `ids`."""
        types = torch.zeros_like(ids, dtype=torch.int32)
        for token, kind in self._token_types.items():
            types[ids == token] = kind
        return types

    def of_prompt(self, ids: torch.Tensor, media: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """ids (P,) and the prompt's media inputs -> (R, P)."""
        grids = {name: value.to("cpu") for name, value in media.items() if name.endswith("_grid_thw")}
        if self._ask is None or not grids:
            return torch.arange(len(ids))[None].expand(self.rows, -1)
        known: dict[str, torch.Tensor] = {**grids, "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if "mm_token_type_ids" in self._takes:
            known["mm_token_type_ids"] = self.token_types(ids)[None]
        positions, _ = self._ask(
            input_ids=ids[None], **{name: value for name, value in known.items() if name in self._takes}
        )
        return positions[:, 0]

    @staticmethod
    def after(prompt: torch.Tensor, length: int) -> torch.Tensor:
        """(R, P) -> (R, T): an answer's positions go on behind the largest of its prompt's."""
        first = int(prompt.max()) + 1
        return torch.arange(first, first + length)[None].expand(prompt.shape[0], -1)
