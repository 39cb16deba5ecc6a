"""B20: which layers get adapters, that the base stays as it is, and that everything trained leaves the model again."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import peft
import pytest
import scenes
import tiny
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

from easyr1.batch import all_samples
from easyr1.engines.objective import PolicyObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.pack import Budget, cut
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.engines.train import TorchTrain
from easyr1.errors import ConfigError, DataError
from easyr1.models import build, log_probs
from easyr1.models.build import ModelSpec
from easyr1.models.lora import (
    LoraSpec,
    adapter_layers,
    adapter_parameters,
    adapters_off,
    add_adapters,
    choose_layers,
    describe,
    merged_from,
    write_adapter,
)
from easyr1.models.scored import Scored, Unadapted

RANK, ALPHA = 4, 16
TEXT_LAYERS = {f"self_attn.{part}_proj" for part in "qkvo"} | {f"mlp.{part}_proj" for part in ("gate", "up", "down")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: str(tiny.save(kind, tmp_path_factory.mktemp(kind))) for kind in ("qwen2", "qwen2_5_vl", "qwen3_vl")}


def lora(**changes) -> LoraSpec:
    return LoraSpec(**{"rank": RANK, "alpha": ALPHA} | changes)


def filled(scored: Scored, seed: int = 1) -> Scored:
    """With B as it might be after training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapter_parameters(scored.model).items():
            if ".lora_B." in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return scored


def engine(scored: Scored, scene: scenes.Scene, optim: bool = True, **settings) -> TorchTrain:
    budget = Budget(tokens=9999)
    objective = PolicyObjective(kl_penalty=settings.pop("kl_penalty", None))
    return TorchTrain(
        scored, scene.media, 1.0, budget, objective=objective, optim=OptimSpec(lr=1e-2) if optim else None, **settings
    )


def ready(scene: scenes.Scene):
    groups = scene.groups()
    for sample in all_samples(groups):
        sample.advantages = np.full(len(sample), scene.rng.normal(), np.float32)
    return groups


def flat(scores) -> np.ndarray:
    return np.concatenate([values for group in scores for values in group])


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl", "qwen3_vl"))
def test_by_default_all_of_the_text_model_and_nothing_else_gets_adapters(folders, kind):
    scored = build.build(ModelSpec(folders[kind], lora=lora()))
    layers = set(adapter_layers(scored.model))
    text = "model" if kind == "qwen2" else "model.language_model"
    assert layers == {f"{text}.layers.{block}.{part}" for block in range(2) for part in TEXT_LAYERS}
    trained = {name for name, parameter in scored.model.named_parameters() if parameter.requires_grad}
    assert trained == {f"{layer}.lora_{part}.default.weight" for layer in layers for part in "AB"}


def test_the_list_of_chosen_layers_can_be_read(folders):
    scored = build.build(ModelSpec(folders["qwen2_5_vl"], lora=lora()))
    sentence, layers = describe(scored) or ("", [])
    sizes = [parameter.numel() for parameter in scored.parameters()]
    trained = sum(parameter.numel() for parameter in scored.parameters() if parameter.requires_grad)
    assert sentence.startswith("14 layers get adapters of rank 4: model.language_model.layers.*.self_attn.q_proj, ")
    assert sentence.endswith(f"layers.*.mlp.down_proj; {trained:,} trainable weights of {sum(sizes):,}")
    assert "visual" not in sentence
    assert layers == list(adapter_layers(scored.model))
    assert describe(scenes.packed(tiny.build("qwen2"))) is None


def test_a_projector_counts_as_vision_whatever_it_is_called():
    text = transformers.LlamaConfig(**tiny.text_numbers())
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 3}
    vision = transformers.CLIPVisionConfig(**sizes, image_size=28, patch_size=14)
    token = tiny.token_id("<|image_pad|>")
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=token)
    model = transformers.LlavaForConditionalGeneration(config)
    spec = ModelSpec("llava", lora=lora())
    chosen = choose_layers(model, lora(), build.layers_without_adapters(model, spec))
    assert len(chosen) == 14 and all(".language_model." in name for name in chosen)
    everything = lora(exclude_modules=None)
    frozen = ModelSpec("llava", freeze_vision_tower=True, lora=everything)
    chosen = choose_layers(model, everything, build.layers_without_adapters(model, frozen))
    assert any("projector" in name for name in chosen) and not any("vision_tower" in name for name in chosen)


