"""Tests marked `cuda` need a GPU and a build with CUDA kernels; elsewhere they are skipped."""

import pytest


def why_no_cuda():
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    from octavo._tensor import has_cuda

    return None if has_cuda() else "this build of Octavo has no CUDA"


def pytest_configure(config):
    config.addinivalue_line("markers", "cuda: needs a GPU and a build with CUDA")


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("cuda")]
    reason = why_no_cuda() if marked else None
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))
