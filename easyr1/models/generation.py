"""Hugging Face's `generate`, each token chosen by the caller: for models that need their own cache."""

from collections.abc import Callable, Mapping

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

Choose = Callable[[torch.Tensor], torch.Tensor]  # logits (B, V) -> ids (B,)


class _Choice(LogitsProcessor):
    """Leaves greedy decoding no other token than the chosen one."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:  # type: ignore[override]
        ids = self.choose(scores)
        return torch.full_like(scores, float("-inf")).scatter(-1, ids[:, None], 0.0)


def generate(
    model: PreTrainedModel,
    ids: torch.Tensor,
    media: Mapping[str, torch.Tensor],
    choose: Choose,
    max_tokens: int,
    stop_ids: frozenset[int],
    pad_id: int,
) -> None:
    """Decode from prompts ids (B, P), all of one length, until every row has stopped."""
    own, model.generation_config = model.generation_config, GenerationConfig()  # what is unset would come from there
    try:
        model.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(
                max_new_tokens=max_tokens, do_sample=False, eos_token_id=sorted(stop_ids) or None, pad_token_id=pad_id
            ),
            logits_processor=LogitsProcessorList([_Choice(choose)]),
            **media,
        )
    finally:
        model.generation_config = own
