"""`easyr1 eval`: the numbers of a run's own validation, every answer in a file, and what an interruption leaves."""

import json
import math
import subprocess
import sys

import pytest
import runs
import tiny
from commands import ROOT
from rich.console import Console

from easyr1.cli import eval as command
from easyr1.cli.main import main
from easyr1.config.plan import Facts
from easyr1.config.resolve import val_sampling
from easyr1.engines.rollout_torch import TorchRollout
from easyr1.errors import ConfigError
from easyr1.tracking.progress import Progress
from easyr1.trainer.evaluate import ANSWERS_FILE, prepare_evaluation, read_answers
from easyr1.trainer.summary import Judgement, judgement, numbers, summarise

SAYS = (
    "import zlib\ndef compute_score(inputs):\n    return [{'overall': zlib.crc32(one['response'].encode()) % 5 / 4, "
)
SAYS += " 'accuracy': float(zlib.crc32(one['response'].encode()) % 3 == 0)} for one in inputs]\n"


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Settings of a run of two steps with a checkpoint, and with rows of two sources."""
    folder = tmp_path_factory.mktemp("evaluated")
    more = tiny.write_rows(folder / "more.jsonl", tiny.text_rows(5))
    both = f"[{folder / 'rows8.jsonl'},{more}]"
    found = runs.arguments(folder, data__val_files=both, trainer__val_freq=2, trainer__val_before_train="false")
    (folder / "reward.py").write_text(SAYS)
    runs.run(found)
    return found


@pytest.fixture
def evaluate(arguments, tmp_path, capsys):
    """(exit status, output folder, what was shown) of an evaluation of the run's checkpoint with more arguments."""

    def run(*more, output=tmp_path / "out"):
        status = main(["eval", *run.checkpoint, f"--output={output}", *more])
        shown = capsys.readouterr()
        return status, output, shown.out + shown.err

    run.checkpoint = [f"trainer.load_checkpoint_path={folder_of(arguments)}/global_step_2"]
    return run


def folder_of(arguments):
    return next(one.partition("=")[2] for one in arguments if one.startswith("trainer.save_checkpoint"))


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_a_checkpoint_gets_the_numbers_that_its_run_logged(arguments, evaluate):
    logged = runs.steps(runs.Path(folder_of(arguments)))[2]
    status, folder, shown = evaluate()
    found = summary(folder)
    assert status == 0 and "mean@1" in shown and "rows8" in shown
    for name in ("overall", "accuracy"):
        assert found["overall"]["scores"][name] == pytest.approx(logged[f"val/{name}_reward"], abs=1e-12)
        for source in ("rows8", "more"):
            value = found["sources"][source]["scores"][name]
            assert value == pytest.approx(logged[f"val/{source}/{name}_reward"], abs=1e-12)
    assert found["overall"]["tokens"] == pytest.approx(logged["val_response_length/mean"])
    assert found["score"] == "accuracy" and found["overall"]["pass@1"]["value"] == found["overall"]["mean@1"]["value"]


def test_every_answer_has_a_line_and_another_question_needs_no_model(evaluate, monkeypatch):
    status, folder, _ = evaluate("worker.rollout.n=3", "worker.rollout.temperature=1")
    rows = read_answers(folder)
    assert status == 0 and len(rows) == 13 and all([line["answer"] for line in rows[at]] == [0, 1, 2] for at in rows)
    assert {"scores", "parsed", "response", "prompt", "ground_truth", "source", "row"} <= set(rows[0][0])
    assert summary(folder)["overall"]["answers"] == 39 and "pass@3" in summary(folder)["overall"]
    monkeypatch.setattr(TorchRollout, "generate", None)  # would fail if it were called
    status, folder, shown = evaluate("worker.rollout.n=3", "worker.rollout.temperature=1", "--score=overall")
    assert status == 0 and "13 of 13 rows are answered already" in shown and summary(folder)["score"] == "overall"
    status, _, shown = evaluate("worker.rollout.n=3", "worker.rollout.temperature=1", "--score=exact")
    assert status == 2 and "overall, accuracy" in shown
    status, _, shown = evaluate("worker.rollout.n=2", "worker.rollout.temperature=1")
    assert status == 2 and "sampling.n was 3, is 2" in shown and "another folder" in shown