def test_vision_layers_are_there_to_be_had(folders):
    scored = build.build(ModelSpec(folders["qwen2_5_vl"], lora=lora(exclude_modules=None)))
    assert any(".visual." in name for name in adapter_layers(scored.model))
    assert "lm_head" not in adapter_layers(scored.model)
    frozen = build.build(ModelSpec(folders["qwen2_5_vl"], lora=lora(exclude_modules=None), freeze_vision_tower=True))
    assert not any(".visual." in name for name in adapter_layers(frozen.model))
    with pytest.raises(ConfigError, match="no vision tower"):
        build.build(ModelSpec(folders["qwen2"], lora=lora(), freeze_vision_tower=True))


def test_names_mean_full_names_and_their_ends():
    model = tiny.build("qwen2")
    assert choose_layers(model, lora(target_modules="q_proj, model.layers.1.mlp.up_proj")) == (
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
    )
    assert choose_layers(model, lora(target_modules="lm_head")) == ("lm_head",)
    assert len(choose_layers(model, lora(exclude_modules=r".*layers\.0.*"))) == 7
    assert len(choose_layers(model, lora(exclude_modules=r"layers\.0"))) == 14  # not a whole name, so nothing


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_modules": "q_porj"}, ["'q_porj' names no linear layer", "did you mean 'q_proj'"]),
        ({"target_modules": "proj"}, ["'proj' names no linear layer"]),  # the end of a word is no name
        ({"target_modules": "q_proj,embed_tokens"}, ["'embed_tokens' names no linear layer"]),
        ({"exclude_modules": ".*"}, ["leaves no layer", "model.layers.0.self_attn.q_proj"]),
        ({"target_modules": "lm_head"}, ["lm_head shares its weights with the embedding"]),
        ({"target_modules": " , "}, ["leaves no layer"]),
    ],
)
def test_a_choice_that_cannot_be_made_is_told(changes, words):
    with pytest.raises(ConfigError) as caught:
        choose_layers(tiny.build("qwen2", tie_word_embeddings=True), lora(key="worker.critic.model.lora", **changes))
    assert caught.value.key == "worker.critic.model.lora.target_modules"
    assert [word for word in words if word not in str(caught.value)] == []


def test_adapters_follow_from_torchs_generator():
    found = []
    for seed, base in ((0, torch.float32), (0, torch.bfloat16), (1, torch.float32)):
        torch.manual_seed(seed)
        model = tiny.build("qwen2").to(base)
        add_adapters(model, lora(), torch.float32)
        weights = adapter_parameters(model)
        assert {weight.dtype for weight in weights.values()} == {torch.float32}
        assert all((weight == 0).all() == (".lora_B." in name) for name, weight in weights.items())
        found.append(weights)
    for name, weight in found[0].items():
        assert torch.equal(weight, found[1][name])
        assert torch.equal(weight, found[2][name]) == (".lora_B." in name)


def test_the_base_needs_no_more_than_the_precision_of_the_computation(folders):
    scored = build.build(ModelSpec(folders["qwen2"], compute_dtype="bfloat16", lora=lora()))
    assert scored.packed and scored.compute_dtype == torch.bfloat16
    critic = build.build_critic(ModelSpec(folders["qwen2"], compute_dtype="bfloat16", lora=lora()))
    for module in (scored, critic):
        dtypes = {(parameter.requires_grad, parameter.dtype) for parameter in module.parameters()}
        assert dtypes == {(True, torch.float32), (False, torch.bfloat16)}


