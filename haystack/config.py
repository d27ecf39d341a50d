"""Settings as dataclasses: defaults, then a YAML file, then ``key=value``; nothing unknown passes.

The dataclasses stand with what they configure; here is only how they are filled.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from haystack.errors import InputError

Config = TypeVar("Config")

_COMMAND_LINE = "command line"
_BOOLEAN = "tag:yaml.org,2002:bool"
_EXPECTED: Mapping[Any, str] = {
    int: "an integer",
    int | None: "an integer or null",
    float: "a number",
    float | None: "a number or null",
    str: "text",
    str | None: "text or null",
    bool: "true or false",
    list[str]: "a list of texts",
    list[float]: "a list of numbers",
}


class _Loader(yaml.SafeLoader):
    """YAML without YAML 1.1's further booleans: ``on`` is a predicate, not true."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(true|false)$"), list("tf"))


def parse_yaml(text: str, *, path: str | Path) -> Any:
    """Parse YAML; only ``true`` and ``false`` are booleans.

    Raises:
        InputError: it is not valid; ``path`` says where.
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"not valid YAML: {reason}", path=path) from error


def load_config(
    base: Config,
    file: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    ignore: Collection[str] = (),
) -> Config:
    """Lay a YAML file and ``key=value`` overrides over ``base``, in this order.

    Args:
        base: a dataclass instance with the defaults; may nest dataclasses.
        file: a YAML file, or None.
        overrides: ``key=value`` or ``section.key=value``; the value is read as YAML.
        ignore: top-level keys of the file that are records, not settings.

    Returns:
        A new instance of the same class.

    Raises:
        InputError: unreadable file, unknown key (the nearest is named), or wrong type.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    layers: list[tuple[Mapping[str, Any], str | Path]] = []
    if file is not None:
        content = _read_yaml(Path(file))
        layers.append(({k: v for k, v in content.items() if k not in ignore}, file))
    known = _known_keys(type(base))
    layers.extend((_parse_override(override, known), _COMMAND_LINE) for override in overrides)

    config = OmegaConf.structured(type(base))
    sections = [key for key, kind in known.items() if dataclasses.is_dataclass(kind)]
    for node in (config, *(OmegaConf.select(config, key) for key in sections)):
        OmegaConf.set_readonly(node, False)  # frozen dataclasses come out read-only
    config = OmegaConf.merge(config, _literal(dataclasses.asdict(base)))  # type: ignore[call-overload]
    for layer, origin in layers:
        _check_keys(layer, origin, known)
        try:
            config = OmegaConf.merge(config, _literal(layer))
        except OmegaConfBaseException as error:
            raise _type_error(error, layer, origin, known) from error
    merged: Config = OmegaConf.to_object(config)  # type: ignore[assignment]
    return merged


def read_key(file: str | Path, key: str) -> Any:
    """The value of a top-level key of a YAML file, or None; says which kind of settings it holds.

    Raises:
        InputError: unreadable file.
    """
    return _read_yaml(Path(file)).get(key)


def _known_keys(schema: type, prefix: str = "") -> dict[str, Any]:
    hints = get_type_hints(schema)
    keys: dict[str, Any] = {}
    for entry in dataclasses.fields(schema):  # type: ignore[arg-type]
        kind = hints[entry.name]
        keys[prefix + entry.name] = kind
        if dataclasses.is_dataclass(kind):
            keys.update(_known_keys(kind, f"{prefix}{entry.name}."))  # type: ignore[arg-type]
    return keys


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"), path=path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the configuration: {error}", path=path) from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise InputError(f"expected 'key: value' entries, got {type(content).__name__}", path=path)
    return content


def _literal(value: Any) -> Any:
    """``value`` with ``${`` escaped: file names are taken as they are, nothing is interpolated."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    return [_literal(item) for item in value] if isinstance(value, list) else value


def _parse_override(override: str, known: Mapping[str, Any]) -> Mapping[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(
            f"expected key=value, for example seed=7, got {override!r}", path=_COMMAND_LINE
        )
    if known.get(key) is str:
        return _nested(key, text)  # a path may hold what YAML would read as something else
    if text[:1] in ("[", "{") and text[-1] not in "]}":
        raise InputError(
            f"{override!r} breaks off; quote it for the shell: '{key}=[a, b]'", path=_COMMAND_LINE
        )
    return _nested(key, parse_yaml(text, path=f"{_COMMAND_LINE}, {key}") if text else "")


def _nested(key: str, value: Any) -> Mapping[str, Any]:
    nested = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return dict(nested)


def _check_keys(layer: Mapping[str, Any], origin: str | Path, known: Mapping[str, Any]) -> None:
    for key, value in _flatten(layer):
        if key not in known:
            settings = [name for name in known if not dataclasses.is_dataclass(known[name])]
            near = [name for name in settings if name.endswith("." + key)]
            near = near or difflib.get_close_matches(key, settings, n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise InputError(f"unknown key {key!r}{hint}", path=origin)
        if dataclasses.is_dataclass(known[key]) and not isinstance(value, Mapping):
            raise InputError(
                f"{key!r} is a section; give 'key: value' entries under it, got {value!r}",
                path=origin,
            )


def _flatten(layer: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in layer.items():
        rows.append((f"{prefix}{key}", value))
        if isinstance(value, Mapping):
            rows.extend(_flatten(value, f"{prefix}{key}."))
    return rows


def _type_error(
    error: Exception, layer: Mapping[str, Any], origin: str | Path, known: Mapping[str, Any]
) -> InputError:
    key = str(getattr(error, "full_key", "") or "")
    kind: Any = known.get(key)
    got = dict(_flatten(layer)).get(key)
    return InputError(f"{key!r} expects {_EXPECTED.get(kind, kind)}, got {got!r}", path=origin)
