"""Recipes: how Q, K, V and the weights are quantized and summed, as named presets with fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _octavo

Value = bool | int | float | str


def _as_value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def _as_text(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    raise ValueError(f"recipe field {field} = {value!r} is not possible; it takes a bool, a number or a word")


class Recipe:
    """One recipe. Immutable; `replace` makes another. Its fields are attributes::

        r = octavo.recipe("sage2++-8+8", smooth_k=False)
        r.name, r.p_range, r.qk_format      # ("sage2++-8+8", 224, "int8")
        r.replace(pv_buffer=1)

    `fields()` gives all of them, `help(field)` says what one means and which values it takes.
    """

    __slots__ = ("_handle", "_kept_key")

    def __init__(self, name: str, **overrides: Value) -> None:
        """The preset `name` with fields changed. ValueError: unknown name or field, a value that is not
        possible, fields that do not fit together, or ranges that can overflow an accumulator."""
        if not isinstance(name, str):
            raise ValueError(f"recipe name is {name!r}; it must be one of {', '.join(presets())}")
        object.__setattr__(self, "_handle", _change(_octavo.Recipe.preset(name), overrides))

    @classmethod
    def _wrap(cls, handle: _octavo.Recipe) -> Recipe:
        recipe = object.__new__(cls)
        object.__setattr__(recipe, "_handle", handle)
        return recipe

    @property
    def name(self) -> str:
        """Of the preset it started from."""
        return self._handle.name

    @property
    def budget(self) -> str:
        """How much of its accumulators' range it uses, in words."""
        return self._handle.budget()

    def fields(self) -> dict[str, Value]:
        """Every field with its value, in the order of the documentation."""
        return {name: _as_value(value) for name, value, _, _ in self._handle.fields()}

    def help(self, field: str) -> str:
        """What a field means and which values it takes."""
        for name, _, values, text in self._handle.fields():
            if name == field:
                return f"{text}; takes {values}"
        raise ValueError(f"recipe field {field!r} is not known; there are: {', '.join(self.fields())}")

    def replace(self, **overrides: Value) -> Recipe:
        """This recipe with fields changed; errors as of the constructor."""
        return Recipe._wrap(_change(self._handle, overrides))

    def __getattr__(self, field: str) -> Value:
        if not field.startswith("_"):
            values = self.fields()
            if field in values:
                return values[field]
        raise AttributeError(f"a Recipe has no field {field!r}")

    def __setattr__(self, field: str, value: Any) -> None:
        raise AttributeError(f"a Recipe cannot be changed; recipe.replace({field}=...) makes another")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.fields()]

    def __eq__(self, other: object) -> bool:
        return self._handle.equals(other._handle) if isinstance(other, Recipe) else NotImplemented

    @property
    def _key(self) -> tuple:
        """Made once: calls on a GPU look their plan up by it."""
        try:
            return self._kept_key
        except AttributeError:
            object.__setattr__(self, "_kept_key", (self.name, *self.fields().items()))
            return self._kept_key

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple:
        return _restore, (self.name, self._overrides())

    def __repr__(self) -> str:
        changed = "".join(f", {field}={value!r}" for field, value in self._overrides().items())
        return f"octavo.recipe({self.name!r}{changed})"

    def _overrides(self) -> dict[str, Value]:
        plain = Recipe._wrap(_octavo.Recipe.preset(self.name)).fields()
        return {field: value for field, value in self.fields().items() if plain[field] != value}


def _restore(name: str, overrides: Mapping[str, Value]) -> Recipe:
    return Recipe(name, **overrides)


def _change(handle: _octavo.Recipe, overrides: Mapping[str, Any]) -> _octavo.Recipe:
    if overrides and handle.name == "auto":
        raise ValueError("recipe 'auto' has no fields to change before it is picked; name a preset")
    for field, value in overrides.items():
        handle = handle.with_field(field, _as_text(field, value))
    handle.check(0)
    return handle


def recipe(name: str | Recipe, **overrides: Value) -> Recipe:
    """The preset of that name (one of `octavo.recipes()`), or a Recipe, with fields changed."""
    return name.replace(**overrides) if isinstance(name, Recipe) else Recipe(name, **overrides)


def presets() -> dict[str, str]:
    """Every preset with a sentence about it, in the order of the documentation, "auto" last."""
    return {name: summary + (f" [{source}]" if source else "") for name, summary, source in _octavo.presets()}


def recipe_key(wanted: str | Recipe, overrides: Mapping[str, Any] | None) -> Any:
    """What tells the recipe of a call from others; unhashable if the overrides cannot be right."""
    fields = overrides
    if overrides is not None and isinstance(overrides, Mapping):
        fields = tuple(overrides.items())
    return wanted._key if isinstance(wanted, Recipe) else wanted, fields


def settle(wanted: str | Recipe, overrides: Mapping[str, Any] | None, pick: Any) -> _octavo.Recipe:
    """The recipe of a call. `auto` with overrides is the preset that `pick` picks, with them applied."""
    if overrides is not None and not isinstance(overrides, Mapping):
        raise ValueError(f"overrides is {overrides!r}; it must be a dict of recipe fields, or None")
    for field in overrides or ():
        if not isinstance(field, str):
            raise ValueError(f"overrides has the key {field!r}; keys must be names of recipe fields")
    base = wanted if isinstance(wanted, Recipe) else Recipe(wanted)
    if not overrides:
        return base._handle
    if base.name == "auto":
        base = Recipe(pick(base._handle))
    return base.replace(**overrides)._handle
