"""The small files of a model (configuration, tokenizer, processor, template): found, loaded, and copied unchanged.

Knows hub names and file names. Does not know what the files mean, and never touches weights.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from easyr1.data.hub import download_model
from easyr1.data.processor import MODEL_KEY, TOKENIZER_KEY, family_processor
from easyr1.errors import ConfigError, first_line

FILES_FOLDER = "huggingface"  # in an actor's folder of a checkpoint

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "*_tokens*.json")
TEMPLATE_FILES = ("chat_template.*", "additional_chat_templates/*.jinja")
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
GENERATION_FILES = ("generation_config.json",)
CODE_FILES = ("*.py",)
WEIGHT_FILES = (  # in the order in which they are looked for
    ("model*.safetensors", "model*.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model*.bin.index.json"),
)
SMALL_FILES = ("config.json", *GENERATION_FILES, *CODE_FILES, *TOKENIZER_FILES, *TEMPLATE_FILES, *PROCESSOR_FILES)


@dataclass(frozen=True)
class ModelFiles:
    """Where the files of a model lie on this machine; tokenizer and processor may belong to another model."""

    model: Path
    tokenizer: Path
    processor: Path
    trust_remote_code: bool = False

    @classmethod
    def find(cls, model_path: str, tokenizer_path: str | None = None, trust_remote_code: bool = False) -> "ModelFiles":
        """Folders of a local or hub model; a hub model's small files are downloaded, or found in the hub's cache."""
        model = _local_folder(model_path, MODEL_KEY)
        if not tokenizer_path:
            return cls(model, model, model, trust_remote_code)
        tokenizer = _local_folder(tokenizer_path, TOKENIZER_KEY)
        has_processor = any((tokenizer / name).is_file() for name in PROCESSOR_FILES)
        return cls(model, tokenizer, tokenizer if has_processor else model, trust_remote_code)

    def load_config(self) -> Any:
        from transformers import AutoConfig

        with _told(MODEL_KEY, self.model):
            return AutoConfig.from_pretrained(self.model, trust_remote_code=self.trust_remote_code)

    def load_tokenizer(self) -> Any:
        """The tokenizer; its chat template may be one that the model keeps in its processor's file."""
        from transformers import AutoTokenizer

        with _told(TOKENIZER_KEY, self.tokenizer):
            tokenizer = AutoTokenizer.from_pretrained(self.tokenizer, trust_remote_code=self.trust_remote_code)
        older = self.tokenizer / "chat_template.json"
        if tokenizer.chat_template is None and older.is_file():
            tokenizer.chat_template = json.loads(older.read_text(encoding="utf-8")).get("chat_template")
        return tokenizer

    def load_image_processor(self) -> Any:
        """The image processor, computing with Pillow and numpy on every machine, with torchvision or without."""
        from transformers import AutoImageProcessor

        with _told(MODEL_KEY, self.processor):
            return AutoImageProcessor.from_pretrained(
                self.processor, trust_remote_code=self.trust_remote_code, backend="pil"
            )

    def load_family_processor(self, config: Any, image_processor: Any, tokenizer: Any) -> Any:
        """The processor of the model's family around these two; what its files set, it keeps."""
        saved: dict[str, Any] = {}
        for folder, name in (
            (self.tokenizer, "tokenizer_config.json"),
            *((self.processor, n) for n in PROCESSOR_FILES),
        ):
            if (folder / name).is_file():
                found = json.loads((folder / name).read_text(encoding="utf-8"))
                saved["processor_class"] = found.get("processor_class") or saved.get("processor_class")
                saved |= found if name == "processor_config.json" else {}
        return family_processor(config, saved, image_processor, tokenizer)

    def copy(self, folder: Path, chat_template: str | None = None) -> list[Path]:
        """Copy tokenizer, template, processor and generation files into `folder`; `chat_template` overrides theirs.

        Copied as they came, never saved anew: saving rewrites them in the form of the installed transformers.
        Returns the files written.
        """
        written = self._copy_matching(self.model, GENERATION_FILES, folder)
        written += self._copy_matching(self.processor, PROCESSOR_FILES, folder)
        written += self._copy_matching(self.tokenizer, TOKENIZER_FILES, folder)
        if self.trust_remote_code:
            written += self._copy_matching(self.model, CODE_FILES, folder)
        if chat_template is None:
            return written + self._copy_matching(self.tokenizer, TEMPLATE_FILES, folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TEMPLATE_FILE).write_text(chat_template, encoding="utf-8")
        return [*written, folder / TEMPLATE_FILE]

    def _copy_matching(self, source: Path, patterns: Iterable[str], folder: Path) -> list[Path]:
        written = []
        for path in sorted({path for pattern in patterns for path in source.glob(pattern) if path.is_file()}):
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            written.append(target)
        return written


def model_folder(name: str, weights: bool = False) -> Path:
    """The folder of a local or hub model; of a hub model the small files are fetched, and if asked the weights.

    Raises OSError or ValueError where there is none.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.absolute()
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise OSError(f"there is no folder {folder.absolute()}")
    for patterns in WEIGHT_FILES if weights else ():
        folder = download_model(name, (*SMALL_FILES, *patterns))
        if any(folder.glob(patterns[0])):
            return folder
    return download_model(name, SMALL_FILES)


def has_weights(folder: Path) -> bool:
    """Whether a model's folder holds files of weights; reads none."""
    return any(any(folder.glob(patterns[0])) for patterns in WEIGHT_FILES)


def _local_folder(name: str, key: str) -> Path:
    with _told(key, name):
        return model_folder(name)


@contextmanager
def _told(key: str, given: str | Path) -> Iterator[None]:
    """Turn what transformers and the hub raise for missing or broken files into a ConfigError with a cure."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError, ImportError, KeyError) as error:
        reason = first_line(error)
        raise ConfigError(
            key,
            f"{given} cannot be loaded ({reason}). Give a folder with config.json, tokenizer and, for a vision model, "
            "preprocessor_config.json, or a hub name; HF_ENDPOINT sets a mirror, USE_MODELSCOPE_HUB=1 the other "
            "hub, HF_HUB_OFFLINE=1 uses what was downloaded before.",
        ) from error
