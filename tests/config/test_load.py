"""YAML and dotted overrides -> Config, and what is said about arguments that cannot be read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from easyr1.config.load import dump, from_mapping, load, to_mapping
from easyr1.config.schema import Config
from easyr1.errors import ConfigError

ROOT = Path(__file__).parents[2]


def value_of(*argv):
    """The value that the last argument sets."""
    config, _ = load(argv)
    value = config
    for name in argv[-1].partition("=")[0].split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("trainer.logger=['console','file']", ("console", "file")),
        ("trainer.load_checkpoint_path=null", None),
        ("data.max_pixels=4194304", 4194304),
        ("data.max_pixels=1e6", 1_000_000),
        ("worker.actor.optim.lr=1e-5", 1e-5),
        ("worker.rollout.temperature=1", 1.0),
        ("algorithm.disable_kl=True", True),
        ("worker.actor.model.lora.exclude_modules=.*visual.*", ".*visual.*"),
        ("trainer.project_name='Qwen2.5-VL-3B GRPO Reproduction'", "Qwen2.5-VL-3B GRPO Reproduction"),
        ("trainer.experiment_name=007", "007"),
        ("trainer.experiment_name=2026-11-29", "2026-11-29"),
        ("trainer.experiment_name=on", "on"),
        ("data.train_files=[a.jsonl,b.parquet@train]", ("a.jsonl", "b.parquet@train")),
        ("worker.reward.reward_function_kwargs={a: {b: 1}}", {"a": {"b": 1}}),
    ],
)
def test_overrides_parse(argument, value):
    assert value_of(argument) == value
    assert type(value_of(argument)) is type(value)


def test_free_mappings_take_any_key_and_merge_into_their_default():
    config, given = load(
        [
            "worker.rollout.val_override_config.temperature=0.5",
            "worker.rollout.engine_kwargs.compilation.level=3",
            "worker.rollout.engine_kwargs.compilation.cache=false",
            "worker.actor.model.override_config.num_hidden_layers=2",
        ]
    )
    assert config.worker.rollout.val_override_config == {"temperature": 0.5, "top_p": 0.95, "n": 1}
    assert config.worker.rollout.engine_kwargs == {"compilation": {"level": 3, "cache": False}}
    assert config.worker.actor.model.override_config == {"num_hidden_layers": 2}
    assert "worker.rollout.val_override_config.temperature" in given
    assert Config().worker.rollout.val_override_config["temperature"] == 0.6


def test_empty_mapping_takes_the_defaults_away():
    config, given = load(["worker.rollout.val_override_config={}", "worker.rollout.val_override_config.n=4"])
    assert config.worker.rollout.val_override_config == {"n": 4}
    assert given == {"worker.rollout.val_override_config", "worker.rollout.val_override_config.n"}


def test_command_line_beats_file_and_given_tells_who_set_what(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("data: {seed: 3, rollout_batch_size: 64, val_batch_size: 1024}\nworker: {actor: {optim: }}\n")
    config, given = load(["data.seed=4", f"config={file}", "trainer.val_freq=5", "data.seed=7"])
    assert (config.data.seed, config.data.rollout_batch_size) == (7, 64)
    assert given == {"data.seed", "data.rollout_batch_size", "trainer.val_freq"}


def test_yaml_may_refer_to_itself_and_to_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RUN_NAME", "first")
    file = tmp_path / "run.yaml"
    file.write_text(
        "data: {max_prompt_length: 64, max_response_length: '${data.max_prompt_length}'}\n"
        "trainer: {experiment_name: '${oc.env:RUN_NAME}'}\n"
    )
    config, _ = load([f"config={file}"])
    assert (config.data.max_response_length, config.trainer.experiment_name) == (64, "first")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("data.max_prompt_lenght=10", "did you mean data.max_prompt_length"),
        ("data.n=4", "did you mean worker.rollout.n"),
        ("actor.optim.lr=1", "did you mean worker.actor.optim.lr"),
        ("worker.critic.optm.lr=1", "did you mean worker.critic.optim.lr"),
        ("worker.ref.torch_dtype=bf16", "did you mean worker.ref.fsdp.torch_dtype"),
        ("foo.bar=1", "below data, worker, algorithm or trainer"),
        ("data.seed.extra=1", "unknown key"),
        ("worker.reward.score_function=a.py", "is now called worker.reward.reward_function"),
        ("trainer.total_episodes=3", "is now called trainer.total_epochs"),
        ("worker.actor.ulysses_sequence_parallel_size=2", "is now called worker.actor.ulysses_size"),
        ("worker.reward.reward_type=function", "REWARD_TYPE"),
        ("worker.actor.use_kl_loss=true", "worked out from algorithm.use_kl_loss"),
        ("worker.ref.padding_free=true", "worked out from worker.actor.padding_free"),
        ("data=3", "is a section"),
        ("data.rollout_batch_size=many", "got 'many', expected a whole number >= 1"),
        ("data.rollout_batch_size=1.5", "got 1.5, expected a whole number >= 1"),
        ("data.rollout_batch_size=null", "got None, expected a whole number >= 1"),
        ("data.shuffle=1", "got 1, expected true or false"),
        ("trainer.val_freq=true", "got True, expected a whole number >= 1, or -1"),
        ("trainer.save_limit=0", "got 0, expected a whole number >= 1, or -1"),
        ("trainer.logger=console", "got 'console', expected a list of text"),
        ("worker.actor.optim.betas=[0.9]", "expected a list of 2"),
        ("worker.actor.loss_avg_mode=tokn", "one of token, seq, seq_sum_const; did you mean 'token'"),
        ("worker.actor.fsdp.torch_dtype=int8", "expected one of fp16"),
        ("worker.actor.clip_ratio_low=1.0", "expected a number >= 0 and < 1"),
        ("worker.actor.clip_ratio_dual=1", "expected a number > 1"),
        ("worker.rollout.temperature=-0.1", "expected a number >= 0"),
        ("worker.rollout.temperature=.nan", "expected a number >= 0"),
        ("worker.actor.optim.lr=.inf", "expected a number >= 0"),
        ("worker.rollout.top_p=0", "expected a number > 0 and <= 1"),
        ("worker.rollout.top_k=0", "expected a whole number >= 1, or -1"),
        ("worker.rollout.val_override_config=3", "expected a mapping"),
        ("data.train_files=@train", "try quotes"),
        ("data.seed=${nowhere}", "cannot read"),
        ("data.format_prompt=", "nothing after the ="),
    ],
)
def test_wrong_keys_and_values_are_told(argument, message):
    with pytest.raises(ConfigError) as caught:
        load([argument])
    assert caught.value.key == argument.partition("=")[0]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("data.seed", "arguments are key=value"),
        ("=3", "arguments are key=value"),
        ("--dry-run", "without a sign before them: dry-run"),
        ("--config=run.yaml", "without a sign before them: config=run.yaml"),
        ("+data.seed=3", "without a sign before them: data.seed=3"),
        ("config=", "nothing after the ="),
    ],
)
def test_wrong_arguments_are_told(argument, message):
    with pytest.raises(ConfigError, match=message):
        load([argument])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "holds a list"),
        ("data: {seed: 1\n", "cannot read"),
        ("data: {sede: 1}\n", "did you mean data.seed"),
        ("trainer: {experiment_name: on}\n", "got True, expected text"),
        ("data: {seed: '${nowhere}'}\n", "cannot read"),
    ],
)
def test_wrong_files_are_told(tmp_path, text, message):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load([f"config={file}"])


def test_missing_and_second_files_are_told(tmp_path):
    (tmp_path / "run.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"config: .*does not exist.*did you mean 'run.yaml'"):
        load([f"config={tmp_path / 'rum.yaml'}"])
    with pytest.raises(ConfigError, match="given 2 times"):
        load([f"config={tmp_path / 'run.yaml'}"] * 2)


def test_mapping_round_trip_and_dump_say_what_was_set():
    config, given = load(["data.seed=7", "worker.rollout.val_override_config.n=4", "trainer.logger=[file]"])
    record = json.loads(dump(config, given))
    assert record["set_by_user"] == ["data.seed", "trainer.logger", "worker.rollout.val_override_config.n"]
    assert record["config"] == to_mapping(config)
    assert from_mapping(record["config"]) == (config, given)


def test_configuration_loads_no_heavy_library():
    code = (
        "import sys, easyr1.config.load, easyr1.config.resolve, easyr1.config.describe;"
        "heavy = {'torch', 'transformers', 'datasets', 'ray', 'numpy', 'PIL'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, cwd=ROOT)
    assert done.returncode == 0, done.stderr
