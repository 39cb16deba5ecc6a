"""B18, B20: what leaves a checkpoint is the model that was trained, loads like any other, and is whole or absent."""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import peft
import pytest
import runs
import scenes
import tiny
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from easyr1.data import hub
from easyr1.errors import CheckpointError, ConfigError
from easyr1.manifest import foreign_files, write_manifest
from easyr1.models import export as exporter
from easyr1.models.build import vision_tower
from easyr1.models.export import export
from easyr1.trainer.checkpoint import Checkpoints, last_complete

LORA = {"worker.actor.model.lora.rank": 4, "worker.actor.model.lora.alpha": 16}
BRIEF = {
    "trainer.max_steps": 1,
    "trainer.val_freq": -1,
    "trainer.val_before_train": "false",
    "data.rollout_batch_size": 2,
    "worker.actor.optim.lr": 1e-2,
}


@dataclass(frozen=True)
class Trained:
    """A checkpoint, and what the model in memory made of a prompt when it was written."""

    kind: str
    base: Path
    step: Path  # global_step_1
    inputs: dict[str, torch.Tensor]
    logits: torch.Tensor
    tensors: dict[str, torch.Tensor]  # the whole model's, adapters merged

    @property
    def actor(self) -> Path:
        return self.step / "actor"

    @property
    def auto(self):
        vision = self.kind in tiny.VISION_KINDS
        return transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM


CASES = {
    "text": ("qwen2", {}, {}),
    "text, tied": ("qwen2", {"tie_word_embeddings": True}, {}),
    "qwen2_5_vl, tied, frozen tower": (
        "qwen2_5_vl",
        {"tie_word_embeddings": True},
        {"worker.actor.model.freeze_vision_tower": "true"},
    ),
    "qwen3_vl": ("qwen3_vl", {}, {}),
    "text, LoRA": ("qwen2", {}, LORA),
    "qwen2_5_vl, LoRA": ("qwen2_5_vl", {}, LORA),
    "qwen3_vl, LoRA": ("qwen3_vl", {}, LORA),
}


def train(folder: Path, kind: str, sizes: dict, settings: dict) -> Trained:
    """One step on a tiny model."""
    tiny.save(kind, folder / kind, **sizes)
    trainer, _ = runs.run(runs.arguments(folder, kind, rows=2, **BRIEF, **settings))
    scored = runs.engine(trainer).scored
    tensors = {name: tensor.detach().clone() for name, tensor in scored.merged_tensors()}
    inputs, logits = scenes.live_logits(scored, kind)
    return Trained(kind, folder / kind, folder / "run" / "global_step_1", inputs, logits, tensors)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Case -> its checkpoint, trained when first asked for. Shared: a test that changes it takes a `copy`."""
    made: dict[str, Trained] = {}

    def of(case: str) -> Trained:
        if case not in made:
            made[case] = train(tmp_path_factory.mktemp("export"), *CASES[case])
        return made[case]

    return of


@pytest.fixture
def copy(trained, tmp_path):
    """Case -> a copy of its checkpoint that a test may break; the run's folder is named `run`."""

    def of(case: str) -> Trained:
        one = trained(case)
        target = tmp_path / "run" / one.step.name
        shutil.copytree(one.step.parent, target.parent)
        return replace(one, step=target)

    return of


def loaded(trained: Trained, folder: Path, **keywords):
    """The exported model, which was complete and held nothing else."""
    model, report = trained.auto.from_pretrained(folder, output_loading_info=True, **keywords)
    assert {what: list(names) for what, names in report.items() if names} == {}
    return model.eval()


def logits(model, trained: Trained) -> torch.Tensor:
    with torch.no_grad():
        return model(**trained.inputs).logits


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def weights_file(trained: Trained) -> Path:
    return next((trained.actor / "model").glob("*.safetensors"))


