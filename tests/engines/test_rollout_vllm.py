"""What is vLLM's alone: pixels and tokens as they arrive there, seeds, what it is told; and the order of calls."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import samplers
import scenes
import tiny
import torch

from easyr1.batch import Prompt
from easyr1.config.sampler import OWN_ARGUMENTS
from easyr1.engines import rollout_vllm
from easyr1.engines.protocols import Sampling
from easyr1.engines.rollout_vllm import VllmRollout, _places, engine_input, sampling_params
from easyr1.engines.vllm_adapters import why_merged
from easyr1.engines.vllm_settings import VllmSettings, arguments, set_environment
from easyr1.errors import ConfigError, DataError
from easyr1.models.lora import CONFIG_FILE, TENSORS_FILE

real = pytest.mark.skipif(not samplers.HAS_VLLM, reason="vLLM is not installed")


class Recorder:
    """Stands for vllm.LLM and notes what is called; `llm_engine` is itself."""

    def __init__(self) -> None:
        self.calls: list = []
        self.llm_engine = self

    def __getattr__(self, name: str):
        def note(*values, **named):
            if "kwargs" in named:
                list(named.pop("kwargs")["update_info"]["weights"])
            self.calls.append((name, *values, *named.values()) if values or named else name)
            return True

        return note


def recorded(device: str, **settings) -> tuple[VllmRollout, Recorder]:
    llm = Recorder()
    return VllmRollout(VllmSettings("m", "float32", 64, device=device, **settings), dict, (), llm=llm), llm


WEIGHTS = [("a", torch.zeros(1))]
ADAPTER = [("x.lora_A.weight", torch.zeros(4, 3)), ("x.lora_B.weight", torch.zeros(2, 4))]
FORGET = ["reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache"]
TAKEN = [("collective_rpc", f"{what}_weight{s}") for what, s in (("start", "_update"), ("update", "s"))]
TAKEN.append(("collective_rpc", "finish_weight_update"))


def test_new_weights_are_followed_by_three_resets():
    sampler, llm = recorded("cpu")
    sampler.load(iter(WEIGHTS), 3)
    sampler.rest()  # a CPU has nothing to share out
    assert llm.calls == [*TAKEN, *FORGET] and sampler.version == 3
    with pytest.raises(AssertionError, match="was given none"):
        sampler.load((), 4)


def test_on_a_gpu_the_sampler_sleeps_while_the_model_is_trained():
    sampler, llm = recorded("cuda")
    sampler.rest()
    sampler.rest()
    with pytest.raises(AssertionError, match="must be given weights first"):
        sampler.generate([Prompt(0, np.arange(3))], Sampling())
    sampler.load(iter(WEIGHTS), 1)
    sampler.load(iter(WEIGHTS), 2)
    assert llm.calls == [
        ("sleep", 2),
        ("wake_up", ["weights"]),  # first these alone, then room for keys and values
        *TAKEN,
        *FORGET,
        ("wake_up", ["kv_cache"]),
        *TAKEN,
        *FORGET,
    ]


def test_weights_that_come_piece_by_piece_wake_it_once():
    sampler, llm = recorded("cuda")
    sampler.rest()
    for _ in range(2):
        sampler.feed(iter(WEIGHTS))
    sampler.settle(1)
    start, update, finish = TAKEN
    awake = [("wake_up", ["weights"]), start, update, update, finish, *FORGET, ("wake_up", ["kv_cache"])]
    assert llm.calls == [("sleep", 2), *awake]


def test_adapters_come_without_the_base_which_sleeps_in_host_memory(monkeypatch):
    monkeypatch.setattr(rollout_vllm, "adapter_request", lambda number, folder: (number, sorted(os.listdir(folder))))
    sampler, llm = recorded("cuda", lora_rank=4, lora_alpha=8)
    sampler.load([*WEIGHTS, *ADAPTER], 1)
    sampler.rest()
    sampler.load(ADAPTER, 2)
    files = [CONFIG_FILE, TENSORS_FILE]
    assert llm.calls == [
        *TAKEN,
        ("add_lora", (1, files)),
        *FORGET,
        ("sleep", 1),
        ("wake_up", ["weights"]),
        ("add_lora", (2, files)),  # by a name of its own, as caches go by it
        *FORGET,
        ("wake_up", ["kv_cache"]),
    ]
    assert sampler.adapter == (2, files) and sampler.version == 2


@pytest.mark.parametrize(
    ("layer", "rank", "kwargs", "why"),
    (
        ("model.layers.0.self_attn.q_proj", 4, {}, None),
        ("model.language_model.layers.11.mlp.down_proj", 512, {}, None),
        ("model.visual.blocks.0.mlp.down_proj", 4, {}, "vLLM takes none in model.visual.blocks.0.mlp.down_proj"),
        ("model.layers.0.self_attn.qkv_proj", 4, {}, "none in model.layers.0.self_attn.qkv_proj"),
        ("lm_head", 4, {}, "vLLM takes none in lm_head"),
        ("model.layers.0.self_attn.q_proj", 513, {}, "no rank above 512"),
        ("model.layers.0.self_attn.q_proj", 4, {"enable_lora": False}, "enable_lora is false"),
    ),
)
def test_where_vllm_takes_no_adapters_they_are_merged_and_the_reason_is_told(layer, rank, kwargs, why):
    found = why_merged([layer], rank, kwargs)
    assert found is None if why is None else why in str(found)


def test_every_key_reaches_vllm():
    given = VllmSettings(
        "folder",
        "bfloat16",
        300,
        tokenizer_path="words",
        trust_remote_code=True,
        override={"a": 1},
        device="cuda",
        seed=7,
        tensor_parallel_size=2,
        world_size=4,
        gpu_memory_utilization=0.4,
        enforce_eager=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=400,
        disable_log_stats=False,
        limit_images=3,
        min_pixels=10,
        max_pixels=90,
        lora_rank=9,
        engine_kwargs={"max_num_seqs": 5, "async_scheduling": True},
    )
    found = arguments(given, sees=True)
    wanted = {
        "model": "folder",
        "tokenizer": "words",
        "trust_remote_code": True,
        "hf_overrides": {"a": 1},
        "dtype": "bfloat16",
        "seed": 7,
        "max_model_len": 300,
        "max_num_batched_tokens": 400,
        "enable_chunked_prefill": True,
        "enforce_eager": True,
        "disable_log_stats": False,
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "external_launcher",
        "gpu_memory_utilization": 0.4,
        "enable_sleep_mode": True,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "limit_mm_per_prompt": {"video": 0, "image": 3},
        "mm_processor_kwargs": {"min_pixels": 10, "max_pixels": 90},
        "mm_device_do_normalize": False,
        "enable_lora": True,
        "max_lora_rank": 16,  # one that vLLM has
        "max_num_seqs": 5,
        "async_scheduling": True,  # ours is False; engine_kwargs win
    }
    assert {name: found[name] for name in wanted} == wanted
    alone = arguments(VllmSettings("folder", "float32", 300), sees=False)
    assert not {"enable_lora", "enable_sleep_mode", "gpu_memory_utilization", "limit_mm_per_prompt"} & alone.keys()
    assert "distributed_executor_backend" not in alone and alone["kv_cache_memory_bytes"] > 0
    for name in OWN_ARGUMENTS:
        with pytest.raises(ConfigError, match=name):
            arguments(VllmSettings("folder", "float32", 300, engine_kwargs={name: 1}), sees=True)


def test_weights_can_only_be_handed_over_in_one_process(monkeypatch):
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.setenv(name, "1")
    set_environment("cpu")
    assert (os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"], os.environ["VLLM_USE_V2_MODEL_RUNNER"]) == ("0", "0")
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "1"  # the user's


@real
@pytest.mark.slow
@pytest.mark.parametrize("kind", ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"))
def test_pixels_and_tokens_are_those_that_vllm_would_make_of_the_pictures(kind):
    """The pictures at the size of whole tokens, through the processor that vLLM finds in the model's folder."""
    one = samplers.bench("vllm", kind)
    sizes = ((64, 96), (96, 64)) if kind == "qwen3_vl" else ((56, 84), (84, 56))
    pictures = [tiny.picture(*size, seed=number) for number, size in enumerate(sizes)]
    prompt = one.scene.prompt(9, *sizes)
    ours = engine_input(prompt, one.sampler)
    pad = tiny.token_id("<|image_pad|>")
    collapsed = [token for i, token in enumerate(ours["prompt_token_ids"]) if token != pad or prompt.ids[i - 1] != pad]
    taken = []
    engine = one.sampler.llm.llm_engine
    process = engine.input_processor.process_inputs
    engine.input_processor.process_inputs = lambda name, given, *a, **k: (
        taken.append(given) or process(name, given, *a, **k)
    )
    try:
        asked = {"prompt_token_ids": collapsed, "multi_modal_data": {"image": pictures}}
        params = sampling_params(Sampling(temperature=0, max_tokens=1), [], None)
        one.sampler.llm.generate([asked], params, use_tqdm=False)
    finally:
        engine.input_processor.process_inputs = process
    (theirs,) = taken
    assert theirs["prompt_token_ids"] == ours["prompt_token_ids"] == prompt.ids.tolist()
    assert theirs["mm_placeholders"] == ours["mm_placeholders"]
    for left, right in zip(ours["mm_kwargs"]["image"], theirs["mm_kwargs"]["image"], strict=True):
        assert left.keys() == right.keys()
        for name in left:
            # Its backend rounds the normalisation otherwise; one step of an 8-bit colour would be 0.007 or more.
            torch.testing.assert_close(left[name].data, right[name].data, rtol=0, atol=1e-5)
    for handle, item in zip(prompt.media, ours["mm_kwargs"]["image"], strict=True):
        assert torch.equal(item["pixel_values"].data, torch.as_tensor(one.scene.media(handle)["pixel_values"]))


