"""The cases by theme; load() registers all of them, in this order."""

from importlib import import_module

THEMES = (
    "shapes",
    "layouts",
    "visibility",
    "values",
    "scores",
    "scales",
    "varlen",
    "invariance",
    "errors",
    "big",
)


def load() -> None:
    for theme in THEMES:
        import_module(f"{__name__}.{theme}")