@pytest.mark.slow
def test_a_stopped_evaluation_keeps_whole_rows_and_goes_on_to_the_same_end(evaluate, tmp_path, monkeypatch):
    more = ("worker.rollout.n=2", "data.val_batch_size=4")
    _, straight, _ = evaluate(*more, output=tmp_path / "straight")
    asked = []
    generate = TorchRollout.generate

    def stopping(self, prompts, *rest):
        asked.append(len(prompts))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return generate(self, prompts, *rest)

    monkeypatch.setattr(TorchRollout, "generate", stopping)
    status, folder, _ = evaluate(*more)
    assert status == 130 and asked == [4, 4, 4]
    file = folder / ANSWERS_FILE
    lines = file.read_text().splitlines()
    assert len(lines) == 16
    file.write_text("\n".join([*lines[:-1], lines[-1][:20]]))  # killed in the middle of a line
    status, _, shown = evaluate(*more)
    assert status == 0 and "7 of 13 rows are answered already" in shown
    assert sum(asked[3:]) == 6
    assert read_answers(folder) == read_answers(straight)
    assert summary(folder)["overall"] == summary(straight)["overall"]


def test_a_dry_run_writes_nothing_and_mistakes_are_told(arguments, tmp_path, capsys):
    assert main(["eval", *arguments, f"--output={tmp_path / 'none'}", "--dry-run", "worker.rollout.n=4"]) == 0
    shown = capsys.readouterr().err
    assert "4 (temperature 0.6, top_p 0.95" in shown and not (tmp_path / "none").exists()
    for wrong, told in (
        (["trainer.load_checkpoint_path=best"], "best of which run"),
        (["data.val_file=x"], "data.val_files"),
        (["data.val_files=nowhere.jsonl"], "error: data.val_files: 'nowhere.jsonl' does not exist"),
        ([], "give config=run.yaml"),
        ([*arguments, f"--output={__file__}"], "--output: "),
        (["trainer.load_checkpoint_path=nowhere"], "there is no folder"),
        (["--outptu=x", *arguments], "--outptu"),
        ([*arguments, "worker.rollout.val_override_config.k=1"], "allowed"),
    ):
        assert main(["eval", *wrong]) == 2
        assert told in capsys.readouterr().err


def test_training_settings_do_not_stand_in_the_way(arguments):
    from easyr1.config.evaluation import plan_evaluation, without_training

    odd = ["algorithm.adv_estimator=gae", "data.rollout_batch_size=7", "worker.actor.global_batch_size=7"]
    odd += ["worker.actor.ulysses_size=2", "worker.critic.ulysses_size=4"]
    odd += ["trainer.logger=['wandb']", "data.train_files=nowhere/near.jsonl", "algorithm.online_filtering=true"]
    config = command.read_settings([*arguments, *odd, "worker.rollout.temperature=0"])
    plan = plan_evaluation(config, Facts(device="cpu", num_devices=0, loggers=("console",)))
    assert not plan.needs_reference and plan.world_size == 1
    assert val_sampling(config)["temperature"] == 0
    apart = ["worker.hybrid_engine=false", "worker.rollout.n_gpus=4", "worker.rollout.tensor_parallel_size=4"]
    config = command.read_settings([*arguments, *apart, "trainer.n_gpus_per_node=2"])
    plan = plan_evaluation(config, Facts(device="cpu", num_devices=0))
    assert (plan.world_size, plan.sampling_ranks) == (2, 0)
    assert without_training(config, Facts(device="cpu", num_devices=0)).worker.rollout.tensor_parallel_size == 2
    with pytest.raises(ConfigError, match="asks for 1 GPU"):
        plan_evaluation(command.read_settings([*arguments, "trainer.device=cuda"]), Facts("cpu", 0))


