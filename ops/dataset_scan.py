"""What in a DataLoader's dataset forbids moving its work to other processes.

A bounded walk over the objects that the dataset holds: cheap enough for the job's start, blind to
what lies deeper. Standard library and torch.
"""

from __future__ import annotations

import functools
import inspect
import io
import random
import socket
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

NODES = 400  # objects looked at
DEPTH = 5
ITEMS = 16  # of each container
# Packages whose objects keep a file, a connection or a decoder's position.
HANDLES = frozenset({"av", "decord", "h5py", "lmdb", "psycopg", "psycopg2", "pymongo", "redis"}) | {
    "sqlite3",
    "tables",
}
LMDB = frozenset({"Environment", "Transaction", "Cursor"})  # the C module names no package
# Not walked and not searched for globals: large, and known not to hold a job's own handles.
LIBRARIES = frozenset({"builtins", "numpy", "pandas", "pyarrow", "torch"})
SCALARS = (bool, int, float, complex, str, bytes, type(None))


def obstacles(loader: Any) -> tuple[str, ...]:
    """Return why the loader's worker settings must be left alone, a sentence each."""
    if not isinstance(loader, DataLoader):
        return (f"{type(loader).__name__} is no DataLoader of torch",)
    found = list(loader_obstacles(loader))
    found += iterable_obstacles(loader)
    # One entry for each kind: a list of 16 open files is one fact.
    held: dict[str, str] = {}
    for path, value in walk({"dataset": loader.dataset, "collate_fn": loader.collate_fn}):
        for name, what in troubles(path, value):
            held.setdefault(what, f"{name} {what}")
    return (*found, *held.values())


def loader_obstacles(loader: DataLoader[Any]) -> Iterator[str]:
    """Yield what speaks against a change in the loader itself."""
    if type(loader)._get_iterator is not DataLoader._get_iterator:
        yield f"{type(loader).__name__} makes its own iterators"
    if not getattr(loader, "in_order", True):
        yield "in_order=False: the order of batches depends on the workers"
    if isinstance(loader.dataset, (IterDataPipe, MapDataPipe)):
        yield "a data pipe shares its shuffling seed with its workers in its own way"


def iterable_obstacles(loader: DataLoader[Any]) -> Iterator[str]:
    """Yield what speaks against more workers for an iterable dataset."""
    dataset = loader.dataset
    if not isinstance(dataset, IterableDataset):
        return
    name = type(dataset).__name__
    if not mentions_worker_info(type(dataset)):
        yield f"{name} does not ask get_worker_info: each worker would yield every sample again"
    if loader.batch_size is None:
        yield f"{name} makes whole batches itself: what a worker's share is only it can know"


def mentions_worker_info(cls: type) -> bool:
    """Whether the class or a base of it asks for its worker; False where no source is found."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in LIBRARIES or base.__module__ == "typing":
            continue
        try:
            if "get_worker_info" in inspect.getsource(base):
                return True
        except (OSError, TypeError):
            continue
    return False


def walk(root: object) -> Iterator[tuple[str, object]]:
    """Yield (path, object) breadth first within the bounds above, what is not scalar once."""
    pending: deque[tuple[str, object, int]] = deque([("", root, 0)])
    seen: set[int] = set()
    left = NODES
    while pending and left:
        path, value, depth = pending.popleft()
        if id(value) in seen:
            continue
        if not isinstance(value, SCALARS):
            seen.add(id(value))
        left -= 1
        yield path, value
        if depth < DEPTH:
            pending.extend((p, v, depth + 1) for p, v in children(path, value))


def children(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the objects that `value` holds."""
    match value:
        case dict():
            for key, item in islice(value.items(), ITEMS):
                yield (f"{path}[{key!r:.40}]" if path else str(key)), item
        case list() | tuple() | set() | frozenset() | deque():
            for i, item in enumerate(islice(value, ITEMS)):
                yield f"{path}[{i}]", item
        case functools.partial():
            yield f"{path}.func", value.func
            yield f"{path}.args", value.args
            yield f"{path}.keywords", value.keywords
        case types.FunctionType():
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                yield from ((f"{path}:{name}", c) for c in contents(cell))
        case types.MethodType():
            yield path, value.__self__
            yield path, value.__func__
        case type() | types.ModuleType() | torch.Tensor():
            return
        case _ if package(value) not in LIBRARIES - {"torch"}:
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                yield from ((f"{path}.{k}", v) for k, v in islice(attributes.items(), NODES))


def contents(cell: Any) -> tuple[object, ...]:
    """Return a closure cell's content; an empty cell has none."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def package(value: object) -> str:
    """Return the top-level package of the object's class."""
    return str(type(value).__module__).partition(".")[0]


def troubles(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield (name, what is wrong) of an object and of the globals that its methods use."""
    what = trouble(value)
    if what is not None:
        yield path, what
    for function in functions_of(value):
        for name in names_in(function.__code__):
            held = function.__globals__.get(name)
            what = None if held is None else trouble(held)
            if what is not None:
                yield f"{name}, which {function.__qualname__} uses,", what


def trouble(value: object) -> str | None:
    """Return what is wrong with taking this very object into a worker process."""
    if isinstance(value, io.IOBase):
        memory = isinstance(value, (io.BytesIO, io.StringIO)) or value is sys.stdin
        if memory or value.closed or not value.readable():
            return None
        return "is an open file: forked workers share its position and would mix up samples"
    if isinstance(value, socket.socket):
        return "is a socket: forked workers would share the connection"
    if isinstance(value, torch.Tensor):
        return "is on a GPU: forked workers cannot use it" if value.is_cuda else None
    kind = type(value).__name__
    if package(value) in HANDLES or (kind in LMDB and package(value) == "builtins"):
        return f"is a {package(value)} {kind}: its handle does not survive a fork"
    return "is a random generator: each worker would draw the same" if is_generator(value) else None


def is_generator(value: object) -> bool:
    """Whether it is a random generator that torch does not seed in each worker."""
    if isinstance(value, torch.Generator):
        return True
    if isinstance(value, random.Random):
        return value is not getattr(random, "_inst", None)  # the module's own is seeded
    if package(value) == "numpy" and type(value).__name__ in ("Generator", "RandomState"):
        own: Any = sys.modules.get("numpy.random.mtrand")
        return value is not getattr(own, "_rand", None)
    return False


def functions_of(value: object) -> Iterator[types.FunctionType]:
    """Yield the object itself if it is a function, else the methods of its class."""
    if isinstance(value, types.FunctionType):
        yield value
        return
    if isinstance(value, (*SCALARS, type, types.ModuleType)):
        return
    for base in type(value).__mro__:
        if base.__module__.partition(".")[0] not in LIBRARIES:
            yield from (f for f in vars(base).values() if isinstance(f, types.FunctionType))


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that a function and the functions in it may read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def state_of(dataset: object) -> Mapping[str, object]:
    """Return what tells whether the job has changed its dataset: values of scalars, identities."""
    return {
        path: value if isinstance(value, SCALARS) else (id(value), version(value))
        for path, value in walk(dataset)
    }


def version(value: object) -> int:
    """Return a number that changes with a container's length or a tensor's content."""
    if isinstance(value, torch.Tensor):
        return value._version
    return len(value) if isinstance(value, (dict, list, set, deque)) else 0
