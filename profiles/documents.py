"""Documents to values and back: JSON or YAML text, schema 1, unknown keys and wrong types refused.

Tool side only. The rules of the documents are in docs/documents.md; `cls` is the key "class".
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar, get_args

import cattrs
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.strategies import configure_union_passthrough

from aiak_tune.errors import ProfileError

T = TypeVar("T")
SCHEMA = 1


def _strict(value: Any, kind: type[Any]) -> Any:
    """Refuse what is not already of the type: a document's "3" is no number."""
    if issubclass(kind, Enum):
        return kind(value)
    good = (int, float) if kind is float else kind
    if not isinstance(value, good) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return kind(value)


def _is_state_union(kind: Any) -> bool:
    members = get_args(kind)
    return len(members) > 1 and all(is_dataclass(m) and hasattr(m, "state") for m in members)


def _by_state(converter: cattrs.Converter, value: Any, kind: Any) -> Any:
    """Structure the member whose `state` the value names: measured, failed, pruned."""
    for member in get_args(kind):
        state = next(f.default for f in fields(member) if f.name == "state")
        if isinstance(value, dict) and value.get("state") == state:
            return converter.structure(value, member)
    raise TypeError(f"state is one of the known ones, got {value!r:.80}")


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (bool, int, float, str):
        converter.register_structure_hook(kind, _strict)
    converter.register_structure_hook_func(_is_state_union, partial(_by_state, converter))
    configure_union_passthrough(bool | int | float | str | None, converter)

    def names(cls: type[Any]) -> dict[str, Any]:
        return {f.name: override(rename="class") for f in fields(cls) if f.name == "cls"}

    converter.register_structure_hook_factory(
        is_dataclass,
        lambda cls: make_dict_structure_fn(
            cls, converter, _cattrs_forbid_extra_keys=True, **names(cls)
        ),
    )
    converter.register_unstructure_hook_factory(
        is_dataclass, lambda cls: make_dict_unstructure_fn(cls, converter, **names(cls))
    )
    return converter


_CONVERTER = _converter()


def to_document(value: Any, *, kind: str) -> dict[str, Any]:
    """Return the document of a value: plain dicts and lists, with its schema and kind."""
    body = _CONVERTER.unstructure(value)
    body.pop("schema", None)
    return {"schema": SCHEMA, "kind": kind, **_plain(body)}


def from_document(document: object, cls: type[T], *, kind: str) -> T:
    """Return the value a document holds.

    Raises:
        ProfileError: no mapping, another schema or kind, an unknown key, a wrong type.
    """
    if not isinstance(document, dict):
        raise ProfileError(f"a {kind} is a mapping, this is {type(document).__name__}")
    schema, found = document.get("schema"), document.get("kind")
    if schema != SCHEMA:
        raise ProfileError(f"{kind} of schema {schema!r}: this version reads schema {SCHEMA}")
    if found != kind:
        raise ProfileError(f"this document is a {found!r}, not a {kind}")
    body = {k: v for k, v in document.items() if k not in ("schema", "kind")}
    try:
        return _CONVERTER.structure(body, cls)
    except (cattrs.BaseValidationError, TypeError, ValueError, KeyError) as error:
        raise ProfileError(f"not a valid {kind}: {_explain(error)}") from error


def parse(text: str, *, what: str) -> object:
    """Return the JSON or YAML in `text`; ProfileError names `what` when it is neither."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ProfileError(f"{what} is nested too deeply to be a document of ours") from None
    except ValueError as json_error:
        import yaml

        try:
            document = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError):
            raise ProfileError(f"{what} is not valid JSON or YAML: {json_error}") from None
        if not isinstance(document, dict):
            raise ProfileError(f"{what} is not valid JSON or YAML: {json_error}") from None
        return document


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(getattr(k, "value", k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    return getattr(value, "value", value)


def _explain(error: BaseException) -> str:
    if isinstance(error, cattrs.BaseValidationError):
        return "; ".join(cattrs.transform_error(error)[:3])
    return f"{type(error).__name__}: {error}"
