"""B20 through the loop: whole small runs with adapters, what they tell, keep and take up again."""

import itertools

import pytest
import runs
import torch

from easyr1.errors import CheckpointError
from easyr1.models.lora import adapter_parameters
from easyr1.models.shards import shapes
from easyr1.trainer.loop import Trainer

LORA = {
    "worker__actor__model__lora__rank": 4,
    "worker__actor__model__lora__alpha": 16,
    "trainer__val_before_train": "false",
    "trainer__val_freq": -1,
}
ON_POLICY = {"worker__actor__global_batch_size": 4}
ONE_CUT = {f"worker__actor__micro_batch_size_per_device_for_{phase}": 12 for phase in ("update", "experience")}
LAYERS = [
    f"model.language_model.layers.{block}.{part}_proj"
    for block in range(2)
    for part in (*(f"self_attn.{letter}" for letter in "qkvo"), *(f"mlp.{kind}" for kind in ("gate", "up", "down")))
]


def adapters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach().clone() for name, tensor in adapter_parameters(runs.engine(trainer).scored.model).items()
    }


@pytest.mark.parametrize("penalty", ("low_var_kl", "full"))
@pytest.mark.parametrize("dtype", ("fp32", "bf16"))
def test_training_starts_at_a_kl_of_exactly_zero(tmp_path, penalty, dtype):
    settings = LORA | ON_POLICY | ONE_CUT | {"algorithm__kl_penalty": penalty}
    trainer, _ = runs.run(
        runs.arguments(tmp_path, "qwen2_5_vl", **settings, worker__actor__fsdp__mp_param_dtype=dtype)
    )
    assert runs.engine(trainer, "reference").scored.model is runs.engine(trainer).scored.model
    first, second = (runs.steps(tmp_path / "run")[step]["actor/kl_loss"] for step in (1, 2))
    assert first == 0.0 and second > 0.0


def test_a_kl_in_the_reward_starts_at_exactly_zero(tmp_path):
    settings = LORA | {"algorithm__use_kl_loss": "false", "trainer__max_steps": 1}
    runs.run(runs.arguments(tmp_path, "qwen2_5_vl", **settings))
    assert runs.steps(tmp_path / "run")[1]["actor/kl_penalty"] == 0.0


def test_the_run_tells_its_layers_trains_nothing_else_and_keeps_no_more(tmp_path):
    base: dict[str, torch.Tensor] = {}

    def note(trainer):
        base.update({name: tensor.clone() for name, tensor in runs.engine(trainer).scored.model.state_dict().items()})

    trainer, _ = runs.run(runs.arguments(tmp_path, "qwen2_5_vl", **LORA), note)
    after = runs.engine(trainer).scored.model.state_dict()
    moved = {name for name, tensor in base.items() if not torch.equal(tensor, after[name])}
    assert moved == adapters(trainer).keys()
    (event,) = [row for row in runs.rows(tmp_path / "run", "events.jsonl") if row["kind"] == "lora"]
    assert event["model"] == "actor" and sorted(event["layers"]) == sorted(LAYERS)
    assert event["message"].startswith(
        "actor: 14 layers get adapters of rank 4: model.language_model.layers.*.self_attn.q_proj, "
    )
    kept = shapes(tmp_path / "run/global_step_2/actor/model")
    assert kept.keys() == adapters(trainer).keys()


def test_a_resumed_run_goes_on_with_adapters_and_optimizer(tmp_path):
    straight, _ = runs.run(runs.arguments(tmp_path, **LORA, trainer__max_steps=3, trainer__save_freq=2))
    half = tmp_path / "run/global_step_2"
    again = runs.arguments(
        tmp_path,
        **LORA,
        trainer__max_steps=3,
        trainer__load_checkpoint_path=half,
        trainer__save_checkpoint_path=tmp_path / "again",
    )
    resumed, _ = runs.run(again)
    assert resumed.actor.engine.version == 6
    for (name, left), right in zip(adapters(straight).items(), adapters(resumed).values(), strict=True):
        assert torch.equal(left, right), name


def test_a_critic_with_adapters_learns_beside_its_value_head(tmp_path):
    settings = {"worker__critic__model__lora__rank": 4, "algorithm__adv_estimator": "gae"}
    before: dict[str, torch.Tensor] = {}

    def note(trainer):
        before.update(
            {name: one.detach().clone() for name, one in runs.engine(trainer, "critic").scored.named_parameters()}
        )

    trainer, _ = runs.run(runs.arguments(tmp_path, "qwen2_5_vl", **settings), note)
    assert trainer.critic is not None
    after = dict(runs.engine(trainer, "critic").scored.named_parameters())
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    trained = {name for name, tensor in after.items() if tensor.requires_grad}
    kept = shapes(tmp_path / "run/global_step_2/critic/model")
    assert "value_head.weight" in moved and moved <= trained == kept.keys()
    assert any(".visual." in name for name in moved)  # the critic's default leaves nothing out
    assert len(moved) > len(trained) / 2
    assert any(not torch.equal(one, before[name]) for name, one in after.items() if ".lora_A." in name)


def test_dropout_is_reproducible_and_changes_the_updates(tmp_path):
    found = []
    for number, dropout in enumerate((0.0, 0.5, 0.5)):
        settings = LORA | {"worker__actor__model__lora__dropout": dropout}
        trainer, _ = runs.run(
            runs.arguments(tmp_path, **settings, trainer__save_checkpoint_path=tmp_path / f"run{number}")
        )
        found.append(adapters(trainer))
    same = [all(torch.equal(left[name], right[name]) for name in left) for left, right in itertools.pairwise(found)]
    assert same == [False, True]


@pytest.mark.parametrize("rank", (0, 8))
def test_another_rank_does_not_take_a_checkpoint_and_says_why(tmp_path, rank):
    runs.run(runs.arguments(tmp_path, trainer__val_before_train="false", worker__actor__model__lora__rank=4))
    other = {"worker__actor__model__lora__rank": rank, "trainer__load_checkpoint_path": "last"}
    with pytest.raises(CheckpointError, match=r"another model.*worker\.actor\.model\.lora \(rank.*easyr1 merge"):
        runs.run(runs.arguments(tmp_path, trainer__max_steps=3, **other))
