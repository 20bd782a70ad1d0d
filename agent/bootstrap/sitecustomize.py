"""Found first on the job's PYTHONPATH: starts the agent in each Python process of the job.

It runs before anything of the job, in every interpreter the command starts (of another version
and environment than the tool's too), so: standard library only, no import that costs, no thread,
one line in the file of births. The agent itself starts only once the job imports torch. The
`sitecustomize` that this one hides is run as if we were not here.
"""

import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


class _OwnPackage:
    """Makes `aiak_tune` importable by its location, and nothing else that lies beside it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [_ROOT]) if name == "aiak_tune" else None


class _AfterTorch:
    """Calls the agent when `import torch` is done, and is gone then.

    A look for torch's spec is no import yet: libraries ask whether it is there long before.
    """

    searching = False

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torch" or cls.searching:
            return None
        cls.searching = True
        try:
            spec = cls._next_spec(name, path, target)
        finally:
            cls.searching = False
        if spec is not None and spec.loader is not None:
            cls._follow(spec.loader)
        return spec

    @classmethod
    def _next_spec(cls, name, path, target):
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not cls else None
            if spec is not None:
                return spec
        return None

    @classmethod
    def _follow(cls, loader):
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module):
            execute(module)
            if cls in sys.meta_path:
                sys.meta_path.remove(cls)
                vars(loader).pop("exec_module", None)
                _arm(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that takes none: the job goes on without the agent
            pass


def _arm(torch):
    _tell("torch", "%d\n" % os.getpid())
    try:
        from aiak_tune.agent.arm import arm

        arm(torch)
    except Exception:  # not even a broken installation of ours may break the job's import
        import traceback

        _tell("fault-%d.txt" % os.getpid(), traceback.format_exc())


def _tell(name, text):
    try:
        path = os.path.join(os.path.dirname(os.environ["AIAK_TUNE_SPEC"]), name)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, text.encode("utf-8", "replace"))
        finally:
            os.close(handle)
    except OSError:
        pass


def _start():
    if not os.environ.get("AIAK_TUNE_SPEC"):
        return
    # Before 3.10 there is no orig_argv, and before 3.8 no argv yet.
    argv = " ".join(getattr(sys, "orig_argv", getattr(sys, "argv", [])))[:500].replace("\n", " ")
    _tell(
        "births",
        "%d %d %d.%d %s\n" % ((os.getpid(), os.getppid()) + sys.version_info[:2] + (argv,)),
    )
    if sys.version_info >= (3, 10):
        sys.meta_path[:0] = [_OwnPackage, _AfterTorch]


def _run_hidden():
    """Import the sitecustomize that ours hides; its own faults are site.py's to report."""
    sys.path[:] = [p for p in sys.path if p not in (_HERE, os.path.dirname(__file__))]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


try:
    _start()
finally:
    _run_hidden()
