"""A relation model by its name: a file, a folder of training, or a class of the user's own."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from haystack import files
from haystack.errors import HaystackError, InputError
from haystack.models.relation.protocol import RelationModel
from haystack.vocabulary import Vocabulary, psg_vocabulary

_MEMBERS = (("reads_images", "true or false"), ("num_predicates", "an integer"))


@dataclass(frozen=True)
class ModelReference:
    """Where a relation model comes from.

    Args:
        file: a model's safetensors file, or the Python file of a plug-in; None where the plug-in
            is imported by its module's name.
        module: name of the plug-in's module, or "".
        factory: name of the plug-in's class or function, or "" for a safetensors file. It is
            called with the vocabulary and returns a ``RelationModel``.
        weights: safetensors file of a plug-in's training, or None.
    """

    file: Path | None
    module: str = ""
    factory: str = ""
    weights: Path | None = None

    @classmethod
    def parse(cls, text: str | Path) -> ModelReference:
        """From ``model.safetensors``, its folder, ``package.module:factory`` or ``file.py:Class``.

        ``file.py:Class@run`` is the class with the weights that training left in the folder (or
        the file) ``run``.

        Raises:
            InputError: there is no such file.
        """
        parts = _plugin(str(text))
        if parts is None:
            return cls(model_file(Path(text)))
        source, factory, run = parts
        weights = model_file(Path(run)) if run else None
        if not source.endswith(".py"):
            return cls(None, source, factory, weights)
        if not Path(source).is_file():
            raise InputError("there is no such Python file", path=source)
        return cls(Path(source), "", factory, weights)

    def __str__(self) -> str:
        source = self.module or str(self.file)
        weights = "" if self.weights is None else f"@{self.weights}"
        return f"{source}:{self.factory}{weights}" if self.factory else source

    def load(
        self, vocabulary: Vocabulary | None = None, device: str = "cpu"
    ) -> tuple[RelationModel, Vocabulary]:
        """The model, and the vocabulary that it numbers its answers by.

        Args:
            vocabulary: that the answers must follow; None = that of the file, and PSG's for a
                plug-in.
            device: PyTorch device; a plug-in is moved there if it is a PyTorch module.

        Raises:
            InputError: it cannot be loaded, or does not fit the vocabulary.
        """
        if self.factory:
            chosen = vocabulary or psg_vocabulary()
            model = self._make(chosen)
            if self.weights is not None:
                self._fill(model, self.weights)
            if callable(getattr(model, "to", None)):
                model = model.to(device)
        else:
            from haystack.models.relation.files import load_relation_model

            model = load_relation_model(cast(Path, self.file), device)
            stored = vocabulary_of(model)
            chosen = vocabulary or stored or psg_vocabulary()
            if stored is not None:
                stored.require_same(
                    chosen,
                    own="the model",
                    others="the annotations",
                    advice="use a model made for this vocabulary",
                    path=str(self),
                )
        return self._checked(model, chosen), chosen

    def fingerprint(self) -> str:
        """Changes when the model's answers may have changed.

        A file's checksum; for a plug-in those of its source file and of its weights, and the
        attribute ``version`` of its class or function, by which a model that finds its weights
        elsewhere says that they are others.

        Raises:
            InputError: the plug-in cannot be imported.
        """
        if not self.factory:
            return files.sha256_file(cast(Path, self.file))
        factory = self._factory()
        source = inspect.getsourcefile(self._import())
        code = "" if source is None else files.sha256_file(source)
        version = str(getattr(factory, "version", ""))
        weights = "" if self.weights is None else files.sha256_file(self.weights)
        return files.sha256_text(files.canonical_json([self.factory, code, version, weights]))

    def _make(self, vocabulary: Vocabulary) -> Any:
        factory = self._factory()
        try:
            inspect.signature(factory).bind(vocabulary)
        except ValueError:
            pass  # callables in C tell nothing of their arguments
        except TypeError as error:
            raise InputError(
                f"it must be callable with the vocabulary as its only argument: {error}",
                path=str(self),
            ) from error
        try:
            return factory(vocabulary)
        except HaystackError:
            raise
        except Exception as error:
            raise InputError(
                f"making the model raised {type(error).__name__}: {error} (--debug shows where)",
                path=str(self),
            ) from error

    def _fill(self, model: Any, weights: Path) -> None:
        from torch import nn

        from haystack.models.relation.files import load_weights

        if not isinstance(model, nn.Module):
            raise InputError(
                f"weights go into a torch.nn.Module, and {type(model).__name__} is none",
                path=str(self),
            )
        load_weights(model, weights)
        model.eval()

    def _factory(self) -> Callable[[Vocabulary], Any]:
        module = self._import()
        factory = getattr(module, self.factory, None)
        if factory is None:
            names = [name for name in vars(module) if not name.startswith("_")]
            near = difflib.get_close_matches(self.factory, names, n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise InputError(
                f"the module has no {self.factory!r}{hint}", path=self.module or self.file
            )
        if not callable(factory):
            raise InputError(
                f"expected a class or a function that makes a model, got {type(factory).__name__}",
                path=str(self),
            )
        made: Callable[[Vocabulary], Any] = factory
        return made

    def _import(self) -> ModuleType:
        if self.file is not None:
            return _import_file(self.file)
        return import_by_name(self.module)

    def _checked(self, model: object, vocabulary: Vocabulary) -> RelationModel:
        for name, expected in _MEMBERS:
            if not hasattr(model, name):
                raise InputError(
                    f"a relation model needs the attribute {name!r} ({expected}), and "
                    f"{type(model).__name__} has none",
                    path=str(self),
                )
            value = getattr(model, name)
            if not isinstance(value, int) or isinstance(value, bool) != (name == "reads_images"):
                raise InputError(f"expected {name} to be {expected}, got {value!r}", path=str(self))
        if not callable(getattr(model, "predict", None)):
            raise InputError(
                "a relation model needs the method predict(scenes), and "
                f"{type(model).__name__} has none",
                path=str(self),
            )
        checked = cast(RelationModel, model)
        if checked.num_predicates != vocabulary.num_predicates:
            raise InputError(
                f"the model has {checked.num_predicates} predicates, the annotations have "
                f"{vocabulary.num_predicates}; use a model made for this vocabulary",
                path=str(self),
            )
        return checked


def vocabulary_of(model: object) -> Vocabulary | None:
    """The vocabulary that a model carries, also inside a filter; None where it has none."""
    inner = getattr(model, "model", None)
    found = getattr(model, "vocabulary", None) or getattr(inner, "vocabulary", None)
    return found if isinstance(found, Vocabulary) else None


def absolute_reference(text: str) -> str:
    """A reference that holds in any current folder; names of modules stay names."""
    parts = _plugin(text)
    if parts is None:
        return os.path.abspath(text)
    source, factory, run = parts
    place = os.path.abspath(source) if source.endswith(".py") else source
    return f"{place}:{factory}@{os.path.abspath(run)}" if run else f"{place}:{factory}"


def _plugin(text: str) -> tuple[str, str, str] | None:
    """Module or file, class or function, and run ("" without), of a plug-in's name."""
    found = re.fullmatch(r"(.+?):([^\W\d]\w*)(?:@(.+))?", text)
    if found is None or os.path.exists(text):
        return None
    return found[1], found[2], found[3] or ""


def model_file(path: str | Path) -> Path:
    """The file of a model's weights: itself, or the one in the folder of a run.

    Raises:
        InputError: there is none.
    """
    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            "no such relation model; make one with: haystack train, or name a class of your own "
            "as package.module:factory or file.py:Class",
            path=file,
        )
    return file


def import_by_name(module: str) -> ModuleType:
    """A module of the user's, also one of the current folder.

    Raises:
        InputError: it cannot be imported.
    """
    if os.getcwd() not in sys.path:  # last, so that it shadows nothing
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise InputError(
            f"cannot import the module {module!r}: {type(error).__name__}: {error}; it is "
            "looked for in the current folder and on PYTHONPATH"
        ) from error


def _import_file(file: Path) -> ModuleType:
    place = file.resolve()
    name = f"haystack_plugin_{files.sha256_text(str(place))[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file that can be imported", path=file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up
    sys.path.append(str(place.parent))  # modules beside the file
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, HaystackError) or not isinstance(error, Exception):
            raise
        raise InputError(
            f"cannot import it: {type(error).__name__}: {error} (--debug shows where)", path=file
        ) from error
    return module
