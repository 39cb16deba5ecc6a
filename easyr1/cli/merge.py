"""`easyr1 merge CHECKPOINT`: the policy of a checkpoint as a folder for transformers, vLLM and the hub."""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from easyr1.errors import ConfigError

DESCRIPTION = """\
Write the trained model of a checkpoint as a Hugging Face folder: weights in safetensors files, configuration,
generation configuration, tokenizer, processor and chat template. Adapters (LoRA) are merged into the model that was
trained.
"""
EXAMPLES = """\
examples:
  easyr1 merge checkpoints/easy_r1/demo/global_step_40 --dry-run
  easyr1 merge checkpoints/easy_r1/demo/global_step_40 --output_path merged --dtype bfloat16
  easyr1 merge checkpoints/easy_r1/demo/global_step_40 --model_path ./Qwen2.5-VL-3B-Instruct   # the base of adapters
"""
SECONDS_BETWEEN_LINES = 2.0


def main(arguments: Sequence[str]) -> int:
    """Export a checkpoint; the last line of the output names the folder and how it is loaded."""
    given = parse(arguments)
    if not Path(given.checkpoint).expanduser().is_dir():  # told before torch is loaded
        raise ConfigError("CHECKPOINT", f"there is no folder {Path(given.checkpoint).expanduser().absolute()}")
    os.environ["TQDM_DISABLE"] = "1"  # transformers' bars would break into ours
    from easyr1.models.export import export
    from easyr1.tracking.progress import Progress
    from easyr1.tracking.screen import open_screen

    start = time.monotonic()
    progress = Progress(open_screen(), SECONDS_BETWEEN_LINES)
    folder = export(
        Path(given.checkpoint),
        None if given.output_path is None else Path(given.output_path),
        base=given.model_path,
        dtype=given.dtype,
        adapter_only=given.adapter_only,
        trust_remote_code=given.trust_remote_code,
        phase=progress.phase,
        dry_run=given.dry_run,
    )
    if given.dry_run:
        sys.stdout.write(f"dry run: the checkpoint is whole; {folder} would be written\n")
        return 0
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    sys.stdout.write(f"{size / 1e9:.3g} GB of weights written in {time.monotonic() - start:.1f} s\n")
    if given.hf_upload_path is not None:
        from easyr1.data.hub import upload

        with progress.phase(f"uploading to {given.hf_upload_path}"):
            sys.stdout.write(f"uploaded to {upload(folder, given.hf_upload_path)}\n")
    sys.stdout.write(f"{folder}: load it with {how_to_load(folder)}\n")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments, with one `checkpoint`; ends the process with status 2 for a wrong call."""
    parser = argparse.ArgumentParser(
        "easyr1 merge",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("place", nargs="?", metavar="CHECKPOINT", help="global_step_<k>, or the actor folder in it")
    for name in ("--local_dir", "--adapter_checkpoint"):
        where.add_argument(name, dest="option", metavar="CHECKPOINT", help="the same, as EasyR1 spells it")
    parser.add_argument(
        "--output_path", metavar="DIR", help="folder to write; default: CHECKPOINT's actor/huggingface"
    )
    parser.add_argument(
        "--model_path",
        "--base",
        metavar="BASE",
        help="folder or hub name of the model that adapters belong to, if it is not where it was in training",
    )
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), help="default: as trained; float32 for merged adapters"
    )
    parser.add_argument("--adapter_only", action="store_true", help="write the adapter as peft reads it, unmerged")
    parser.add_argument("--trust_remote_code", action="store_true", help="allow code that comes with the model")
    parser.add_argument(
        "--hf_upload_path", metavar="OWNER/NAME", help="then upload the folder to the hub, as a private model"
    )
    parser.add_argument("--dry-run", action="store_true", help="check the checkpoint, name the folder, write nothing")
    given = parser.parse_args(arguments)
    given.checkpoint = given.option if given.place is None else given.place
    name = given.hf_upload_path
    if name is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        parser.error(f"--hf_upload_path takes OWNER/NAME, not {name!r}")
    return given


def how_to_load(folder: Path) -> str:
    """One expression of Python that loads what is in the folder."""
    config_file = folder / "config.json"
    if not config_file.is_file():
        return f'peft.PeftModel.from_pretrained(base_model, "{folder}")'
    config = json.loads(config_file.read_text(encoding="utf-8"))
    if name := next((name for name in config.get("auto_map", {}) if name.startswith("AutoModel")), None):
        return f'transformers.{name}.from_pretrained("{folder}", trust_remote_code=True)'
    return f'transformers.{config["architectures"][0]}.from_pretrained("{folder}")'
