"""The one root module of an engine: backbone, choice of positions and chunked head all run inside its forward.

A sharded model may only be entered through its root, so nothing outside calls a submodule. Knows neither data nor
padding. Shape legend: L packed tokens, B padded rows, R rows of position ids, N chosen tokens, H hidden, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from easyr1.data.processor import image_token_id
from easyr1.errors import DataError
from easyr1.models.attention import Layout
from easyr1.models.log_probs import TokenScores, normalised, token_log_probs
from easyr1.models.lora import adapter_tensors, adapters_off, merged_tensors, saved_tensors
from easyr1.models.positions import token_types, type_names
from easyr1.models.ranks import ALONE, Ranks
from easyr1.models.sequence import Share, cut_at, share_of
from easyr1.models.towers import shared, vision_tower, why_not_shared


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """One micro-batch: a packed row with a `layout`, or padded rows with an `attention_mask`."""

    ids: torch.Tensor  # (1, L) packed or (B, L) padded
    positions: torch.Tensor  # (R, 1, L) or (R, B, L)
    chosen: torch.Tensor  # (N,) flat index of the tokens whose hidden state predicts a wanted token
    media: Mapping[str, torch.Tensor] = field(default_factory=dict)  # processed pictures, in the order of their tokens
    layout: Layout | None = None
    attention_mask: torch.Tensor | None = None  # (B, L), 1 for real tokens


class Scored(nn.Module):
    """A Hugging Face model as a function from a micro-batch to log-probs.

    `packed` tells whether it takes packed rows (our attention) or padded ones; `banned` are the ids that can never be
    sampled; `compute_dtype` is the type of matrix products (None: that of the weights). Without a `plain_head` (one
    that scales or caps its logits) the model's own forward makes the logits, of all tokens.
    """

    model: PreTrainedModel
    banned: torch.Tensor

    def __init__(
        self,
        model: PreTrainedModel,
        packed: bool,
        banned: Iterable[int] = (),
        compute_dtype: torch.dtype | None = None,
        plain_head: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.packed = packed
        self.plain_head = plain_head
        self.type_names = type_names(model.base_model) if image_token_id(model.config) is not None else ()
        self.compute_dtype = compute_dtype
        self.entropy_gradient = False  # whether entropies are part of a loss
        self.ranks: Ranks = ALONE  # those of one replica share each row: see models/sequence.py
        self.register_buffer("banned", torch.tensor(sorted(banned), dtype=torch.long), persistent=False)

    @property
    def device(self) -> torch.device:
        return self.banned.device

    @property
    def root(self) -> "Scored":
        """The module through which the weights are entered."""
        return self

    @property
    def exact(self) -> tuple[nn.Module, ...]:
        """Parts that keep the type of their weights in computations of low precision."""
        return ()

    @property
    def saved(self) -> nn.Module:
        """The module whose weights make a checkpoint, under the names that it gives them."""
        return self.model

    def saved_tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds, sharing memory with the module: adapters alone where there are any.

        Names are those of `saved`; a tied tensor comes once, under its first name.
        """
        return saved_tensors(self.model)

    def merged_tensors(self, merge: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors under the names of the plain Hugging Face model, tied heads included, adapters merged."""
        return merged_tensors(self.model, merge)

    def adapter_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """A and B of each adapter, whole, under the names of their layers."""
        return adapter_tensors(self.model)

    def forward(
        self,
        inputs: ModelInputs,
        targets: torch.Tensor | None = None,
        temperature: float = 1.0,
        against: torch.Tensor | None = None,
    ) -> TokenScores | torch.Tensor:
        """With `targets` (N,): their scores, with the KL to the distributions `against` (N, V) where they are given.

        Without targets: all log-probs (N, V). Ranks that share a row each get those of the chosen tokens in their own
        slice alone, in both places: nobody exchanges whole distributions.
        """
        share = self._share(inputs)
        with self.precision():
            hidden = self._hidden(inputs, share) if self.plain_head else self._logits(inputs)
            head = self.model.get_output_embeddings() if self.plain_head else nn.Identity()
            assert head is not None
            if targets is None:
                return normalised(head(hidden), self.banned, temperature)
            own = share.of(targets)
            scores = token_log_probs(hidden, head, own, self.banned, temperature, self.entropy_gradient, against)
        return TokenScores(*share.together(scores))

    def _share(self, inputs: ModelInputs) -> Share:
        """What this rank computes of the micro-batch."""
        return share_of(self.ranks, inputs.layout, inputs.ids.shape[1], inputs.chosen)

    def _hidden(self, inputs: ModelInputs, share: Share) -> torch.Tensor:
        """(n, H) hidden states at this rank's share of the chosen tokens."""
        with ExitStack() as hooks:
            if share.layout is not None:
                inputs = replace(inputs, layout=share.layout)
                hooks.enter_context(cut_at(self.model.get_decoder(), share.layout))
                tower = vision_tower(self.model)
                if inputs.media and tower is not None and why_not_shared(self.model) is None:
                    hooks.enter_context(shared(tower, share.layout.group))
            return self._run(self.model.base_model, inputs).last_hidden_state.flatten(0, 1)[share.chosen]

    def taken(self, pixels: torch.Tensor) -> torch.Tensor:
        """A tensor of pictures in the type of the weights, which not every family casts to; counts and times stay."""
        return pixels.to(self.model.dtype) if pixels.is_floating_point() and pixels.ndim > 1 else pixels

    def _logits(self, inputs: ModelInputs) -> torch.Tensor:
        """(N, V) logits at the chosen tokens, as the model itself makes them."""
        return self._run(self.model, inputs).logits.flatten(0, 1)[inputs.chosen]

    def _run(self, module: nn.Module, inputs: ModelInputs) -> Any:
        """One forward of the model or of its backbone, with all that its family wants to be told."""
        keywords: dict[str, Any] = {name: self.taken(tensor) for name, tensor in inputs.media.items()}
        if self.type_names:
            types = token_types(inputs.ids, self.model.config)
            keywords |= dict.fromkeys(self.type_names, types)
        if inputs.layout is not None:
            keywords["layout"] = inputs.layout
        else:
            keywords["attention_mask"] = inputs.attention_mask
        positions = inputs.positions[0] if inputs.positions.shape[0] == 1 else inputs.positions
        try:
            output = module(input_ids=inputs.ids, position_ids=positions, use_cache=False, **keywords)
        except ValueError as error:
            if not inputs.media:
                raise
            raise self._misfit(str(error)) from error
        if inputs.media and not hasattr(self.model.base_model, "get_placeholder_mask"):  # which compares by itself
            self._compare(inputs.ids, output.image_hidden_states)
        return output

    def _compare(self, ids: torch.Tensor, found: Any) -> None:
        """Some families fill in as many features as there are tokens and leave the rest out without a word."""
        features = found if isinstance(found, torch.Tensor) else found.pooler_output
        tokens, given = int(token_types(ids, self.model.config).count_nonzero()), features.flatten(0, -2).shape[0]
        if tokens != given:
            raise self._misfit(f"{tokens} picture tokens, {given} features")

    def _misfit(self, reason: str) -> DataError:
        return DataError(
            f"{type(self.model).__name__} cannot put the pictures into this micro-batch: {reason}. Its processor "
            "files and its config.json disagree on how many tokens a picture has, or a prompt was cut"
        )

    def precision(self) -> torch.autocast | nullcontext[None]:
        if self.compute_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)


