"""Operators that torchvision's package lacks beside a CPU build of torch.

Its compiled part is made for the CUDA build, does not load there, and torchvision then cannot be
imported, nor what imports it. Run with the environment's own python: it puts this file beside
torchvision and lets torchvision load it where its own operators are missing. No client's code is
touched.
"""

import shutil
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

HOOK = """

if not _has_ops():
    import torchvision_ops

    torchvision_ops.define()

    def _assert_has_ops():
        pass
"""


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes that no better box overlaps by more than the threshold."""
    order = scores.argsort(descending=True)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept = []
    while order.numel():
        best, order = order[0], order[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[order, :2])
        high = torch.minimum(boxes[best, 2:], boxes[order, 2:])
        common = (high - low).clamp(min=0).prod(dim=1)
        order = order[common <= iou_threshold * (area[best] + area[order] - common)]
    return torch.stack(kept) if kept else scores.new_zeros(0, dtype=torch.long)


def define() -> None:
    """Give torch the operators whose schemas `import torchvision` asks for."""
    global library
    library = torch.library.Library("torchvision", "FRAGMENT")  # gone when nobody holds it
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", nms, "CPU")


if __name__ == "__main__":
    packages = Path(sysconfig.get_paths()["purelib"])
    shutil.copy(__file__, packages / "torchvision_ops.py")
    extension = packages / "torchvision" / "extension.py"
    if HOOK not in (text := extension.read_text()):
        extension.write_text(text + HOOK)
