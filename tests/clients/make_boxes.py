"""Write what `yolo detect train` needs: pictures of squares, their boxes, a YAML, all in OUT."""

import sys
from pathlib import Path

import numpy
from PIL import Image

SIDE = 64

out = Path(sys.argv[1])
at = numpy.random.default_rng(0)
for part, count in (("train", 160), ("val", 8)):
    for kind in ("images", "labels"):
        (out / kind / part).mkdir(parents=True, exist_ok=True)
    for n in range(count):
        picture = at.integers(0, 80, (SIDE, SIDE, 3), dtype="uint8")
        size = int(at.integers(12, 28))
        left, top = (int(v) for v in at.integers(0, SIDE - size, 2))
        picture[top : top + size, left : left + size] = 220
        Image.fromarray(picture).save(out / "images" / part / f"{n}.png")
        box = [(left + size / 2) / SIDE, (top + size / 2) / SIDE, size / SIDE, size / SIDE]
        label = " ".join(["0", *(f"{v:.4f}" for v in box)])
        (out / "labels" / part / f"{n}.txt").write_text(label + "\n")
(out / "boxes.yaml").write_text(
    f"path: {out.resolve()}\ntrain: images/train\nval: images/val\nnames:\n  0: square\n"
)
