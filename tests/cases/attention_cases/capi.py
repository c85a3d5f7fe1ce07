"""liboctavo.so through ctypes: the structs of octavo.h, and errors as CaseError."""

import ctypes as c
from collections.abc import Iterator
from contextlib import contextmanager

from .problem import CaseError

STATUS = {0: "ok", 1: "invalid_argument", 2: "unsupported", 3: "io_error", 4: "out_of_memory", 5: "internal"}
DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "i32": 6, "bool": 8}
LAYOUTS = {"HND": 0, "NHD": 1, "THD": 2}
CAUSAL = {"none": 0, "top_left": 1, "bottom_right": 2}

# The fields of a recipe, as in recipe.hpp.
FIELDS = (
    *("qk_format", "qk_accumulator", "q_group", "k_group", "q_range", "k_range"),
    *("smooth_k", "smooth_q", "smooth_v", "rotate", "rotate_seed"),
    *("p_format", "v_format", "v_scale", "p_range", "v_range", "slack", "headroom"),
    *("pv_accumulator", "pv_buffer"),
    *("exp2", "mixed_direct", "mixed_period", "key_order", "p_reference", "normaliser", "key_tile"),
    "check_budget",
)


class Tensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("rank", c.c_int32),
        ("shape", c.c_int64 * 4),
        ("strides", c.c_int64 * 4),
        ("device_kind", c.c_int32),
        ("device_index", c.c_int32),
    )


class Options(c.Structure):
    _fields_ = (
        ("struct_size", c.c_size_t),
        ("layout", c.c_int32),
        ("causal", c.c_int32),
        ("window_left", c.c_int64),
        ("window_right", c.c_int64),
        ("has_scale", c.c_int32),
        ("scale", c.c_float),
        ("kv_lengths", c.POINTER(Tensor)),
        ("cu_seqlens_q", c.POINTER(Tensor)),
        ("cu_seqlens_k", c.POINTER(Tensor)),
        ("mask", c.POINTER(Tensor)),
        ("bias", c.POINTER(Tensor)),
        ("q_absmax", c.POINTER(Tensor)),
        ("kernel", c.c_char_p),
        ("check_finite", c.c_int32),
        ("threads", c.c_int32),
        ("key_splits", c.c_int32),
        ("reserved", c.c_int32),
    )


class Preset(c.Structure):
    _fields_ = (("name", c.c_char_p), ("summary", c.c_char_p), ("source", c.c_char_p))


class Kernel(c.Structure):
    _fields_ = (
        *((n, c.c_char_p) for n in ("name", "backend", "tier", "file", "summary")),
        ("available", c.c_int32),
    )


class Library:
    def __init__(self, path: str):
        self._lib = lib = c.CDLL(path)
        lib.octavo_version.restype = lib.octavo_last_error.restype = c.c_char_p
        lib.octavo_plan_kernel.restype = c.c_char_p
        lib.octavo_preset_count.restype = lib.octavo_kernel_count.restype = c.c_size_t
        tensor, handle, text = c.POINTER(Tensor), c.c_void_p, c.c_char_p
        get = (handle, text, c.c_void_p, c.c_size_t, c.c_void_p)
        for name, arguments in {
            "preset_info": (c.c_size_t, c.POINTER(Preset)),
            "kernel_info": (c.c_size_t, c.POINTER(Kernel)),
            "recipe_create": (text, c.POINTER(handle)),
            "recipe_set": (handle, text, text),
            "recipe_get": get,
            "recipe_free": (handle,),
            "options_init": (c.POINTER(Options), c.c_size_t),
            "attention": (tensor,) * 5 + (handle, c.POINTER(Options), c.c_void_p),
            "plan_create": (tensor,) * 3 + (handle, c.POINTER(Options), c.POINTER(handle)),
            "plan_kernel": (handle,),
            "plan_recipe_get": get,
            "plan_free": (handle,),
        }.items():
            getattr(lib, "octavo_" + name).argtypes = arguments

    def _call(self, name: str, *arguments) -> None:
        status = getattr(self._lib, "octavo_" + name)(*arguments)
        if status != 0:
            raise CaseError(STATUS.get(status, str(status)), self._lib.octavo_last_error().decode())

    def version(self) -> str:
        return self._lib.octavo_version().decode()

    def presets(self) -> list[str]:
        preset, names = Preset(), []
        for i in range(self._lib.octavo_preset_count()):
            self._call("preset_info", i, c.byref(preset))
            names.append(preset.name.decode())
        return names

    def kernels(self) -> list[str]:
        """Names of the kernels that run here."""
        kernel, names = Kernel(), []
        for i in range(self._lib.octavo_kernel_count()):
            self._call("kernel_info", i, c.byref(kernel))
            if kernel.available:
                names.append(kernel.name.decode())
        return names

    def options(self) -> Options:
        options = Options()
        self._call("options_init", c.byref(options), c.sizeof(options))
        return options

    @contextmanager
    def recipe(self, preset: str, fields: dict[str, str]) -> Iterator[c.c_void_p]:
        handle = c.c_void_p()
        self._call("recipe_create", preset.encode(), c.byref(handle))
        try:
            for name, value in fields.items():
                self._call("recipe_set", handle, name.encode(), str(value).encode())
            yield handle
        finally:
            self._lib.octavo_recipe_free(handle)

    def recipe_fields(self, preset: str) -> dict[str, str]:
        with self.recipe(preset, {}) as handle:
            return {name: self._text("recipe_get", handle, name) for name in FIELDS}

    def plan(self, q: Tensor, k: Tensor, v: Tensor, recipe, options: Options) -> tuple[str, dict[str, str]]:
        """The kernel that is picked, and its effective recipe."""
        handle = c.c_void_p()
        self._call("plan_create", q, k, v, recipe, c.byref(options), c.byref(handle))
        try:
            fields = {name: self._text("plan_recipe_get", handle, name) for name in ("name", *FIELDS)}
            return self._lib.octavo_plan_kernel(handle).decode(), fields
        finally:
            self._lib.octavo_plan_free(handle)

    def attention(self, q, k, v, out, lse, recipe, options: Options) -> None:
        self._call("attention", q, k, v, out, lse, recipe, c.byref(options), None)

    def _text(self, function: str, handle, field: str) -> str:
        text = c.create_string_buffer(256)
        self._call(function, handle, field.encode(), text, len(text), None)
        return text.value.decode()
