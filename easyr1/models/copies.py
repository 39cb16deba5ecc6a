"""A sampler's own copy of a policy that is spread over ranks: whole, plain and without numbers until it is fed.

Each rank that samples needs one, beside its shards; nothing is read from the disk for it. Knows no engines.
"""

from dataclasses import replace

import torch
from transformers.initialization import no_init_weights

from easyr1.models.build import DTYPES, ModelSpec, auto_class, load_model_config, prepared
from easyr1.models.scored import Scored


@torch.no_grad()
def blank_copy(policy: Scored, spec: ModelSpec, dtype: str | None = None) -> Scored:
    """A model of the policy's shape and layout on its device, in `dtype` (None: that of its products), unadapted.

    Its weights are whatever was in memory: `TorchRollout.load` fills them. Buffers, which are not streamed, are the
    policy's.
    """
    plain = replace(
        spec, param_dtype=dtype or spec.compute_dtype, compute_dtype=dtype or spec.compute_dtype, lora=None
    )
    device, config = policy.device, load_model_config(plain)
    with no_init_weights(), torch.device(device):
        model = auto_class(config).from_config(
            config, dtype=DTYPES[plain.compute_dtype], trust_remote_code=plain.trust_remote_code
        )
    model.tie_weights()
    prepared(model, policy.packed)
    scored = Scored(model, policy.packed, policy.banned.tolist(), plain_head=policy.plain_head).to(device)
    theirs = dict(policy.model.named_buffers())
    for name, buffer in model.named_buffers():
        buffer.copy_(theirs[name])
    return scored.eval().requires_grad_(False)