@real
@pytest.mark.slow
def test_a_prompt_whose_tokens_do_not_fit_its_pictures_is_refused():
    one = samplers.bench("vllm", "qwen2_5_vl")
    prompt = one.scene.prompt(9, (56, 84))
    short = Prompt(
        row=7, ids=np.delete(prompt.ids, prompt.ids.tolist().index(one.sampler.vision.token)), media=prompt.media
    )
    with pytest.raises(DataError, match=r"row 7: 5 picture tokens, but its pictures make \[6\]"):
        one.sampler.generate([short], Sampling(max_tokens=2))
    torn = np.insert(prompt.ids, prompt.ids.tolist().index(one.sampler.vision.token) + 2, 50)
    with pytest.raises(DataError, match="row 7: 6 picture tokens"):
        _places(Prompt(row=7, ids=torn, media=prompt.media), one.sampler.vision.token, [6])
    with pytest.raises(DataError, match="row 3: vLLM does not take the prompt"):
        one.sampler.generate([Prompt(row=3, ids=one.scene.ids(600))], Sampling(max_tokens=2))
    assert one.sampler.generate([prompt], Sampling(max_tokens=2))[0][0].group_id == "0-0-0"


@real
@pytest.mark.slow
def test_a_prompt_is_computed_once_for_all_its_answers(monkeypatch):
    one = samplers.bench("vllm", "qwen2_5_vl")
    engine, outputs = one.sampler.llm.llm_engine, []
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: outputs.extend(found := step()) or found)
    prompt = one.scene.prompt(400, (64, 96))
    one.sampler.generate([prompt], Sampling(n=4, max_tokens=2, ignore_eos=True))
    first, *others = sorted(output.num_cached_tokens for output in outputs)
    assert first == 0 and len(others) == 3
    assert min(others) > 0.8 * len(prompt.ids)  # all but the last block