@pytest.mark.parametrize("kl_penalty", ("low_var_kl", "full"))
@pytest.mark.parametrize("compute", ("float32", "bfloat16"))
@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_before_the_first_step_the_reference_is_bitwise_the_policy(folders, kind, compute, kl_penalty):
    scene = scenes.Scene(kind)
    groups = ready(scene)
    scored = build.build(ModelSpec(folders[kind], compute_dtype=compute, lora=lora(), gradient_checkpointing=True))
    reference = engine(Unadapted(scored), scene, optim=False)
    assert reference.scored.model is scored.model
    assert sum(1 for _ in reference.scored.modules()) == sum(1 for _ in scored.modules())
    against = reference.scored if kl_penalty == "full" else None
    policy = engine(scored, scene, kl_penalty=kl_penalty, against=against)
    log_probs = reference.score(groups)
    assert np.array_equal(flat(policy.score(groups)), flat(log_probs))
    for sample, found in zip(all_samples(groups), (one for group in log_probs for one in group), strict=True):
        sample.ref_log_probs = found
    assert policy.update(groups, 1e-2, kl_coef=0.1).means()["actor/kl_loss"] == 0.0
    assert policy.update(groups, 1e-2, kl_coef=0.1).means()["actor/kl_loss"] > 0.0
    assert np.array_equal(flat(reference.score(groups)), flat(log_probs))
    assert not np.array_equal(flat(policy.score(groups)), flat(log_probs))


def test_the_reference_is_the_plain_base(folders):
    scene = scenes.Scene("qwen2_5_vl")
    groups = scene.groups()
    scored = filled(build.build(ModelSpec(folders["qwen2_5_vl"], lora=lora())))
    plain = engine(build.build(ModelSpec(folders["qwen2_5_vl"]), trainable=False), scene, optim=False)
    reference = engine(Unadapted(scored), scene, optim=False)
    assert np.array_equal(flat(plain.score(groups)), flat(reference.score(groups)))


def test_adapters_come_back_even_after_an_error(folders):
    scored = build.build(ModelSpec(folders["qwen2"], lora=lora()))
    flags = {name: parameter.requires_grad for name, parameter in scored.named_parameters()}
    with pytest.raises(KeyError), adapters_off(scored.model):
        assert all(layer.disable_adapters for layer in adapter_layers(scored.model).values())
        assert flags == {name: parameter.requires_grad for name, parameter in scored.named_parameters()}
        raise KeyError
    assert not any(layer.disable_adapters for layer in adapter_layers(scored.model).values())
    assert flags == {name: parameter.requires_grad for name, parameter in scored.named_parameters()}


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_training_moves_every_adapter_and_leaves_the_base_bitwise(folders, kind):
    scene = scenes.Scene(kind)
    scored = build.build(ModelSpec(folders[kind], lora=lora()))
    before = {name: tensor.clone() for name, tensor in scored.model.state_dict().items()}
    policy = engine(scored, scene)
    for _ in range(2):  # A has a gradient only once B is not 0
        policy.update(ready(scene), 1e-2)
    after = scored.model.state_dict()
    moved = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert moved == set(adapter_parameters(scored.model))


def test_checkpointing_gives_the_same_gradients(folders):
    scene = scenes.Scene("qwen2_5_vl")
    groups = scene.groups()
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        spec = ModelSpec(folders["qwen2_5_vl"], lora=lora(), gradient_checkpointing=checkpointing)
        scored = filled(build.build(spec))
        batch = scenes.packer(scored, scene).micro_batch(groups, cut(groups, Budget(tokens=9999))[0], scored.device)
        scored(batch.inputs, batch.targets).log_probs.sum().backward()
        assert scored.model.is_gradient_checkpointing == checkpointing
        found.append([parameter.grad for parameter in adapter_parameters(scored.model).values()])
    for left, right in zip(*found, strict=True):
        assert left is not None and left.abs().max() > 0
        assert torch.equal(left, right)


def test_dropout_acts_in_updates_only(folders):
    scene = scenes.Scene("qwen2")
    scored = filled(build.build(ModelSpec(folders["qwen2"], lora=lora(dropout=0.5))))
    batch = scenes.packer(scored, scene).prompts([scene.prompt(9)])[0]
    scored.eval()
    assert torch.equal(scored(batch), scored(batch))
    scored.train()
    assert not torch.equal(scored(batch), scored(batch))
    reference = Unadapted(scored)
    assert torch.equal(reference(batch), reference(batch))
    reference.eval()
    assert not scored.training and not scored.model.training  # one module, so one mode