@pytest.mark.parametrize("case", CASES)
def test_the_export_is_the_model_that_was_trained(trained, case, tmp_path):
    one = trained(case)
    model = loaded(one, export(one.actor, tmp_path / "out"))
    assert model.dtype == torch.float32
    torch.testing.assert_close(logits(model, one), one.logits, rtol=0, atol=1e-5)
    state = model.state_dict()
    assert state.keys() == one.tensors.keys()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-6 if "LoRA" in case else 0)
    before = logits(one.auto.from_pretrained(one.base).eval(), one)
    assert (before - one.logits).abs().max() > 1e-3, "a step that changed nothing proves nothing"


def test_a_frozen_tower_leaves_as_it_came(trained, tmp_path):
    one = trained("qwen2_5_vl, tied, frozen tower")
    model, base = loaded(one, export(one.step, tmp_path / "out")), one.auto.from_pretrained(one.base)
    tower, before = vision_tower(model), vision_tower(base)
    assert tower is not None and before is not None
    for name, tensor in before.state_dict().items():
        assert torch.equal(tower.state_dict()[name], tensor)


def test_tokenizer_processor_template_and_generation_come_along(trained, tmp_path):
    one = trained("qwen3_vl")
    out = export(one.actor, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    turns = [{"role": "user", "content": "How many?"}]
    shown = [each.apply_chat_template(turns, tokenize=False) for each in (tokenizer, tiny.tokenizer())]
    assert shown[0] == shown[1] and "How many?" in shown[0]
    processor = transformers.AutoImageProcessor.from_pretrained(out, backend="pil")
    assert processor.patch_size == 16
    stop = transformers.GenerationConfig.from_pretrained(out).eos_token_id
    assert stop == [tiny.token_id("<|im_end|>"), tiny.token_id("<|endoftext|>")]
    for name in ("tokenizer.json", "preprocessor_config.json", "generation_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (one.actor / "huggingface" / name).read_bytes()
    assert json.loads((out / "config.json").read_text())["architectures"] == ["Qwen3VLForConditionalGeneration"]
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1, "who may read one file may read all"


@pytest.mark.parametrize("case", ("text, tied", "qwen2_5_vl, LoRA"))
def test_another_precision_is_written_and_named(trained, case, tmp_path):
    one = trained(case)
    out = export(one.actor, tmp_path / "out", dtype="bfloat16")
    with safe_open(out / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    config = json.loads((out / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert all(part["dtype"] == "bfloat16" for part in config.values() if isinstance(part, dict) and "dtype" in part)
    state = loaded(one, out).state_dict()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(state[name], tensor.bfloat16(), rtol=2**-7, atol=1e-6)


def test_twice_gives_the_same_bytes_and_other_files_stay(trained, tmp_path, monkeypatch):
    one, out = trained("qwen2_5_vl, LoRA"), tmp_path / "out"
    monkeypatch.setattr(exporter, "FILE_SIZE", "500KB")
    first = hashes(export(one.actor, out))
    assert "model.safetensors.index.json" in first and "model.safetensors" not in first
    torch.testing.assert_close(logits(loaded(one, out), one), one.logits, rtol=0, atol=1e-5)
    (out / "README.md").write_text("mine")
    monkeypatch.undo()
    single = hashes(export(one.actor, out))
    assert not [name for name in single if name in first and name.startswith("model")], "old parts are gone"
    assert (out / "README.md").read_text() == "mine"
    assert hashes(export(one.actor, out)) == single
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("case", ("text", "qwen2_5_vl, LoRA"))
def test_an_export_into_the_checkpoint_leaves_it_good_for_resuming_and_safe(copy, case, tmp_path):
    one = copy(case)
    out = export(one.step, dtype="bfloat16")
    assert out == one.actor / "huggingface" and loaded(one, out).dtype == torch.bfloat16
    checkpoints = Checkpoints(one.step.parent, limit=1)
    assert last_complete(one.step.parent) == one.step
    checkpoints.check(one.step)
    assert checkpoints.read_state(one.step)["step"] == 1
    assert "actor/huggingface/model.safetensors" in foreign_files(one.step), "so no run deletes it"
    torch.testing.assert_close(logits(loaded(one, export(one.step)), one), one.logits, rtol=0, atol=1e-5)
    weights_file(one).unlink()
    with pytest.raises(CheckpointError, match="safetensors is missing"):
        export(one.step)


def damaged(path: Path, how: str) -> str:
    """What the error has to say, besides the file's name."""
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
        return "is missing"
    if how == "truncated":
        path.write_bytes(content[:-1])
        return f"{len(content)} were written"
    content[-1] ^= 1
    path.write_bytes(content)
    return "is damaged"


@pytest.mark.parametrize("how", ("missing", "truncated", "flipped"))
@pytest.mark.parametrize("case", ("text", "text, LoRA"))
def test_a_bad_file_is_named_and_nothing_is_written(copy, case, how, tmp_path):
    one, out = copy(case), tmp_path / "out"
    file = one.actor / "lora_adapter" / "adapter_model.safetensors" if "LoRA" in case else weights_file(one)
    says = damaged(file, how)
    with pytest.raises(CheckpointError, match=says) as error:
        export(one.actor, out)
    assert file.name in str(error.value)
    assert not out.exists() and sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_weights_of_another_model_are_named(copy, tmp_path):
    one = copy("text")
    config = one.actor / "huggingface" / "config.json"
    config.write_text(
        json.dumps(
            json.loads(config.read_text()) | {"intermediate_size": 200, "vocab_size": 600, "tie_word_embeddings": True}
        )
    )
    write_manifest(one.step)
    with pytest.raises(
        CheckpointError, match=r"1 weights unknown \(lm_head\.weight\).*\[512, 128\] instead of \[600, 128\]"
    ):
        export(one.actor, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pickles_of_the_original_are_refused_by_name(tmp_path):
    actor = tmp_path / "global_step_1" / "actor"
    actor.mkdir(parents=True)
    (actor / "model_world_size_1_rank_0.pt").write_bytes(b"")
    for given in (actor, actor.parent):
        with pytest.raises(CheckpointError, match=r"model_world_size_1_rank_0\.pt is a pickle"):
            export(given)


def test_a_moved_base_is_asked_for(copy, tmp_path):
    one = copy("text, LoRA")
    config = one.actor / "lora_adapter" / "adapter_config.json"
    assert json.loads(config.read_text())["base_model_name_or_path"] == str(one.base)
    for lost in (str(tmp_path / "gone"), "nobody/nothing"):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": lost}))
        write_manifest(one.step)
        with pytest.raises(CheckpointError, match=rf"{lost}.*--model_path"):
            export(one.actor, tmp_path / "out")
    moved = shutil.copytree(one.base, tmp_path / "moved")
    model = loaded(one, export(one.actor, tmp_path / "out", base=str(moved)))
    torch.testing.assert_close(logits(model, one), one.logits, rtol=0, atol=1e-5)


def test_another_model_is_not_taken_for_the_base(trained, tmp_path):
    small = tiny.save("qwen2", tmp_path / "small", hidden_size=64)
    for other in (small, tiny.save("qwen3", tmp_path / "other")):
        with pytest.raises(CheckpointError, match="--model_path"):
            export(trained("text, LoRA").actor, tmp_path / "out", base=str(other))
    assert not (tmp_path / "out").exists()


def test_a_base_gives_only_what_the_checkpoint_lacks(copy, trained, tmp_path, caplog):
    one = copy("text")
    whole = hashes(export(one.actor, tmp_path / "out", base="nobody/nothing"))
    assert "not needed" in caplog.text
    for path in (one.actor / "huggingface").glob("tokenizer*"):
        path.unlink()
    write_manifest(one.step)
    with pytest.raises(CheckpointError, match=r"holds no tokenizer.*--model_path"):
        export(one.actor, tmp_path / "more")
    assert hashes(export(one.actor, tmp_path / "more", base=str(one.base))) == whole


def test_an_adapter_alone_is_what_was_trained(trained, tmp_path):
    one = trained("qwen2_5_vl, LoRA")
    base_before = hashes(one.base)
    out = export(one.actor, tmp_path / "out", adapter_only=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (out / name).read_bytes() == (one.actor / "lora_adapter" / name).read_bytes()
    assert transformers.AutoTokenizer.from_pretrained(out).chat_template == tiny.CHAT_TEMPLATE
    assert not (out / "config.json").exists()
    adapted = peft.PeftModel.from_pretrained(one.auto.from_pretrained(one.base), out).eval()
    torch.testing.assert_close(logits(adapted, one), one.logits, rtol=0, atol=1e-5)
    assert hashes(one.base) == base_before
    with pytest.raises(ConfigError, match="holds an adapter"):
        export(one.actor, out)


def test_a_wrong_call_is_told_before_anything_is_written(trained, copy, tmp_path):
    full, lora = copy("text"), trained("text, LoRA")
    before = hashes(full.step)
    (tmp_path / "file").write_text("")
    calls = [
        (full.step.parent, {}, "run folder.*global_step_1"),
        (full.step.parent / "global_step_2", {}, "there is no folder"),
        (full.actor / "huggingface", {}, "is no checkpoint"),
        (full.step / "critic", {}, "no folder"),
        (full.actor, {"output": tmp_path / "file"}, "is a file"),
        (full.actor, {"output": full.actor}, "belongs to the run"),
        (full.actor, {"output": full.actor / "model"}, "belongs to the run"),
        (full.actor, {"output": full.step.parent}, "holds it"),
        (full.actor, {"output": full.base}, "training started from"),
        (lora.actor, {"output": lora.base}, "training started from"),
        (full.actor, {"output": tmp_path / "out", "dtype": "int8"}, "float16"),
        (full.actor, {"output": tmp_path / "out", "adapter_only": True}, "without LoRA"),
        (lora.actor, {"adapter_only": True}, "output_path.*is needed"),
        (lora.actor, {"adapter_only": True, "output": tmp_path / "out", "dtype": "float16"}, "keeps its own"),
    ]
    for given, keywords, says in calls:
        with pytest.raises(ConfigError, match=says):
            export(given, keywords.pop("output", None), **keywords)
    (full.step / "critic").mkdir()
    with pytest.raises(ConfigError, match="value model"):
        export(full.step / "critic")
    (full.step / "critic").rmdir()
    assert hashes(full.step) == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize("fail_at", range(9))
def test_a_full_disk_leaves_the_old_export(trained, tmp_path, monkeypatch, fail_at):
    out = export(trained("text").actor, tmp_path / "out")
    before, replace_file, moves = hashes(out), os.replace, []

    def fails_once(source, target, **keywords):
        moves.append(target)
        if len(moves) == fail_at + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace_file(source, target, **keywords)

    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, fails_once)
    ended = False
    try:
        export(trained("text, tied").actor, out)
        ended = True
    except CheckpointError as error:
        assert "No space left" in str(error)
    monkeypatch.undo()
    assert ended == (len(moves) <= fail_at)
    assert (hashes(out) == before) != ended
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_full_disk_while_weights_are_written_leaves_nothing(trained, tmp_path, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", full)
    with pytest.raises(CheckpointError, match="No space left"):
        export(trained("text").actor, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_no_mixture_of_two_exports_can_be_loaded(trained, tmp_path, monkeypatch):
    out, move, seen = export(trained("text").actor, tmp_path / "out"), Path.replace, []

    def watched(self, target):
        moved = move(self, target)
        seen.append((self.name, any((out / name).exists() for name in exporter.OPENING)))
        return moved

    monkeypatch.setattr(Path, "replace", watched)
    export(trained("text, tied").actor, out)
    assert seen[0] == ("model.safetensors", False) and seen[-1] == ("model.safetensors", True)
    assert len(seen) > 4 and not any(loadable for _, loadable in seen[1:-1])


def test_ctrl_c_while_files_are_moved_leaves_the_old_export(trained, tmp_path, monkeypatch):
    out, move = export(trained("text").actor, tmp_path / "out"), Path.replace
    before = hashes(out)

    def stopped(self, target):
        if self.name == "tokenizer.json" and self.parent.name.endswith(".unfinished"):
            raise KeyboardInterrupt
        return move(self, target)

    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        export(trained("text, tied").actor, out)
    assert hashes(out) == before


def test_an_upload_is_private_and_its_failure_tells_where_the_model_lies(tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    class Hub:
        def create_repo(self, name, **keywords):
            calls.append((name, keywords))
            return f"https://hub/{name}"

        def upload_folder(self, **keywords):
            calls.append(keywords)
            if keywords["repo_id"] == "me/full":
                raise OSError("403")

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert hub.upload(tmp_path, "me/model") == "https://hub/me/model"
    assert calls[0][1]["private"] is True and calls[0][1]["exist_ok"] is True
    assert calls[1] == {"repo_id": "me/model", "folder_path": tmp_path}
    with pytest.raises(ConfigError, match=f"403.*{tmp_path}"):
        hub.upload(tmp_path, "me/full")


def test_an_adapter_file_holds_only_the_adapter(trained):
    one = trained("qwen2_5_vl, LoRA")
    names = load_file(one.actor / "lora_adapter" / "adapter_model.safetensors")
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert json.loads((one.actor / "lora_adapter" / "adapter_config.json").read_text())["lora_alpha"] == 16
    assert "peft" not in (one.actor / "huggingface" / "config.json").read_text()


def test_weights_that_were_trained_in_bfloat16_stay_in_it(tmp_path):
    settings = {"worker.actor.fsdp.torch_dtype": "bf16", "worker.actor.optim.strategy": "adamw_bf16"}
    one = train(tmp_path, "qwen2", {}, settings)
    model = loaded(one, export(one.step, tmp_path / "out"))
    assert model.dtype == torch.bfloat16 and torch.equal(logits(model, one), one.logits)


def test_an_adapter_is_merged_in_float32_whatever_its_base_is_stored_in(tmp_path):
    base = tiny.save("qwen2", tmp_path / "qwen2")
    transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(base)
    trainer, _ = runs.run(runs.arguments(tmp_path, "qwen2", rows=2, **BRIEF, **LORA))
    inputs, live = scenes.live_logits(runs.engine(trainer).scored, "qwen2")
    one = Trained("qwen2", base, tmp_path / "run" / "global_step_1", inputs, live, {})
    model = loaded(one, export(one.step, tmp_path / "out"))
    assert model.dtype == torch.float32
    torch.testing.assert_close(logits(model, one), live, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ("tokenizer.json", "preprocessor_config.json", "chat_template.jinja"))
def test_a_small_file_that_is_missing_or_changed_is_named(copy, tmp_path, name):
    one = copy("qwen3_vl")
    file = one.actor / "huggingface" / name
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match=rf"{name} is damaged"):
        export(one.step, tmp_path / "out")
    file.unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        export(one.step, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_base_is_named(copy, tmp_path):
    one = copy("text, LoRA")
    base = shutil.copytree(one.base, tmp_path / "base")
    (base / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"base.*model\.safetensors: .*--model_path"):
        export(one.step, tmp_path / "out", base=str(base))


def test_the_actor_is_enough(copy, tmp_path):
    """What an export does not read may be gone: a critic, the optimizer."""
    one = copy("text")
    shutil.rmtree(one.actor / "optim")
    assert (export(one.step, tmp_path / "out") / "model.safetensors").is_file()


def test_a_folder_on_another_disk_takes_an_export(trained, tmp_path):
    """Such as a mounted volume: nothing can be made beside it and moved in."""
    target = tmp_path / "volume"
    target.mkdir()
    tmp_path.chmod(0o555)
    try:
        out = export(trained("text").step, target)
    finally:
        tmp_path.chmod(0o755)
    assert (out / "model.safetensors").is_file() and not (out / ".unfinished").exists()


def test_who_may_read_one_file_of_a_checkpoint_may_read_all(trained):
    files = [path for path in trained("text, LoRA").step.rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1
