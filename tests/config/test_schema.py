"""The schema: defaults are the original's, every key is documented, generated files are fresh."""

import dataclasses
import json
from pathlib import Path

import pytest

from easyr1.config.describe import documentation, targets
from easyr1.config.load import load, to_mapping
from easyr1.config.names import DERIVED, REMOVED, RENAMED
from easyr1.config.schema import DEPARTURES, Config, known_keys
from easyr1.config.values import check_values, in_words, is_mapping
from easyr1.errors import ConfigError

ROOT = Path(__file__).parents[2]
OURS = {
    "trainer.device": "auto",
    "trainer.hang_timeout_s": 1800,
    "trainer.console": "full",
    "data.train_weights": None,
    "data.max_video_frames": 768,
    "data.on_bad_media": "stop",
    "worker.reward.timeout_s": 300.0,
    "worker.rollout.engine_kwargs": {},
    "worker.rollout.correction": "none",
    "worker.rollout.correction_cap": 2.0,
    "worker.rollout.seed_answers": False,
    "worker.rollout.probe_freq": 20,
    "worker.actor.entropy_coef": 0.0,
    "worker.actor.old_log_probs": "auto",
    **{f"worker.{model}.fsdp.reduce_each_micro_batch": False for model in ("actor", "ref", "critic")},
    "worker.actor.model.lora.dropout": 0.0,
    "worker.critic.model.lora.dropout": 0.0,
    "algorithm.overlong_buffer_length": 0,
    "algorithm.overlong_penalty_factor": 1.0,
    "algorithm.mask_truncated": False,
    "algorithm.recipe": None,
}


def original_defaults():
    """Dotted key -> EasyR1's default: its examples/config.yaml, else its dataclasses."""
    tables = json.loads((ROOT / "tests" / "compat" / "easyr1_defaults.json").read_text())
    return {**dict(leaves(tables["dataclasses"])), **dict(leaves(tables["config.yaml"]))}


def leaves(tree, prefix=""):
    for name, value in tree.items():
        key = prefix + name
        if isinstance(value, dict) and not (key in known_keys() and is_mapping(known_keys()[key][0])):
            yield from leaves(value, f"{key}.")
        else:
            yield key, tuple(value) if isinstance(value, list) else value


def test_keys_are_the_originals_and_three_of_our_own():
    assert set(known_keys()) == set(original_defaults()) | set(OURS)


def test_defaults_are_the_originals_save_the_documented_departures():
    defaults = {key: default for key, (_, default) in known_keys().items()}
    differing = {key for key, value in original_defaults().items() if defaults[key] != value}
    assert differing == set(DEPARTURES)
    assert {key: defaults[key] for key in OURS} == OURS


def test_actor_reference_and_critic_keep_their_own_defaults():
    worker = Config().worker
    assert (worker.actor.fsdp.enable_cpu_offload, worker.ref.fsdp.enable_cpu_offload) == (False, True)
    assert (worker.actor.offload.offload_params, worker.ref.offload.offload_params) == (True, False)
    assert (worker.actor.padding_free, worker.critic.padding_free) == (True, True)


def test_defaults_satisfy_their_own_types():
    check_values(Config())


@pytest.mark.parametrize("key", known_keys())
def test_every_key_is_documented(key):
    assert documentation(key).endswith(".")


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().data.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize(("path", "text"), targets().items(), ids=lambda item: getattr(item, "name", ""))
def test_generated_files_are_fresh(path, text):
    assert path.read_text() == text, "stale: run `make config`"


def test_shipped_yaml_is_the_default_and_sets_nothing():
    assert load([f"config={ROOT / 'examples' / 'config.yaml'}"]) == (Config(), frozenset())


def test_shipped_yaml_reads_the_same_with_any_yaml_reader():
    yaml = pytest.importorskip("yaml")
    tree = yaml.safe_load((ROOT / "examples" / "config.yaml").read_text())
    assert tree == to_mapping(Config())


def test_tables_of_other_names_point_to_keys_that_exist():
    known = known_keys()
    assert not (set(RENAMED) | set(REMOVED) | set(DERIVED)) & set(known)
    assert set(RENAMED.values()) | set(DERIVED.values()) <= set(known)


def test_values_of_a_config_made_in_python_are_checked():
    data = dataclasses.replace(Config().data, rollout_batch_size=0)
    with pytest.raises(ConfigError, match=r"data.rollout_batch_size: got 0, expected a whole number >= 1"):
        check_values(dataclasses.replace(Config(), data=data))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("worker.rollout.top_p", "a number > 0 and <= 1"),
        ("worker.rollout.top_k", "a whole number >= 1, or -1"),
        ("data.max_pixels", "a whole number >= 1, or null"),
        ("data.train_files", "text, or a list of text"),
        ("worker.actor.optim.betas", "a list of 2, each a number >= 0 and < 1"),
        ("worker.actor.loss_avg_mode", "one of token, seq, seq_sum_const"),
        ("worker.reward.reward_function_kwargs", "a mapping"),
    ],
)
def test_types_in_words(key, words):
    assert in_words(known_keys()[key][0]) == words