@pytest.mark.parametrize("rows", ("pictures", "videos", "a family that vLLM is not given"))
def test_the_sampler_is_chosen_with_rows_and_model_in_sight(tmp_path, monkeypatch, rows):
    """`auto` is vLLM on a GPU, but for what vLLM is not given, which is told where vLLM is asked for."""
    if rows.startswith("a family"):
        monkeypatch.setattr("easyr1.engines.vllm_settings.PICTURE_MODELS", ("qwen3_vl",))
    file = tiny.write_rows(tmp_path / "rows.jsonl", tiny.vision_rows(2))
    if rows == "videos":
        tiny.picture().save(tmp_path / "frame.png")
        video = {"problem": "<video>What?", "answer": "1", "videos": [[str(tmp_path / "frame.png")] * 2]}
        file = tiny.write_rows(tmp_path / "rows.jsonl", [video])
    facts = Facts(device="cuda", num_devices=1, vllm={"vllm": "0.32.0"})

    def prepared(**settings):
        config = command.read_settings(runs.arguments(tmp_path, "qwen2_5_vl", data__val_files=file, **settings))
        return prepare_evaluation(config, facts, tmp_path / "out", Progress(Console(quiet=True)))

    found = prepared(trainer__device="cuda")
    wanted = "vllm" if rows == "pictures" else "torch"
    assert (found.inputs.plan.rollout_engine, found.settings["sampler"]) == (wanted, wanted)
    if rows != "pictures":
        with pytest.raises(ConfigError, match=r"vLLM is given pictures .*; set torch"):
            prepared(trainer__device="cuda", worker__rollout__name="vllm")


def test_results_for_programs_and_in_brief(evaluate):
    status, folder, shown = evaluate("trainer.console=quiet")
    assert status == 0 and "mean@1" in shown and "what is evaluated" not in shown
    command = [*evaluate.checkpoint, f"--output={folder}", "trainer.console=json"]
    python = [sys.executable, "-m", "easyr1.cli.main", "eval"]
    done = subprocess.run([*python, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [json.loads(one) for one in done.stdout.splitlines()]
    assert rows[-1]["kind"] == "eval" and rows[-1]["overall"] == summary(folder)["overall"]
    assert {row["kind"] for row in rows} <= {"eval", "progress"} and rows[-1]["folder"] == str(folder)


def test_a_reward_that_failed_at_once_does_not_bar_the_way(evaluate, tmp_path):
    reward = tmp_path / "mine.py"
    reward.write_text("def compute_score(inputs):\n    return 1 / 0\n")
    setting = f"worker.reward.reward_function={reward}:compute_score"
    status, folder, shown = evaluate(setting)
    assert status == 1 and "ZeroDivisionError" in shown and "Traceback" not in shown
    reward.write_text("def compute_score(inputs):\n    return [{'overall': 1.0} for one in inputs]\n")
    assert evaluate(setting)[0] == 0 and summary(folder)["overall"]["mean@1"]["value"] == 1.0


def test_adapters_other_than_those_of_the_checkpoint_are_named(arguments, evaluate):
    status, _, shown = evaluate(*arguments, "worker.actor.model.lora.rank=4")
    assert status == 2 and "worker.actor.model.lora.rank: 0 then, 4 now" in shown


def line(answer, accuracy, parsed, source="a", **scores):
    return {
        "answer": answer,
        "source": source,
        "parsed": parsed,
        "scores": {"accuracy": accuracy, **scores},
        "finish_reason": "stop",
        "tokens": 4,
    }


def test_the_summary_by_hand():
    easy = [line(0, 1.0, "7"), line(1, 1.0, "7.0"), line(2, 0.0, "8"), line(3, 0.0, None)]
    hard = [line(0, 0.0, "1", "b"), line(1, 0.0, "2", "b"), line(2, 1.0, "3", "b"), line(3, 0.0, "2", "b")]
    rows = {0: easy, 1: hard}
    found = summarise(rows, judgement(rows, None, 1.0))
    whole = found["overall"]
    assert whole["mean@4"]["value"] == pytest.approx((0.5 + 0.25) / 2)
    assert whole["pass@2"]["value"] == pytest.approx((1 - 1 / 6 + 1 / 2) / 2)
    assert whole["pass@4"]["value"] == 1.0 and whole["maj@4"]["value"] == 0.5
    assert whole["unparsed"] == 1 / 8 and found["sources"]["a"]["maj@4"]["value"] == 1.0
    assert whole["mean@4"]["low"] <= whole["mean@4"]["value"] <= whole["mean@4"]["high"]


def test_where_nothing_can_be_read_there_is_no_vote():
    found = numbers([[line(0, 1.0, None), line(1, 0.0, None)]], Judgement("accuracy"), 0)
    assert "maj@1" not in found and found["unparsed"] == 1.0 and not math.isnan(found["mean@2"]["value"])
