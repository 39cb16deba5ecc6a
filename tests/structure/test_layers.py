"""Who may import whom: files of the same layer or a lower one, and each heavy library behind its own door."""

import ast
import sys
from pathlib import Path

import pytest
from python_files import functions, imported_modules, source_files, tree_of

LAYERS = {
    "cli": 6,
    "examples": 6,
    "trainer": 5,
    "cluster": 4,
    "tracking": 4,
    "engines": 3,
    "models": 2,
    "data": 2,
    "rewards": 2,
    "algorithms": 1,
    "config": 0,
    "balance": 0,
    "batch": 0,
    "errors": 0,
    "manifest": 0,
    "seeding": 0,
}
TOP = 6  # verl/ and scripts/

DOORS = {  # the longest path that fits counts
    "easyr1": {"numpy"},
    "easyr1/batch.py": {"numpy", "torch"},
    "easyr1/config": set(),
    "easyr1/config/load.py": {"omegaconf", "yaml"},
    "easyr1/algorithms": {"torch"},
    "easyr1/rewards": {"numpy", "mathruler", "math_verify"},
    "easyr1/data": {
        "numpy",
        "torch",
        "transformers",
        "datasets",
        "huggingface_hub",
        "PIL",
        "jinja2",
        "modelscope",
        "av",
    },
    "easyr1/models": {"numpy", "torch", "transformers", "peft", "safetensors"},
    "easyr1/engines": {"numpy", "torch", "safetensors"},
    "easyr1/engines/optimizer.py": {"torch", "optimi"},
    "easyr1/engines/rollout_vllm.py": {"numpy", "torch", "vllm"},
    "easyr1/cluster": {"numpy", "torch", "ray"},
    "easyr1/tracking": {"numpy", "rich"},
    "easyr1/tracking/tables.py": {"PIL"},
    "easyr1/tracking/wandb_logger.py": {"wandb"},
    "easyr1/tracking/swanlab_logger.py": {"swanlab"},
    "easyr1/tracking/mlflow_logger.py": {"mlflow"},
    "easyr1/tracking/tensorboard_logger.py": {"tensorboard"},
    "easyr1/tracking/trackio_logger.py": {"trackio"},
    "easyr1/trainer": {"numpy", "torch", "rich"},
    "easyr1/cli": {"rich", "typer"},
    "easyr1/cli/env.py": {"torch"},
    "easyr1/config/supported.py": {"packaging"},
    "easyr1/examples": {"numpy", "PIL"},
    "easyr1/examples/arithmetic": {"torch", "transformers"},
    "easyr1/examples/reward_function": {"numpy", "mathruler", "math_verify", "sympy"},
    "easyr1/examples/quickstart": {
        "numpy",
        "torch",
        "transformers",
        "tokenizers",
        "datasets",
        "PIL",
        "sklearn",
        "rich",
    },
    "verl": set(),
    "scripts": {"rich"},
}
OPTIONAL = {
    "av",
    "optimi",
    "vllm",
    "peft",
    "wandb",
    "swanlab",
    "mlflow",
    "tensorboard",
    "trackio",
    "math_verify",
    "modelscope",
    "sklearn",
}  # never imported with a module


def layer_of(file: str) -> int:
    """The layer of a path below the root."""
    top, *rest = Path(file).with_suffix("").parts
    if top != "easyr1":
        return TOP
    return 0 if rest == ["__init__"] else LAYERS[rest[0]]


def layer_of_module(module: str) -> int:
    """The layer of easyr1.something.and.more; what is in no folder (easyr1.__version__) belongs to the lowest."""
    parts = module.split(".")
    return LAYERS.get(parts[1], 0) if len(parts) > 1 else 0


def door_of(file: str) -> set[str]:
    """The third-party packages that a file may import."""
    path = Path(file)
    return next(DOORS[place.as_posix()] for place in (path, *path.parents) if place.as_posix() in DOORS)


def climbing_imports(tree: ast.AST, file: str) -> list[str]:
    """Imports of a higher layer."""
    return [
        f"{file}:{line} imports {module}"
        for module, line in imported_modules(tree, file)
        if module.split(".")[0] == "easyr1" and layer_of_module(module) > layer_of(file)
    ]


def closed_doors(tree: ast.AST, file: str) -> list[str]:
    """Imports of third-party packages that have their door elsewhere."""
    own = {"easyr1", "verl", "scripts", *sys.stdlib_module_names}
    return [
        f"{file}:{line} imports {module}"
        for module, line in imported_modules(tree, file)
        if module.split(".")[0] not in own | door_of(file)
    ]


def eager_imports(tree: ast.Module, file: str) -> list[str]:
    """Optional packages imported with the module instead of in the function that needs them."""
    lazy = {line for _, node in functions(tree) for _, line in imported_modules(node, file)}
    return [
        f"{file}:{line} imports {module}"
        for module, line in imported_modules(tree, file)
        if module.split(".")[0] in OPTIONAL and line not in lazy
    ]


@pytest.mark.parametrize("file", source_files())
def test_every_file_belongs_to_a_layer_and_imports_downwards(file):
    assert climbing_imports(tree_of(file), file) == []


@pytest.mark.parametrize("file", source_files())
def test_third_party_packages_come_in_by_their_doors(file):
    assert closed_doors(tree_of(file), file) == []
    assert eager_imports(tree_of(file), file) == []


def test_there_are_files_to_read():
    assert len(source_files()) > 30


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("easyr1/models/build.py", "from easyr1.engines.pack import pack"),
        ("easyr1/batch.py", "def f():\n    from easyr1 import trainer"),
        ("easyr1/data/media.py", "from ..tracking import clock"),
    ],
)
def test_a_climbing_import_is_seen(file, code):
    assert len(climbing_imports(ast.parse(code), file)) == 1


def test_an_import_by_another_door_is_seen():
    assert closed_doors(ast.parse("import transformers.models"), "easyr1/engines/train.py")
    assert closed_doors(ast.parse("from omegaconf import OmegaConf"), "easyr1/config/resolve.py")
    assert not closed_doors(ast.parse("import os.path, torch.nn"), "easyr1/engines/train.py")
    assert eager_imports(ast.parse("import wandb"), "easyr1/tracking/wandb_logger.py")
    assert not eager_imports(ast.parse("def f():\n    import wandb"), "easyr1/tracking/wandb_logger.py")