@real
@pytest.mark.slow
def test_with_a_seed_of_its_own_an_answer_depends_neither_on_order_nor_on_company():
    one = samplers.bench("vllm", "qwen2")
    rollout = one.sampler
    settings = dataclasses.replace(rollout.settings, seed_answers=True)
    seeded = VllmRollout(settings, one.scene.media, samplers.STOPS, llm=rollout.llm)
    asked = [one.scene.prompt(9 + index, index=index) for index in range(4)]
    sampling = Sampling(n=3, max_tokens=16, seed=5)

    def drawn(prompts):
        return [[answer.ids.tolist() for answer in group] for group in seeded.generate(prompts, sampling)]

    together = drawn(asked)
    assert drawn(asked[::-1])[::-1] == together
    assert [drawn([prompt])[0] for prompt in asked] == together
    assert len({str(answer) for group in together for answer in group}) == 12


@real
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("bfloat16",))
def test_half_precision_stays_near_the_trainer(dtype, tmp_path):
    """A plain model, not a steep one; what the probe allows is several times what is found."""
    built = tiny.build("qwen2_5_vl")
    folder = tiny.save("qwen2_5_vl", tmp_path / "model")
    scene = scenes.Scene("qwen2_5_vl")
    sampler = samplers.vllm_rollout(folder, scene, "qwen2_5_vl", dtype=dtype)
    asked = [scene.prompt(9, (56, 84)), scene.prompt(20)]
    answers = sampler.generate(asked, Sampling(n=4, max_tokens=16, ignore_eos=True))
    one = samplers.Bench("qwen2_5_vl", scenes.packed(built), scene, sampler)
    from test_rollout_contract import gap

    assert 1e-6 < gap(one, asked, answers) < 0.1


@real
@pytest.mark.slow
def test_the_check_for_a_gpu_runs_as_far_as_a_cpu_can_take_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import gpu_check

    samplers.lively("qwen2_5_vl").save_pretrained(tiny.save("qwen2_5_vl", tmp_path))
    found = gpu_check.attention_and_weights(str(tmp_path), "cpu", "float32")
    assert len(found) == 3 and max(found.values()) < 1e-4
