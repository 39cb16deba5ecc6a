"""Models, tokenizers, processors and data sets from a hub: a mirror of Hugging Face, and ModelScope."""

import json
import os
from pathlib import Path

import datasets
import pytest
import tiny
from commands import ROOT, run
from stub_hub import ModelScopeStub, serve

# Stands in for the package, with its two functions that easyr1 calls.
MODELSCOPE = {
    "__init__.py": "",
    "hub/__init__.py": "",
    "hub/errors.py": "class NotExistError(Exception): pass\n",
    "hub/snapshot_download.py": """
import fnmatch, os, pathlib, shutil
from modelscope.hub.errors import NotExistError

def _fetch(kind, name, patterns):
    source = pathlib.Path(os.environ["FAKE_ROOT"], kind, name)
    if not source.is_dir():
        raise NotExistError(f"{name} is not here")
    target = pathlib.Path(os.environ["FAKE_CACHE"], kind, name)
    for path in source.rglob("*"):
        if path.is_file() and any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return str(target)

def snapshot_download(model_id, allow_patterns):
    return _fetch("models", model_id, allow_patterns)

def dataset_snapshot_download(dataset_id):
    return _fetch("datasets", dataset_id, ["*"])
""",
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A folder with the model tiny/vision and the data set tiny/figures, whose pictures are an `Image` feature."""
    root = tmp_path_factory.mktemp("hub")
    tiny.save("qwen2_5_vl", root / "models/tiny/vision")
    text = datasets.Value("string")
    features = datasets.Features({"images": datasets.List(datasets.Image()), "problem": text, "answer": text})
    folder = root / "datasets/tiny/figures/data"
    folder.mkdir(parents=True)
    rows = [{name: row[name] for name in features} for row in tiny.vision_rows(6)]
    for split, part in (("train", rows[:4]), ("test", rows[4:])):
        table = datasets.Dataset.from_list(part, features=features)
        table.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    (root / "datasets/tiny/figures/README.md").write_text("Figures.\n")
    return root


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "reward.py").write_text(
        "def score(inputs):\n    return [{'overall': len(one['response']) % 7 / 7} for one in inputs]\n"
    )
    return [
        "data.train_files=tiny/figures@train",
        "data.val_files=tiny/figures@test",
        "data.format_prompt=null",
        "data.max_response_length=4",
        "data.rollout_batch_size=2",
        f"data.min_pixels={tiny.MIN_PIXELS}",
        f"data.max_pixels={tiny.MAX_PIXELS}",
        "worker.actor.global_batch_size=2",
        "worker.actor.model.model_path=tiny/vision",
        "worker.rollout.n=2",
        f"worker.reward.reward_function={tmp_path / 'reward.py'}:score",
        f"trainer.save_checkpoint_path={tmp_path / 'run'}",
        "trainer.max_steps=1",
        "trainer.logger=['file']",
        "trainer.device=cpu",
    ]


def online(tmp_path, **environment):
    """Environment of a machine with an empty cache that may ask a hub."""
    return {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "cache")} | environment


def has_trained(folder: Path) -> bool:
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    model = folder / "run/global_step_1/actor/huggingface"
    return rows[-1]["step"] == 1 and (model / "preprocessor_config.json").is_file()


@pytest.mark.slow
def test_a_run_takes_model_and_pictures_from_a_mirror(hub, tmp_path, settings):
    with serve(hub) as (address, asked):
        shown = run("easyr1.cli.main", "train", *settings, **online(tmp_path, HF_ENDPOINT=address))
        fetched = {path.rpartition("/")[2] for path in asked}
        before = len(asked)
    assert has_trained(tmp_path), shown
    assert {"model.safetensors", "tokenizer.json", "preprocessor_config.json"} <= fetched
    assert {"train-00000-of-00001.parquet", "test-00000-of-00001.parquet"} <= fetched
    again = [*settings, f"trainer.save_checkpoint_path={tmp_path / 'other'}"]  # the hub is gone, its files are here
    offline = online(tmp_path, HF_ENDPOINT=address, HF_HUB_OFFLINE="1")
    run("easyr1.cli.main", "train", *again, **offline)
    assert len(asked) == before and (tmp_path / "other/global_step_1").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "status", "said"),
    [
        ("data.val_files=tiny/lost@test", 1, "tiny/lost@test: no such file or folder here, and the Hugging Face hub"),
        ("data.val_files=tiny/figures@dev", 1, "tiny/figures@dev"),
        ("worker.actor.model.model_path=tiny/lost", 2, "'tiny/lost' cannot be loaded"),
    ],
)
def test_what_a_hub_does_not_have_is_named(hub, tmp_path, settings, wrong, status, said):
    with serve(hub) as (address, _):
        environment = online(tmp_path, HF_ENDPOINT=address)
        shown = run("easyr1.cli.main", "train", *settings, wrong, status=status, **environment)
    assert said in shown and "Traceback" not in shown


@pytest.mark.slow
def test_modelscope_gives_models_and_data_sets(hub, tmp_path, settings):
    package = tmp_path / "packages/modelscope"
    for name, text in MODELSCOPE.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    environment = online(
        tmp_path,
        USE_MODELSCOPE_HUB="1",
        HF_ENDPOINT="http://127.0.0.1:9",  # nobody answers there
        PYTHONPATH=f"{ROOT}:{package.parent}",
        FAKE_ROOT=str(hub),
        FAKE_CACHE=str(tmp_path / "modelscope"),
    )
    shown = run("easyr1.cli.main", "train", *settings, **environment)
    assert has_trained(tmp_path), shown
    fetched = {path.name for path in (tmp_path / "modelscope").rglob("*")}
    assert {"model.safetensors", "tokenizer.json", "test-00000-of-00001.parquet"} <= fetched
    shown = run("easyr1.cli.main", "train", *settings, "data.val_files=tiny/lost", status=1, **environment)
    assert "tiny/lost" in shown and "ModelScope did not give it" in shown and "is not here" in shown


@pytest.mark.slow
def test_the_package_of_modelscope_itself_is_called_rightly(hub, tmp_path, settings):
    pytest.importorskip("modelscope")
    environment = online(
        tmp_path,
        USE_MODELSCOPE_HUB="1",
        HF_ENDPOINT="http://127.0.0.1:9",
        MODELSCOPE_CACHE=str(tmp_path / "modelscope"),
        PYTHONPATH=f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    )
    with serve(hub, ModelScopeStub) as (address, asked):
        environment["MODELSCOPE_ENDPOINT"] = address
        shown = run("easyr1.cli.main", "train", *settings, **environment)
        assert has_trained(tmp_path), shown
        assert [path for path in asked if path.startswith("api/v1/datasets")]
        wrong = ["data.val_files=tiny/lost", "worker.actor.model.model_path=tiny/lost"]
        shown = run("easyr1.cli.main", "train", *settings, wrong[0], status=1, **environment)
        assert "tiny/lost" in shown and "ModelScope did not give it" in shown and "Traceback" not in shown
        settings = [*settings, f"trainer.save_checkpoint_path={tmp_path / 'other'}"]
        shown = run("easyr1.cli.main", "train", *settings, wrong[1], status=2, **environment)
        assert "'tiny/lost' cannot be loaded" in shown and "Traceback" not in shown


def test_modelscope_without_its_package_is_one_clear_error(tmp_path, settings):
    broken = tmp_path / "packages/modelscope.py"
    broken.parent.mkdir()
    broken.write_text("raise ImportError('not installed')\n")
    environment = {"USE_MODELSCOPE_HUB": "1", "PYTHONPATH": f"{ROOT}:{broken.parent}"}
    shown = run("easyr1.cli.main", "train", *settings, status=2, **environment)
    assert "USE_MODELSCOPE_HUB: it is set" in shown and "easyr1[modelscope]" in shown and "Traceback" not in shown
