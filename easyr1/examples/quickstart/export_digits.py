"""How examples/data/digits.parquet was made, once, from the scans that scikit-learn ships.

Run it as `python -m easyr1.examples.quickstart.export_digits FILE` in an environment that also has scikit-learn; the
quickstart itself needs neither. One row is one scan: `image`, an 8x8 grey PNG file, bright ink on black, and `label`,
the digit. The scans keep their order.
"""

import io
import sys
from typing import Any

import datasets
import numpy as np
from PIL import Image

INK_LEVELS = 16  # of a full pixel; the scans count ink from 0 to 16


def png(ink: np.ndarray) -> bytes:
    """(8, 8) ink levels -> a grey PNG file; 16 levels fit into 8 bits without loss."""
    buffer = io.BytesIO()
    grey = np.rint(ink * (255 / INK_LEVELS)).astype(np.uint8)
    Image.fromarray(grey).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def export(path: str) -> int:
    """Write all scans to a parquet file. Returns how many there are."""
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    scans: Any = load_digits()
    rows = [
        {"image": {"bytes": png(ink), "path": f"{number:04d}.png"}, "label": int(label)}
        for number, (ink, label) in enumerate(zip(scans.images, scans.target, strict=True))
    ]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_list(rows, features=features).to_parquet(path)
    return len(rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m easyr1.examples.quickstart.export_digits FILE.parquet")
    sys.stdout.write(f"wrote {export(sys.argv[1])} scans to {sys.argv[1]}\n")
