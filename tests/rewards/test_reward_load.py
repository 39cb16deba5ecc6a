"""The setting is checked before anything heavy starts, and every complaint names the key or the file."""

import subprocess
import sys
from pathlib import Path

import pytest

from easyr1.config.paths import find_file
from easyr1.errors import ConfigError, RewardError
from easyr1.rewards.load import FUNCTION_KEY, KWARGS_KEY, load_reward, split_spec

ROOT = Path(__file__).resolve().parents[2]
BATCH = "def compute_score(inputs, weight=0.5, *, power):\n    return [{'overall': 1.0} for _ in inputs]\n"


@pytest.fixture
def load(tmp_path):
    """Write a reward file and load one of its functions."""

    def write_and_load(code, function="compute_score", **kwargs):
        file = tmp_path / "mine.py"
        file.write_text(code)
        return load_reward(f"{file}:{function}" if function else str(file), kwargs, find_file)

    return write_and_load


def test_names_types_and_defaults(load, tmp_path):
    spec = load(BATCH, power=2)
    assert (spec.path, spec.function, spec.name, spec.kind) == (tmp_path / "mine.py", "compute_score", "mine", "batch")
    assert spec.kwargs == {"power": 2}
    spec = load("REWARD_NAME = 'geo'\nREWARD_TYPE = 'sequential'\ndef main(x, **kw): ...\n", function=None, any=1)
    assert (spec.function, spec.name, spec.kind, spec.kwargs) == ("main", "geo", "sequential", {"any": 1})


def test_the_path_may_hold_colons():
    assert split_spec("/data/a:b/file.py:score") == ("/data/a:b/file.py", "score")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (None, "no reward function is given"),
        (" ", "no reward function is given"),
        ("mine.py:", "not of the form path.py:function"),
        (":score", "not of the form path.py:function"),
        ("examples/reward_function/maths.py:compute_score", "did you mean 'math.py'"),
        ("examples/reward_function:compute_score", "is a folder"),
        (
            "examples/reward_function/math.py:compute_scores",
            "did you mean examples/reward_function/math.py:compute_score?",
        ),
        ("examples/reward_function/math.py", "no function 'main' (functions there: format_reward, accuracy_reward"),
        ("examples/reward_function/math.py:REWARD_NAME", "no function 'REWARD_NAME'"),
    ],
)
def test_a_wrong_setting_is_told_under_its_key(spec, told):
    with pytest.raises(ConfigError) as caught:
        load_reward(spec, {}, find_file)
    assert caught.value.key == FUNCTION_KEY
    assert told in str(caught.value)


def test_arguments_must_fit_the_signature(load):
    with pytest.raises(ConfigError, match="did you mean 'weight'") as caught:
        load(BATCH, wieght=1, power=2)
    assert caught.value.key == f"{KWARGS_KEY}.wieght"
    with pytest.raises(ConfigError, match=rf"needs power; set {KWARGS_KEY}\.power=") as caught:
        load(BATCH, weight=1)
    assert caught.value.key == KWARGS_KEY
    with pytest.raises(ConfigError, match="takes no argument of this name"):
        load(BATCH, inputs=1, power=2)  # the input itself is not a keyword argument


@pytest.mark.parametrize("signature", ["", "*, weight=1", "a, b, /", "**kw"])
def test_a_function_takes_exactly_one_input(load, signature):
    with pytest.raises(ConfigError, match=r"takes [02] inputs"):
        load(f"def compute_score({signature}): ...\n")


@pytest.mark.parametrize("signature", ["inputs", "inputs, /, *, a=1", "*inputs", "x, a=1, **kw"])
def test_other_ways_to_take_one_input(load, signature):
    assert load(f"def compute_score({signature}): ...\n").function == "compute_score"


def test_anything_callable_will_do(load):
    code = "class Judge:\n    def __call__(self, inputs, strict=False): ...\ncompute_score = Judge()\n"
    assert load(code, strict=True).kwargs == {"strict": True}


def test_an_unknown_reward_type_is_refused(load):
    with pytest.raises(RewardError, match=r"""REWARD_TYPE = 'parallel'; write "batch" .* "sequential" """):
        load("REWARD_TYPE = 'parallel'\n" + BATCH, power=1)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nowhere_to_be_found\n", ["ModuleNotFoundError", "line 1"]),
        ("def compute_score(:\n", ["SyntaxError", "line 1"]),
        ("def a():\n    return 1 / 0\nb = a()\n", ["ZeroDivisionError", "line 2", "line 3"]),
    ],
)
def test_a_broken_import_shows_the_users_lines_only(load, code, told):
    with pytest.raises(RewardError, match="cannot be imported") as caught:
        load(code)
    assert all(part in str(caught.value) for part in [*told, "mine.py"])
    assert "importlib" not in str(caught.value)
    assert "process.py" not in str(caught.value)


def test_a_file_that_exits_while_imported_is_told(load):
    with pytest.raises(
        RewardError, match=r"mine\.py: while it was imported the process ended by itself with exit code 3"
    ):
        load("import sys\nsys.exit(3)\n")


def test_a_file_may_import_its_neighbours_but_hides_no_module(load, tmp_path):
    (tmp_path / "neighbour.py").write_text("POINTS = 3\n")
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('hidden')\n")
    assert load("import colorsys\nfrom neighbour import POINTS\ndef compute_score(x, a=colorsys.rgb_to_hsv): ...\n")


def test_the_check_loads_no_torch_here_and_shipped_files_none_there():
    code = (
        "import sys; from easyr1.config.paths import find_file; from easyr1.rewards.load import load_reward\n"
        "for name in ('math', 'r1v', 'dapo'):\n"
        "    kwargs = dict.fromkeys(['max_response_length', 'overlong_buffer_length', 'overlong_penalty_factor'], 1)\n"
        "    spec = f'examples/reward_function/{name}.py:compute_score'\n"
        "    assert load_reward(spec, kwargs if name == 'dapo' else {}, find_file).name == name\n"
        "sys.exit(int('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
