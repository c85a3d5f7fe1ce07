"""Calls from several Python threads: right results, and the GIL is free while work is done."""

import threading
import time

import numpy as np
import pytest

import octavo
from reference import qkv


def test_two_threads_at_once():
    problems = [qkv(q_len=150, kv_len=200, seed=10 * i) for i in range(2)]
    want = [octavo.attention(*p, causal="bottom_right", return_lse=True) for p in problems]
    errors = []

    def work(i):
        for _ in range(10):
            o, lse = octavo.attention(*problems[i], causal="bottom_right", return_lse=True, threads=1 + i)
            if not (np.array_equal(o, want[i][0]) and np.array_equal(lse, want[i][1])):
                errors.append(i)
            with pytest.raises(ValueError, match=f"thread{i}"):
                octavo.attention(*problems[i], recipe=f"thread{i}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_the_gil_is_released():
    # A call long enough to measure: double the rows until it takes 0.3 s.
    rows = 500
    while True:
        q, k, v = qkv(batch=1, q_len=rows, kv_len=2000, dim=64)
        start = time.perf_counter()
        octavo.attention(q, k, v, threads=1)
        if time.perf_counter() - start > 0.3:
            break
        rows *= 2
    done = threading.Event()

    def work():
        octavo.attention(q, k, v, threads=1)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    turns = 0
    while not done.wait(0.001):
        turns += 1
    thread.join()
    # With the GIL held this thread would get a turn or two before and after the call, not during it.
    assert turns > 20
