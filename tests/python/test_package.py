"""What is installed: version, names, types, and nothing that does not belong."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys

import octavo

HERE = pathlib.Path(octavo.__file__).parent


def test_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", octavo.__version__)
    try:
        installed = importlib.metadata.version("octavo")
    except importlib.metadata.PackageNotFoundError:
        return  # run from a build tree
    assert installed == octavo.__version__


def test_names_are_documented():
    for name in octavo.__all__:
        assert getattr(octavo, name).__doc__, name


def test_typed():
    assert (HERE / "py.typed").exists() and (HERE / "_octavo.pyi").exists()
    stubs = (HERE / "_octavo.pyi").read_text()
    for name in dir(octavo._octavo):
        if not name.startswith("_"):
            assert re.search(rf"^(class|def) {name}\b", stubs, re.M), f"{name} has no stub"


def test_files_of_the_package():
    assert {p.suffix for p in HERE.iterdir() if p.is_file()} <= {".py", ".pyi", ".typed", ".so"}


def test_needs_numpy_only():
    code = "import sys, octavo; print(sorted({'torch', 'ml_dtypes', 'jax'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
