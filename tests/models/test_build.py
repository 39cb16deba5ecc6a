"""Which layout a model gets, what is frozen, and what the loader refuses."""

import pytest
import scenes
import tiny
import torch
import transformers

from easyr1.errors import ConfigError
from easyr1.models import build
from easyr1.models.attention import Packed, Span
from easyr1.models.build import ModelSpec
from easyr1.models.scored import ModelInputs

SIZES = tiny.text_numbers()


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_plain_causal_models_are_packed(kind):
    assert build.wrap(tiny.build(kind)).packed


def odd_models():
    window = {"sliding_window": 16}
    yield "softcap", transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SIZES, **window)), "softcap"
    scaled = transformers.GraniteConfig(**{k: v for k, v in SIZES.items() if k != "head_dim"}, logits_scaling=8.0)
    yield "scaled head", transformers.GraniteForCausalLM(scaled), "head"
    layers = {"layer_types": ["conv", "full_attention"]}
    short = {k: v for k, v in SIZES.items() if k != "head_dim"}
    yield "convolution", transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**short, **layers)), "layers"


@pytest.mark.parametrize(
    "name, model, words", list(odd_models()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_models_where_ours_would_be_wrong_get_the_padded_layout_and_say_why(name, model, words, caplog):
    scored = build.wrap(model)
    assert not scored.packed
    assert words in caplog.text and "padded" in caplog.text
    ids = torch.arange(3, 11)[None]  # still a working model, with its own attention
    assert torch.isfinite(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits).all()


@pytest.mark.parametrize("name, model", [(name, model) for name, model, _ in odd_models()], ids=lambda value: "")
def test_an_odd_head_is_scored_as_the_model_itself_makes_its_logits(name, model):
    with torch.no_grad():
        model.get_output_embeddings().weight *= 30  # so that a cap or a scale shows
    scored = build.wrap(model.eval())
    assert scored.plain_head == (name == "convolution")
    ids, mask = torch.arange(3, 11)[None], torch.ones(1, 8, dtype=torch.long)
    inputs = ModelInputs(ids, torch.arange(8)[None, None], torch.arange(8), attention_mask=mask)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).logits[0].log_softmax(-1)
        plain = model.get_output_embeddings()(model.base_model(input_ids=ids).last_hidden_state[0]).log_softmax(-1)
        torch.testing.assert_close(scored(inputs), expected)
        one = scored(inputs, ids[0]).log_probs
    torch.testing.assert_close(one, expected.gather(-1, ids[0][:, None])[:, 0])
    assert ((plain - expected).abs().max() > 1) == (not scored.plain_head)


def test_a_model_that_looks_ahead_is_found(monkeypatch):
    from transformers import masking_utils

    model = tiny.build("llama")
    monkeypatch.setattr(masking_utils, "causal_mask_function", lambda batch, head, query, key: key <= query + 1)
    assert "later" in (build.use_packed_attention(model) or "")


def test_the_vision_tower_freezes_as_a_whole(tmp_path):
    folder = tiny.save("qwen2_5_vl", tmp_path)
    scored = build.build(ModelSpec(str(folder), freeze_vision_tower=True))
    frozen = {name for name, parameter in scored.model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in scored.model.named_parameters() if ".visual." in name}
    with pytest.raises(ConfigError, match="no vision tower"):
        build.freeze_vision_tower(tiny.build("qwen2"))


def test_a_reference_is_frozen_and_still(tmp_path):
    scored = build.build(ModelSpec(str(tiny.save("qwen2", tmp_path))), trainable=False)
    assert not scored.training and not any(parameter.requires_grad for parameter in scored.parameters())


def test_dropout_is_off_in_training_mode():
    model = tiny.build("llama", attention_dropout=0.5)
    scene = scenes.Scene("llama")
    scored = build.wrap(model).train()
    assert scored.packed
    batch = scenes.packer(scored, scene).prompts([scene.prompt(9)])[0]
    assert torch.equal(scored(batch), scored(batch))


def test_override_config_is_applied_and_unknown_keys_are_refused(tmp_path):
    folder = str(tiny.save("qwen2", tmp_path))
    assert build.load_model_config(ModelSpec(folder, override={"rms_norm_eps": 0.5})).rms_norm_eps == 0.5
    with pytest.raises(ConfigError, match="rms_norm_epsilon"):
        build.load_model_config(ModelSpec(folder, override={"rms_norm_epsilon": 0.5}))


def test_a_missing_model_is_one_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"worker\.actor\.model\.model_path.*nowhere"):
        build.load_model_config(ModelSpec(str(tmp_path / "nowhere")))
    folder = tiny.save("qwen2", tmp_path / "empty")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="holds no weights"):
        build.load_model(ModelSpec(str(folder)))


def test_stop_ids_come_from_the_generation_config_and_else_from_the_model(tmp_path):
    folder = tiny.save("qwen2", tmp_path)
    spec = ModelSpec(str(folder))
    config = build.load_model_config(spec)
    both = {tiny.token_id("<|im_end|>"), tiny.token_id("<|endoftext|>")}
    assert build.stop_ids(spec, config) == both
    (folder / "generation_config.json").unlink()
    assert build.stop_ids(spec, config) == {tiny.token_id("<|im_end|>")}
    config.eos_token_id = None
    with pytest.raises(ConfigError, match="end-of-sequence"):
        build.stop_ids(spec, config)


@pytest.mark.parametrize("kind", ("qwen2", "qwen2_5_vl"))
def test_bfloat16_computation_with_float32_weights_is_close_and_not_equal(tmp_path, kind):
    folder = str(tiny.save(kind, tmp_path))
    scene = scenes.Scene(kind)
    prompt = scene.prompt(9, (56, 84))
    exact = build.build(ModelSpec(folder))
    mixed = build.build(ModelSpec(folder, compute_dtype="bfloat16"))
    found = [scored(scenes.packer(scored, scene).prompts([prompt])[0]) for scored in (exact, mixed)]
    gap = (found[0].exp() - found[1].exp()).abs().max()
    assert 0 < gap < 0.1


HYBRID = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MAMBA = {"mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 16}


def test_layers_that_scan_beside_their_attention_get_padded_rows(caplog):
    """Every layer of Falcon-H1 is plain attention and a scan at once, which would carry one answer into the next."""
    torch.manual_seed(0)
    model = transformers.FalconH1ForCausalLM(transformers.FalconH1Config(**HYBRID, **MAMBA)).eval()
    assert not build.wrap(model).packed
    assert "carry one answer's tokens into the next" in caplog.text


def test_a_text_model_is_told_no_types_of_tokens():
    """GPT-2 has token types, too: they would add an embedding to every token."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=512, n_embd=64, n_layer=2, n_head=2)
    ).eval()
    ids = torch.arange(20, 30)[None]
    expected = model(input_ids=ids).logits[0].log_softmax(-1)
    scored = build.wrap(model)
    layout = Packed((Span(0, 10, ()),)) if scored.packed else None
    mask = None if scored.packed else torch.ones_like(ids)
    inputs = ModelInputs(ids, torch.arange(10)[None, None], torch.arange(10), layout=layout, attention_mask=mask)
    torch.testing.assert_close(scored(inputs), expected, rtol=0, atol=1e-5)