@pytest.mark.parametrize("tied", (False, True))
def test_the_weights_make_the_same_model_of_a_plain_one(tied):
    scene = scenes.Scene("qwen2_5_vl")
    groups = scene.groups()
    sizes = {"tie_word_embeddings": tied}
    scored = scenes.packed(scenes.model("qwen2_5_vl", torch.float64, **sizes))
    add_adapters(scored.model, lora(exclude_modules=None), torch.float64)
    filled(scored)
    other = scenes.packed(tiny.build("qwen2_5_vl", seed=5, **sizes).double())
    sampler = TorchRollout(other, scene.media, frozenset({scenes.STOP}))
    weights = dict(engine(scored, scene).weights())
    assert weights.keys() == other.model.state_dict().keys()
    sampler.load(weights.items(), version=1)
    live = flat(engine(scored, scene).score(groups))
    with adapters_off(scored.model):
        assert np.abs(flat(engine(scored, scene).score(groups)) - live).max() > 0.1
    np.testing.assert_allclose(flat(engine(other, scene).score(groups)), live, rtol=0, atol=1e-6)


def test_every_trained_tensor_reaches_the_sampler():
    scene = scenes.Scene("qwen2_5_vl")
    scored = scenes.packed(tiny.build("qwen2_5_vl"))
    add_adapters(scored.model, lora(exclude_modules=None, target_modules="all-linear"), torch.float32)
    policy = engine(filled(scored), scene)
    before = {name: tensor.clone() for name, tensor in policy.weights()}
    trained = {name: parameter for name, parameter in scored.named_parameters() if parameter.requires_grad}
    assert len(trained) == 2 * len(adapter_layers(scored.model)) > 40
    for name, parameter in trained.items():
        with torch.no_grad():
            parameter += 0.1
        after = dict(policy.weights())
        target = name.removeprefix("model.").split(".lora_")[0] + ".weight"
        assert [key for key, tensor in after.items() if not torch.equal(tensor, before[key])] == [target]
        with torch.no_grad():
            parameter -= 0.1
        before[target] = dict(policy.weights())[target].clone()  # what rounding left


def test_a_checkpoint_holds_what_was_trained(folders):
    policy = build.build(ModelSpec(folders["qwen2_5_vl"], lora=lora()))
    assert policy.saved_tensors().keys() == adapter_parameters(policy.model).keys()
    critic = build.build_critic(ModelSpec(folders["qwen2_5_vl"], lora=lora()))
    names = {name for name, parameter in critic.named_parameters() if parameter.requires_grad}
    assert critic.saved_tensors().keys() == names and "value_head.weight" in names and len(names) == 29
    frozen = build.build(ModelSpec(folders["qwen2"], lora=lora()), trainable=False)
    assert len(frozen.saved_tensors()) == 28 and not any(one.requires_grad for one in frozen.parameters())


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_without_adapters_it_holds_all_and_each_tensor_once(kind):
    scored = scenes.packed(tiny.build(kind, tie_word_embeddings=True))
    saved = scored.saved_tensors()
    assert saved.keys() == scored.model.state_dict().keys() - {"lm_head.weight"}
    assert len({tensor.data_ptr() for tensor in saved.values()}) == len(saved)
    for name, tensor in saved.items():
        assert tensor.data_ptr() == scored.model.state_dict()[name].data_ptr() and not tensor.requires_grad


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_a_written_adapter_is_read_by_peft(folders, kind, tmp_path):
    scored = filled(build.build(ModelSpec(folders[kind], lora=lora(dropout=0.25))))
    write_adapter(scored, tmp_path, folders[kind])
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (RANK, ALPHA, 0.25)
    assert config["base_model_name_or_path"] == folders[kind] and config["task_type"] == "CAUSAL_LM"
    short = config["target_modules"] == sorted(name.rpartition(".")[2] for name in TEXT_LAYERS)
    assert short == (kind == "qwen2")  # the vision tower has a gate_proj, too, so there full names are needed
    inputs, live = scenes.live_logits(scored, kind)
    base = plain_model(folders[kind])
    with torch.no_grad():
        assert (base(**inputs).logits - live).abs().max() > 1e-3
    loaded = peft.PeftModel.from_pretrained(base, str(tmp_path)).eval()
    found = peft.get_peft_model_state_dict(loaded)
    for layer_name, layer in adapter_layers(scored.model).items():
        for part in ("lora_A", "lora_B"):
            key = f"base_model.model.{layer_name}.{part}.weight"
            assert torch.equal(found.pop(key), getattr(layer, part)["default"].weight)
    assert not found
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).logits, live, rtol=0, atol=1e-6)


