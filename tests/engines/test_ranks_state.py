"""State on several ranks: what some ranks save, any other number takes up, and an export makes a model of it."""

import shutil
from dataclasses import replace

import pytest
import ranked
import runs
import scenes
import tiny
import torch
import transformers
from ranks import on_ranks

from easyr1.data.model_files import FILES_FOLDER
from easyr1.engines.objective import ValueObjective
from easyr1.engines.optimizer import OptimSpec
from easyr1.engines.train import TorchTrain
from easyr1.manifest import write_manifest
from easyr1.models.build import ModelSpec
from easyr1.models.export import export
from easyr1.models.lora import ADAPTER_FOLDER, LoraSpec, write_adapter
from easyr1.models.ranks import ALONE, Ranks, join
from easyr1.models.scored import Unadapted
from easyr1.models.shards import MODEL_FOLDER, OPTIM_FOLDER

pytestmark = pytest.mark.slow

LORA = LoraSpec(rank=4, alpha=16, exclude_modules=None)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny.save("qwen2_5_vl", folder, tie_word_embeddings=True)  # with tokenizer and processor
    ranked.saved("qwen2_5_vl", folder, tie_word_embeddings=True)
    return ranked.Training(ModelSpec(str(folder)), "qwen2_5_vl", optim=OptimSpec(lr=1e-3), steps=2)


def changed(training, case):
    if case == "adamw_bf16":
        spec = replace(training.spec, param_dtype="bfloat16", compute_dtype="bfloat16")
        return replace(training, spec=spec, optim=OptimSpec(strategy=case, lr=1e-2, max_grad_norm=1e9))
    if case == "LoRA":
        return replace(training, spec=replace(training.spec, lora=LORA), seed=3)
    if case == "critic":
        return replace(training, is_critic=True, objective=ValueObjective())
    return training


def go_on(training, save, load):
    """Take up `load` if it is given, make `steps` updates and save; the full weights."""
    ranks = join(torch.device("cpu")) if torch.distributed.is_initialized() else ALONE
    return gone_on(training, ranks, save, load)


def gone_on(training, ranks: Ranks, save, load):
    scene = scenes.Scene(training.kind)
    share = training.shares(training.groups(scene), ranks.num_replicas)[ranks.replica]
    engine = training.engine(ranks, scene)
    if load is not None:
        torch.manual_seed(5)
        assert engine.load(load)
    for _ in range(training.steps):
        engine.update(share, training.optim.lr)
    if save is not None:
        engine.save(save)
        if training.spec.lora is not None:
            write_adapter(engine.scored, save / ADAPTER_FOLDER, training.spec.path)
    return engine.version, {name: tensor.clone() for name, tensor in engine.weights()}


def on(world, training, save=None, load=None):
    if world == 0:
        return go_on(training, save, load)
    return on_ranks(world, go_on, training, save, load)[0]


CASES = ("adamw", "adamw_bf16", "LoRA", "critic")
CORE = {("adamw", 2, 0), ("adamw_bf16", 0, 2), ("LoRA", 0, 2), ("critic", 2, 0)}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        pytest.param(case, first, second, marks=[] if (case, first, second) in CORE else [slow])
        for case in CASES
        for first, second in ((2, 0), (0, 2), (2, 4), (4, 2), (2, 1), (1, 4), (4, 0))
    ],
)
def test_what_some_ranks_save_others_go_on_with(training, tmp_path, case, first, second):
    training = changed(training, case)
    training = replace(training, texts=3 if 4 in (first, second) else 1)
    on(first, training, save=tmp_path / "actor")
    on(second, replace(training, steps=0), load=tmp_path / "actor", save=tmp_path / "again" / "actor")
    for part in (MODEL_FOLDER, OPTIM_FOLDER):  # to the last bit
        saved, again = (runs.read_shards(folder / "actor" / part) for folder in (tmp_path, tmp_path / "again"))
        assert saved.keys() == again.keys()
        assert all(torch.equal(tensor, again[name]) for name, tensor in saved.items())
    version, found = on(second, training, load=tmp_path / "actor")
    _, wanted = on(0, replace(training, steps=4))
    _, halfway = on(0, training)
    assert version == 4
    gap = sum(float((found[name].float() - tensor.float()).abs().sum()) for name, tensor in wanted.items())
    way = sum(float((halfway[name].float() - tensor.float()).abs().sum()) for name, tensor in wanted.items())
    assert gap < (0.3 if case == "adamw_bf16" else 1e-3) * way


@pytest.mark.parametrize("case", ("adamw", "LoRA"))
def test_weights_that_are_loaded_are_used_whatever_was_computed_before(training, tmp_path, case):
    for first, moved, again in on_ranks(2, scored_again, changed(training, case), tmp_path):
        assert moved > 1e-3
        assert first == again


def scored_again(training, folder):
    """The score of one token before an update, how far it moved, and the score when the old weights are back."""
    ranks, scene = join(torch.device("cpu")), scenes.Scene(training.kind)
    share = training.shares(training.groups(scene), 2)[ranks.rank]
    engine = training.engine(ranks, scene)
    scorer = engine
    if training.spec.lora is not None:  # which is entered through the policy, too
        scorer = TorchTrain(Unadapted(engine.scored), scene.media, 1.0, training.budget, ranks=ranks)
    engine.save(folder)
    first = engine.score(share)[0][0][0]
    engine.update(share, 1e-2)
    moved = engine.score(share)[0][0][0]
    scorer.score(share)
    engine.load(folder)
    return float(first), abs(float(moved - first)), float(engine.score(share)[0][0][0])


@pytest.mark.slow
@pytest.mark.parametrize("case", ("adamw", "LoRA"))
@pytest.mark.parametrize("world", (1, 2, pytest.param(4, marks=slow)))
def test_an_export_of_ranks_is_the_model_that_was_trained(training, tmp_path, case, world):
    """B18 on ranks."""
    training = changed(training, case)
    actor = tmp_path / "global_step_2" / "actor"
    _, weights = on(world, training, save=actor)
    ignore = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(training.spec.path, actor / FILES_FOLDER, ignore=ignore)
    write_manifest(tmp_path / "global_step_2")
    folder = export(actor.parent, tmp_path / "out")
    model, told = transformers.AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    live = training.engine(ALONE, scenes.Scene(training.kind)).scored
    plain = replace(training, spec=replace(training.spec, lora=None)).engine(ALONE, scenes.Scene(training.kind)).scored
    plain.model.load_state_dict(weights)
    inputs, wanted = scenes.live_logits(plain, training.kind)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, wanted, rtol=0, atol=1e-5)
    _, before = scenes.live_logits(live, training.kind)
    assert (wanted - before).abs().max() > 1e-3


def test_each_file_is_written_once(training, tmp_path):
    training = replace(changed(training, "LoRA"), steps=1)
    found = on_ranks(2, saving_noted, training, tmp_path)
    assert [name for names in found for name in names if name.endswith(".json")] == [
        "extra_state.json",
        "adapter_config.json",
    ]


def saving_noted(training, folder):
    from pathlib import Path

    written, write = [], Path.write_text
    Path.write_text = lambda path, *rest, **more: written.append(path.name) or write(path, *rest, **more)
    go_on(training, folder / "actor", None)
    return written
