"""Write a small picture data set: crops of the photographs that scikit-image ships, as JPEG files.

The label of a file is the picture that it was cut from: data/<label>/NNN.jpg. Every file has its
own random generator, so an interrupted run is completed by the next one, file for file the same.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import skimage
from PIL import Image

PICTURES = {
    "astronaut": ("astronaut.png",),
    "cat": ("chelsea.png",),
    "coffee": ("coffee.png",),
    "galaxies": ("hubble_deep_field.jpg",),
    "motorcycle": ("motorcycle_left.png", "motorcycle_right.png"),
    "retina": ("retina.jpg",),
    "rocket": ("rocket.jpg",),
    "tissue": ("ihc.png",),
}
SIDE = 960
QUALITY = 90


def cut(picture: Image.Image, rng: random.Random) -> Image.Image:
    """Return one random square of the picture, scaled to SIDE x SIDE."""
    side = int(min(picture.size) * rng.uniform(0.5, 0.95))
    left = rng.randint(0, picture.width - side)
    top = rng.randint(0, picture.height - side)
    box = (left, top, left + side, top + side)
    return picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box)


def write_label(root: Path, label: str, count: int) -> int:
    """Write the missing files of one label and return how many there were."""
    folder = root / label
    folder.mkdir(parents=True, exist_ok=True)
    missing = [n for n in range(count) if not (folder / f"{n:03d}.jpg").exists()]
    if not missing:
        return 0
    source = Path(skimage.__file__).parent / "data"
    pictures = [Image.open(source / name).convert("RGB") for name in PICTURES[label]]
    for number in missing:
        rng = random.Random(f"{label}/{number}")
        image = cut(rng.choice(pictures), rng)
        part = folder / f".{number:03d}.part"
        image.save(part, format="JPEG", quality=QUALITY)
        os.replace(part, folder / f"{number:03d}.jpg")
    return len(missing)


def main() -> None:
    """Write what is missing and say what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--count", type=int, default=120, help="files a label")
    args = parser.parse_args()

    start = time.time()
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = [pool.submit(write_label, args.data, label, args.count) for label in PICTURES]
        written = sum(job.result() for job in jobs)
    files = list(args.data.glob("*/*.jpg"))
    size_mb = sum(file.stat().st_size for file in files) / 1e6
    print(f"{args.data}: {len(files)} files, {size_mb:.0f} MB, {written} of them new", end=", ")
    print(f"{time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
