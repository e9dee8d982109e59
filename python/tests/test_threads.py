"""Threads: products on several at once, and that others run while one waits for a product."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import quantloom
from test_products import FLOATS, GOLDEN, activation, gguf_q8_0, layer_of


def test_threads_multiply_at_once_and_alike():
    layer = layer_of(FLOATS[0])
    prepared = layer.prepare()
    x = activation(16, layer.shape[1])
    expected = np.from_dlpack(prepared.matmul(x))
    equal = []

    def multiply():
        equal.extend(np.array_equal(np.from_dlpack(prepared.matmul(x)), expected) for _ in range(50))

    threads = [threading.Thread(target=multiply) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(equal) == 200 and all(equal)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A layer of 4096 x 4096, whose codes and scales are 0."""
    n = k = 4096
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    return quantloom.open(gguf_q8_0(path, n, k, bytes(n * k // 32 * 34))).layer("layer")


def ran_meanwhile(call):
    """How often this thread ran, half a millisecond apart, while another one was in a call."""
    begun, ended = threading.Event(), threading.Event()

    def other():
        begun.set()
        call()
        ended.set()

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait()
    times = 0
    while not ended.is_set():
        times += 1
        time.sleep(0.0005)
    thread.join()
    return times


# Were the interpreter's lock kept, this thread would run before the call begins and after it ends: twice or so. The
# calls take 50 ms and more.
def test_other_threads_run_during_a_product():
    layer = layer_of(FLOATS[0])
    prepared = layer.prepare("sim:wgsl")
    x = activation(64, layer.shape[1])
    assert ran_meanwhile(lambda: prepared.matmul(x)) > 10


def test_other_threads_run_while_a_layer_is_prepared(large):
    assert ran_meanwhile(large.prepare) > 10


def test_other_threads_run_while_a_layer_is_decoded(large):
    assert ran_meanwhile(large.dequantise) > 10


FORKED = """
import os, sys
import numpy as np
import quantloom

layer = quantloom.open(sys.argv[1]).layer("layer")
prepared, x = layer.prepare(), np.ones((8, layer.shape[1]), np.float32)
prepared.matmul(x)
if os.fork() == 0:
    try:
        prepared.matmul(x)
    except quantloom.QuantloomError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_of_fork_says_that_it_has_no_threads():
    command = [sys.executable, "-c", FORKED, str(GOLDEN / FLOATS[0])]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "fork" in said.stdout, said