def plain_model(folder: str) -> transformers.PreTrainedModel:
    return build.load_model(ModelSpec(folder)).eval()


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_a_merged_adapter_is_w_plus_alpha_by_rank_b_a(folders, kind, tmp_path):
    scored = filled(build.build(ModelSpec(folders[kind], lora=lora())))
    write_adapter(scored, tmp_path, folders[kind])
    base = plain_model(folders[kind])
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    merged = merged_from(base, tmp_path)
    layers = adapter_layers(scored.model)
    for name, tensor in merged.items():
        layer = layers.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
        expected = before[name]
        if layer is not None:
            expected = expected + (16 / 4) * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
            assert (expected - before[name]).abs().max() > 1e-2
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-6)
        assert torch.equal(base.state_dict()[name], before[name])
    inputs, live = scenes.live_logits(scored, kind)
    base.load_state_dict(merged)
    with torch.no_grad():
        torch.testing.assert_close(base(**inputs).logits, live, rtol=0, atol=1e-5)


def test_an_adapter_that_does_not_fit_is_told(folders, tmp_path):
    scored = build.build(ModelSpec(folders["qwen2"], lora=lora()))
    with pytest.raises(DataError, match=r"holds no adapter_model\.safetensors"):
        merged_from(plain_model(folders["qwen2"]), tmp_path)
    write_adapter(scored, tmp_path, folders["qwen2"])
    with pytest.raises(DataError, match=r"_proj.*fits no layer of Qwen2_5_VL"):
        merged_from(plain_model(folders["qwen2_5_vl"]), tmp_path)
    with pytest.raises(DataError, match="fits no layer of Qwen2ForCausalLM"):
        merged_from(tiny.build("qwen2", hidden_size=64), tmp_path)
    change(tmp_path / "adapter_config.json", use_rslora=True)
    with pytest.raises(DataError, match="use_rslora cannot be merged"):
        merged_from(plain_model(folders["qwen2"]), tmp_path)


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.slow
def test_peft_is_imported_only_where_there_are_adapters():
    code = "import sys, easyr1.trainer.assemble; sys.exit('peft' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_odd_linear_layers_are_left_alone():
    model = tiny.build("qwen2")
    model.model.odd = nn.modules.linear.NonDynamicallyQuantizableLinear(4, 4)  # its weight is read, not called
    assert not any("odd" in name for name in choose_layers(model, lora()))


@pytest.mark.parametrize(
    "settings", ({"target_modules": "lm_head", "exclude_modules": None}, {}), ids=("head", "every layer")
)
def test_what_is_computed_again_drops_what_it_dropped_before(folders, settings, monkeypatch):
    """Chunks of the head and checkpointed blocks, with dropout in the adapters, against computing all once."""
    scene = scenes.Scene("qwen2")
    groups, found = scene.groups(), []
    for again in (False, True):
        monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", 2048 if again else 1 << 30)
        torch.manual_seed(0)
        adapters = lora(dropout=0.5, **settings)
        scored = filled(build.build(ModelSpec(folders["qwen2"], lora=adapters, gradient_checkpointing=again)))
        batch = scenes.packer(scored, scene).micro_batch(groups, cut(groups, Budget(tokens=9999))[0], scored.device)
        torch.manual_seed(1)
        if settings:  # one mask for the whole head would be another than one for each chunk
            monkeypatch.setattr(log_probs, "CHUNK_ELEMENTS", 2048)
            monkeypatch.setattr(log_probs, "checkpoint", checkpoint if again else lambda work, *args, **_: work(*args))
        scored.train()
        scored(batch.inputs, batch.targets).log_probs[batch.allowed].sum().backward()
        found.append([parameter.grad for parameter in adapter_parameters(scored.model).values()])
    for left, right in zip(*found, strict=True):
        assert left is not None and left.abs().max() > 0
        torch.testing.assert_close(left, right)
