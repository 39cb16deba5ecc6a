"""The base model of the quickstart: built where it is needed, in about half a minute, and kept in a cache."""

import hashlib
import os
import tempfile
from pathlib import Path

from easyr1 import __version__
from easyr1.config.load import load
from easyr1.config.paths import find_file
from easyr1.data.chat import Chat
from easyr1.data.dataset import Limits, load_prompts
from easyr1.engines import optimizer
from easyr1.examples.quickstart.cold_start import Lessons, cold_start
from easyr1.examples.quickstart.digits import SCANS_FILE, write_tasks
from easyr1.examples.quickstart.model import build_model, model_config, save_files
from easyr1.examples.quickstart.silence import no_bars
from easyr1.examples.quickstart.tokenizer import build_tokenizer
from easyr1.models.build import wrap
from easyr1.tracking.progress import Progress

HERE = Path(__file__).parent
CONFIG_FILE = HERE / "config.yaml"
CACHE_VARIABLE = "EASYR1_CACHE"


def cache_folder() -> Path:
    """Where bases are kept: quickstart/ below $EASYR1_CACHE, or else below ~/.cache/easyr1."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/easyr1").expanduser() / "quickstart"


def build_base(folder: Path, seed: int, progress: Progress, lessons: Lessons = Lessons()) -> Path:
    """The model folder of the base that belongs to `seed`, inside `folder`; built unless it is there already.

    It appears under its name only when it is complete: one that was interrupted is never taken for a base.
    """
    base = folder / f"base-{seed}-{content_key(lessons)}"
    if base.is_dir():
        return base
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder, ignore_cleanup_errors=True) as workshop:
        made = Path(workshop) / "base"
        _build(made, Path(workshop) / "tasks", seed, progress, lessons)
        try:
            made.rename(base)
        except OSError:
            if not base.is_dir():  # another process may have been first
                raise
    return base


def content_key(lessons: Lessons) -> str:
    """Changes with what the base is made of: code and settings here, optimizer, scans, prompt template, version."""
    template = find_file(str(load([f"config={CONFIG_FILE}"])[0].data.format_prompt), "data.format_prompt")
    digest = hashlib.sha256(f"{__version__} {lessons}".encode())
    for file in (*sorted(HERE.glob("*.py")), Path(optimizer.__file__), CONFIG_FILE, template, SCANS_FILE):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _build(folder: Path, rows: Path, seed: int, progress: Progress, lessons: Lessons) -> None:
    """Write tokenizer and configuration, then train the model on rows read with them, then write its weights."""
    data = load([f"config={CONFIG_FILE}"])[0].data
    tokenizer = build_tokenizer()
    config = model_config(tokenizer)
    save_files(folder, tokenizer, config)
    chat = Chat.load(str(folder), format_prompt=data.format_prompt)
    media = chat.media_store(data.min_pixels, data.max_pixels)
    assert media is not None
    tasks = write_tasks(rows, seed)
    with progress.phase("cold start: reading rows") as tick:
        prompts = load_prompts(str(tasks.train), chat, media, Limits(data.max_prompt_length), progress=tick)
    scored = wrap(build_model(config, seed))
    with progress.phase("cold start: training", lessons.num_steps) as tick:
        cold_start(scored, chat, prompts, media.inputs, lessons, seed, tick)
    with no_bars():
        scored.model.save_pretrained(folder)
