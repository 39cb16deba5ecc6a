"""What a rank does with its engines besides calling them."""

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import scenes
import tiny
import torch

from easyr1.config.actor import OffloadConfig
from easyr1.config.load import load
from easyr1.config.schema import Config
from easyr1.data.media import MediaStore
from easyr1.data.processor import GridReader
from easyr1.engines.pack import Budget
from easyr1.engines.train import EXTRA_FILE, TorchTrain
from easyr1.errors import CheckpointError
from easyr1.models.build import build
from easyr1.models.ranks import ALONE
from easyr1.trainer.parts import distant_rollout_engine, model_spec, rollout_engine, sends_adapters
from easyr1.trainer.rank import ModelFiles, Rank, Sampler, _many, _sampling_places, _training_places, no_media, resting

MANY = replace(ALONE, world=2, mesh=object())  # type: ignore[arg-type]


def engine(trained: bool = True, is_own: bool = True):
    scored = SimpleNamespace()
    scored.root = scored if is_own else SimpleNamespace()
    return SimpleNamespace(scored=scored, optimizer=object() if trained else None)


def config(both: bool) -> Config:
    offload, plain = OffloadConfig(both, both), Config()
    parts = {name: replace(getattr(plain.worker, name), offload=offload) for name in ("actor", "ref", "critic")}
    return replace(plain, worker=replace(plain.worker, **parts))


def put_away(config: Config, engines, ranks):
    names = {id(one): name for name, one in engines.items()}
    return {names[id(one.engine)]: (one.weights, one.optimizer) for one in resting(config, engines, ranks)}


@pytest.mark.parametrize("both", (True, False))
def test_models_rest_as_their_keys_say_and_never_on_a_rank_that_is_alone(both):
    engines = {"actor": engine(), "reference": engine(trained=False), "critic": engine()}
    wanted = {"actor": (True, True), "reference": (True, False), "critic": (True, True)} if both else {}
    assert put_away(config(both), engines, MANY) == wanted
    assert put_away(config(both), engines, ALONE) == {}


def test_a_reference_that_is_the_policy_without_its_adapters_has_nothing_to_put_away():
    engines = {"actor": engine(), "reference": engine(trained=False, is_own=False)}
    assert put_away(config(True), engines, MANY) == {"actor": (True, True)}


@pytest.mark.parametrize(("key", "wanted"), ((None, torch.float32), ("bf16", torch.bfloat16)))
def test_a_samplers_own_copy_has_the_type_of_its_key_or_that_of_the_policys_products(key, wanted, tmp_path):
    plain, worker = Config(), Config().worker
    model = replace(worker.actor.model, model_path=str(tiny.save("qwen2", tmp_path / "model")))
    worker = replace(worker, actor=replace(worker.actor, model=model), rollout=replace(worker.rollout, dtype=key))
    given = replace(plain, worker=worker)
    plan: Any = SimpleNamespace(param_dtype="float32", compute_dtype="float32", device="cpu", rollout_engine="torch")
    policy = build(model_spec(given, plan))
    sampler = rollout_engine(given, plan, policy, no_media, MANY, False)
    assert {tensor.dtype for tensor in sampler.tensors().values()} == {wanted}
    assert rollout_engine(given, plan, policy, no_media, ALONE, False).scored is policy
    sampler.load(policy.merged_tensors(), 1)
    for name, tensor in sampler.tensors().items():
        assert torch.equal(tensor, policy.model.state_dict()[name].to(wanted)), name

    distant = distant_rollout_engine(given, plan, no_media, False)  # in a process of its own
    assert {tensor.dtype for tensor in distant.tensors().values()} == {wanted}


@pytest.mark.parametrize(("excluded", "reason"), (("'.*visual.*'", None), ("null", "none in model.visual.blocks.0.")))
def test_adapters_go_as_such_where_vllm_takes_them_and_else_the_reason_is_told(excluded, reason, tmp_path, caplog):
    folder = tiny.save("qwen2_5_vl", tmp_path / "model")
    lora = ("rank=4", f"exclude_modules={excluded}")
    given, _ = load([f"worker.actor.model.model_path={folder}", *(f"worker.actor.model.lora.{key}" for key in lora)])
    plan: Any = SimpleNamespace(param_dtype="float32", compute_dtype="float32", device="cpu", rollout_engine="vllm")
    policy = build(model_spec(given, plan))
    assert sends_adapters(given, plan, policy) == (reason is None)
    assert not caplog.messages if reason is None else reason in caplog.text
    assert not sends_adapters(given, SimpleNamespace(rollout_engine="torch"), policy)  # type: ignore[arg-type]


def test_ranks_that_hold_one_engine_lie_on_one_machine_and_engines_anywhere():
    given, _ = load(["worker.rollout.tensor_parallel_size=2", "trainer.nnodes=2", "worker.actor.ulysses_size=4"])
    plan: Any = SimpleNamespace(world_size=16, sampling_ranks=6, device="cuda")
    sampling, training = _sampling_places(given, plan), _training_places(given, plan)
    assert (sampling.nodes, sampling.bundle, sampling.strategy) == (3, {"CPU": 2.0, "GPU": 2.0}, "PACK")
    assert (training.nodes, training.bundle, training.strategy) == (2, {"CPU": 8.0, "GPU": 8.0}, "STRICT_SPREAD")
    assert (sampling.sequence, training.sequence) == (1, 4) and sampling.role == "sampler"


def test_what_a_rank_cannot_write_is_a_checkpoint_error_that_names_the_place(tmp_path):
    scored = scenes.packed(tiny.build("qwen2"))
    train = TorchTrain(scored, no_media, 1.0, Budget(samples=1))
    (tmp_path / "actor" / EXTRA_FILE).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=rf"{EXTRA_FILE} cannot be written: "):
        train.save(tmp_path / "actor")
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match=r"taken.* cannot be written: "):
        train.save(tmp_path / "taken")
    with pytest.raises(CheckpointError, match=r"taken.* cannot be written: "):
        ModelFiles({"actor": train}).write(tmp_path / "taken", None)


def test_a_save_tells_how_far_it_is(tmp_path):
    told = []
    train = TorchTrain(scenes.packed(tiny.build("qwen2")), no_media, 1.0, Budget(samples=1))
    train.save(tmp_path / "actor", progress=lambda done, all: told.append((done, all)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_ranks_of_a_machine_share_the_bounds_of_the_picture_store(monkeypatch, tmp_path):
    sent = []
    monkeypatch.setattr("easyr1.cluster.ray_group.open_ray_group", lambda make, *_, **__: sent.append(make))
    config = replace(Config(), trainer=replace(Config().trainer, nnodes=2))
    plan: Any = SimpleNamespace(world_size=8, sampling_ranks=0, device="cpu", run_folder=tmp_path)
    store = MediaStore(GridReader(tiny.image_processor("qwen2_5_vl"), 6), cache_bytes=1000, decoded_bytes=4000)
    store.add(tiny.picture(56, 56))
    _many(Rank(config, plan, store), _training_places(config, plan), print)
    there = pickle.loads(pickle.dumps(sent[0].media))
    assert (there._inputs.budget, there._decoded.budget, len(there)) == (250, 1000, 1)
    assert (store._inputs.budget, store._decoded.budget) == (1000, 4000)
    _many(Rank(config, plan, None), _training_places(config, plan), print)
    assert sent[1].media is None
    plan.sampling_ranks = 5  # engines of one rank each, which may all lie on one machine
    _many(Sampler(config, plan, store, False), _sampling_places(config, plan), print)
    assert pickle.loads(pickle.dumps(sent[2].media))._inputs.budget == 200
