"""Recipes as Python objects, and what is said about the build."""

import pickle

import numpy as np
import pytest

import octavo
from reference import TOLERANCE, attention, qkv, relative_l1


def test_every_preset_is_a_recipe():
    names = list(octavo.recipes())
    assert names[-1] == "auto" and {"exact", "sage2-8+8", "sage2++-8+8", "fp8-icl", "cpu8"} <= set(names)
    for name in names:
        recipe = octavo.recipe(name)
        assert recipe.name == name and octavo.recipes()[name]
        assert repr(recipe) == f"octavo.recipe('{name}')"


def test_fields():
    r = octavo.recipe("sage2++-8+8")
    assert (r.qk_format, r.p_range, r.v_range, r.smooth_k, r.pv_buffer) == ("int8", 224.0, 4.5, True, 2)
    assert r.fields()["pv_accumulator"] == "f16_buffered" and "p_range" in dir(r)
    assert "takes" in r.help("p_range") and "65504" in r.budget
    with pytest.raises(AttributeError, match="colour"):
        _ = r.colour
    with pytest.raises(ValueError, match="colour"):
        r.help("colour")
    with pytest.raises(AttributeError, match="replace"):
        r.p_range = 1


def test_changes_make_other_recipes():
    r = octavo.recipe("sage2-8+8")
    other = r.replace(smooth_k=False, p_range=np.float32(256))
    assert other.smooth_k is False and other.p_range == 256 and r.smooth_k is True
    assert other != r and other == octavo.recipe("sage2-8+8", smooth_k=False, p_range=256.0)
    assert other == octavo.recipe(r, smooth_k="false", p_range="256")
    assert hash(other) == hash(octavo.recipe("sage2-8+8", smooth_k=np.bool_(False), p_range=256))
    assert eval(repr(other)) == other and pickle.loads(pickle.dumps(other)) == other
    assert r != "sage2-8+8" and len({r, other, octavo.recipe("sage2-8+8")}) == 2


def test_wrong_recipes():
    for make, word in (
        (lambda: octavo.recipe("sage9"), "sage9"),
        (lambda: octavo.recipe(None), "None"),
        (lambda: octavo.recipe("cpu8", colour=1), "colour"),
        (lambda: octavo.recipe("cpu8", key_tile=1.5), "key_tile"),
        (lambda: octavo.recipe("cpu8", qk_format="e4m3"), "qk_format"),
        (lambda: octavo.recipe("sage2++-8+8", pv_buffer=4), "65504"),
        (lambda: octavo.recipe("auto", smooth_k=False), "auto"),
    ):
        with pytest.raises(ValueError, match=word):
            make()


def test_overrides_of_auto_change_what_auto_picks():
    q, k, v = qkv()
    assert np.array_equal(
        octavo.attention(q, k, v, overrides={"smooth_k": False}),
        octavo.attention(q, k, v, recipe="cpu8", overrides={"smooth_k": False}),
    )
    assert not np.array_equal(
        octavo.attention(q, k, v, overrides={"smooth_k": False}), octavo.attention(q, k, v)
    )


def test_overrides_and_recipe_objects_agree():
    q, k, v = qkv()
    made = octavo.recipe("sage2-8+8", smooth_k=False)
    assert np.array_equal(
        octavo.attention(q, k, v, recipe=made),
        octavo.attention(q, k, v, recipe="sage2-8+8", overrides={"smooth_k": False}),
    )


def test_info():
    info = octavo.info()
    assert info["version"] == octavo.__version__ and info["threads"] >= 1
    kernels = {kernel["name"]: kernel for kernel in info["kernels"]}
    assert kernels["reference.exact"]["available"] is True
    q, k, v = qkv(dim=64)
    want, _ = attention(q, k, v)
    ran = 0
    for name, kernel in kernels.items():
        if not kernel["available"]:
            with pytest.raises(NotImplementedError, match=r"machine|GPUs"):
                octavo.attention(q, k, v, recipe="cpu8", kernel=name)
            continue
        for recipe, tolerance in (("exact", "exact"), ("cpu8", "cpu8"), ("sage2++-8+8", "sage")):
            try:
                o = octavo.attention(q, k, v, recipe=recipe, kernel=name)
            except NotImplementedError:
                continue
            ran += 1
            assert relative_l1(o, want) < TOLERANCE[tolerance]
    assert ran >= 3