class Valued(Scored):
    """The critic's root: the same backbone with a value in the place of a log-prob.

    The value of a token is that of the state in which it was sampled, read where its log-prob would be. It starts at
    0, so that an untrained critic is no worse than none. The language head is not used.
    """

    def __init__(self, model: PreTrainedModel, packed: bool, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__(model, packed, compute_dtype=compute_dtype)
        self.value_head = nn.Linear(model.config.get_text_config().hidden_size, 1, bias=False)
        nn.init.zeros_(self.value_head.weight)

    @property
    def exact(self) -> tuple[nn.Module, ...]:
        return (self.value_head,)

    @property
    def saved(self) -> nn.Module:
        return self

    def saved_tensors(self) -> dict[str, torch.Tensor]:
        model = {f"model.{name}": tensor for name, tensor in super().saved_tensors().items()}
        return model | {"value_head.weight": self.value_head.weight.detach()}

    def forward(  # type: ignore[override]
        self,
        inputs: ModelInputs,
        targets: torch.Tensor | None = None,
        temperature: float = 1.0,
        against: torch.Tensor | None = None,
    ) -> TokenScores:
        """Values (N,) of the chosen tokens in the place of log-probs; nothing but `inputs` is used."""
        share = self._share(inputs)
        with self.precision():
            hidden = self._hidden(inputs, share)
        values = self.value_head(hidden.to(self.value_head.weight.dtype))[:, 0]
        return TokenScores(*share.together((values, torch.zeros_like(values), torch.zeros_like(values))))


class Unadapted(Scored):
    """The model that `policy` was before its adapters: the same module, run with them switched off. No second copy.

    It is entered through the policy's own root, so it stays right where that root is sharded.
    """

    def __init__(self, policy: Scored) -> None:
        super().__init__(policy.model, policy.packed, compute_dtype=policy.compute_dtype)
        self.banned = policy.banned
        self._policy = (policy,)  # in a tuple, so that it does not count as a part of this module

    @property
    def root(self) -> Scored:
        return self._policy[0]

    def train(self, mode: bool = True) -> "Unadapted":
        """The mode of the policy, too: there is but one module."""
        self._policy[0].train(mode)
        return super().train(mode)

    def forward(
        self,
        inputs: ModelInputs,
        targets: torch.Tensor | None = None,
        temperature: float = 1.0,
        against: torch.Tensor | None = None,
    ) -> TokenScores | torch.Tensor:
        """As the policy's, of the weights that it started from."""
        with adapters_off(self.model):
            return self._policy[0](inputs, targets, temperature, against)
