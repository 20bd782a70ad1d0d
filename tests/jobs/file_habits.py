"""What jobs do with checkpoints, in a folder with a user's, under the stand-ins and any Python.

Ends with an error where something looks other than the job made it. Without torch: the stand-ins
need none, and builds for other Pythons are not at hand.
"""

import glob
import os
import shutil
import sys
from os import remove  # before the stand-ins: a script's own names are found
from pathlib import Path

from aiak_tune.agent.file_calls import redirect_file_calls
from aiak_tune.agent.file_moves import redirect_moves
from aiak_tune.agent.footprints import Footprints
from aiak_tune.agent.guest import GUEST
from aiak_tune.agent.mirror import Mirror

run_dir = Path(sys.argv[1])
mirror = Mirror(run_dir, Footprints(run_dir))
redirect_file_calls(mirror)
redirect_moves(mirror)


def same(found: object, wanted: object) -> None:
    """Say what is not as it should be, by its line."""
    if found != wanted:
        raise SystemExit(f"line {sys._getframe(1).f_lineno}: {found!r}, not {wanted!r}")


with open("last.pt.tmp.pt", "wb") as file:
    file.write(b"new")
os.replace("last.pt.tmp.pt", "last.pt")
same(Path("last.pt").read_bytes(), b"new")
Path("x.ckpt").write_bytes(b"x")
same(Path("x.ckpt").stat().st_size, 1)
Path("x.ckpt").unlink()
same(Path("x.ckpt").exists(), False)
remove("best.pt")
same((Path("best.pt").exists(), os.path.exists("best.pt")), (False, False))
same(sorted(p.name for p in Path(".").iterdir()), ["last.pt", "old"])
same([p.name for p in Path(".").glob("*.pt")], ["last.pt"])
same(sorted(map(str, Path(".").rglob("*.pt"))), ["last.pt", "old/first.pt"])
same(sorted(glob.glob("**/*.pt", recursive=True)), ["last.pt", "old/first.pt"])
shutil.copytree("old", "copied")
same(Path("copied/first.pt").read_bytes(), b"user")
same(sorted(map(str, Path("copied").rglob("*"))), ["copied/first.pt"])
shutil.rmtree("old")
same(Path("old").exists(), False)
Path("old").mkdir()
Path("old/n.txt").write_text("n")
same(os.listdir("old"), ["n.txt"])
Path("last.pt").rename("z.pt")
same((Path("z.pt").read_bytes(), Path("last.pt").exists()), (b"new", False))
Path("latest").symlink_to("z.pt")
same(Path("latest").read_bytes(), b"new")
if sys.version_info >= (3, 14):
    Path("z.pt").copy("zz.pt")  # type: ignore[attr-defined,unused-ignore]
    same(Path("zz.pt").read_bytes(), b"new")
Path("log.txt").write_text("a")
GUEST.detach()
theirs = sorted(str(p) for p in Path(".").rglob("*") if p.is_file())
same(theirs, ["best.pt", "last.pt", "log.txt", "old/first.pt"])
same({Path(p).read_bytes() for p in theirs if p != "log.txt"}, {b"user"})
