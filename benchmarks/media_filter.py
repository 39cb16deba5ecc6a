"""How long the over-long filter takes on 10,000 rows with a picture of 640x480: the first start and the second.

OMP_NUM_THREADS=1 python benchmarks/media_filter.py [FOLDER FOR ABOUT 3 GB OF FILES]

The rows name PNG files (jsonl), or hold them (parquet). Every start is a process of its own, as a run is. The
numbers are wall seconds: of opening the table, which the datasets library copies the first time, and of checking and
measuring its rows. The files were just written, so they come from the memory of the machine.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = 10_000
DESIGNS = 50
START = """
import sys, time
from easyr1.data.chat import Chat
from easyr1.data.dataset import Limits, load_prompts
from easyr1.data.heads import Heads
from easyr1.data.sources import load_rows
chat = Chat.load(sys.argv[1])
media = chat.media_store(262144, 4194304, heads=Heads())
started = time.perf_counter()
load_rows(sys.argv[2])
opened = time.perf_counter()
prompts = load_prompts(sys.argv[2], chat, media, Limits(2048))
ended = time.perf_counter()
print(f"table {opened - started:.1f} s, rows {ended - opened:.1f} s, {prompts.report}, {len(media)} pictures")
"""


def designs() -> list[bytes]:
    """PNG files of 640x480 with a little noise, as photographs have."""
    import io

    import numpy as np
    from PIL import Image

    made = []
    for seed in range(DESIGNS):
        random = np.random.default_rng(seed)
        coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((640, 480))
        noisy = np.asarray(coarse).astype(int) + random.integers(-1, 2, (480, 640, 1))
        buffer = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, format="PNG")
        made.append(buffer.getvalue())
    return made


def unlike(png: bytes, number: int) -> bytes:
    """The same picture as another file: its number stands in a text chunk behind the header."""
    body = b"tEXt" + f"Number\0{number}".encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:33] + chunk + png[33:]


def write(folder: Path) -> list[Path]:
    """The same rows as lines that name files, and as a table that holds them."""
    import json

    import pyarrow
    import pyarrow.parquet

    files = folder / "pictures"
    files.mkdir()
    made = designs()
    schema = pyarrow.schema(
        [
            ("problem", pyarrow.string()),
            ("answer", pyarrow.string()),
            ("images", pyarrow.list_(pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]))),
        ]
    )
    lines = []
    with pyarrow.parquet.ParquetWriter(folder / "rows.parquet", schema, compression="none") as table:
        for number in range(ROWS):
            data = unlike(made[number % DESIGNS], number)
            (files / f"{number}.png").write_bytes(data)
            row = {"problem": f"<image>How many in picture {number}?", "answer": str(number)}
            lines.append(row | {"images": [f"pictures/{number}.png"]})
            table.write_table(pyarrow.Table.from_pylist([row | {"images": [{"bytes": data, "path": None}]}], schema))
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    settled = (folder / "rows.jsonl").stat().st_mtime_ns - 10**11
    for file in [*files.iterdir(), folder / "rows.jsonl", folder / "rows.parquet"]:
        os.utime(file, ns=(settled, settled))
    return [folder / "rows.jsonl", folder / "rows.parquet"]


def main() -> None:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import tiny

    folder = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        model = tiny.save("qwen2_5_vl", folder / "model")
        for path in write(folder):
            caches = {"EASYR1_CACHE": str(folder / "cache"), "HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
            for start in ("first", "second"):
                command = [sys.executable, "-c", START, str(model), str(path)]
                environment = os.environ | caches | {"PYTHONPATH": str(ROOT)}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                sys.stdout.write(f"{path.name}, {start} start: {done.stdout}")
                sys.stdout.flush()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
