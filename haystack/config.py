"""Settings as dataclasses: defaults, then a YAML file, then ``key=value``; nothing unknown passes.

The dataclasses stand with what they configure; here is only how they are filled.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from haystack.errors import InputError

Config = TypeVar("Config")

_COMMAND_LINE = "command line"


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
    layers.extend((_parse_override(override), _COMMAND_LINE) for override in overrides)

    known = _known_keys(type(base))
    config = OmegaConf.structured(base)
    sections = [key for key, kind in known.items() if dataclasses.is_dataclass(kind)]
    for node in (config, *(OmegaConf.select(config, key) for key in sections)):
        OmegaConf.set_readonly(node, False)  # frozen dataclasses come out read-only
    for layer, origin in layers:
        _check_keys(layer, origin, known)
        try:
            config = OmegaConf.merge(config, layer)
        except OmegaConfBaseException as error:
            raise _type_error(error, layer, origin, known) from error
    try:
        merged: Config = OmegaConf.to_object(config)  # type: ignore[assignment]
    except OmegaConfBaseException as error:  # an interpolation that leads nowhere
        raise InputError(f"the configuration cannot be resolved: {error}") from error
    return merged


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
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the configuration: {error}", path=path) from error
    except yaml.YAMLError as error:
        first = " ".join(str(error).split())
        raise InputError(f"not valid YAML: {first}", path=path) from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise InputError(f"expected 'key: value' entries, got {type(content).__name__}", path=path)
    return content


def _parse_override(override: str) -> Mapping[str, Any]:
    import yaml

    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"expected key=value, got {override!r}", path=_COMMAND_LINE)
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        first = " ".join(str(error).split())
        raise InputError(
            f"the value of {key!r} is not valid YAML: {first}", path=_COMMAND_LINE
        ) from error
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return dict(nested)


def _check_keys(layer: Mapping[str, Any], origin: str | Path, known: Mapping[str, Any]) -> None:
    for key, value in _flatten(layer):
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3)
            near = near or [name for name in known if name.endswith("." + key)]
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
    kind = known.get(key)
    expected = str(kind) if "|" in str(kind) else getattr(kind, "__name__", str(kind))
    got = dict(_flatten(layer)).get(key)
    return InputError(
        f"{key!r} expects {expected.replace('list', 'a list')}, got {got!r}", path=origin
    )
