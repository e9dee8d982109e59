"""The peers' products, timed as `quantloom bench` times ours.

Weights rotate over copies that exceed the second level of cache twice; a CUDA graph holds one call a copy; a time is the
median over replays, in microseconds a call. Values are normal, quantised by the peer.
"""

from statistics import median

import torch

from cases import CublasLt, Humming

REPLAYS = 9


def microseconds(calls) -> float:
    """The time of one of these calls, each on its own copy of the weight."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    times = []
    for replay in range(REPLAYS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        # The first replays bring the clocks up.
        if replay >= 2:
            times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return median(times)


def copies(weight_bytes: int) -> int:
    """Copies of a weight that exceed the second level of cache twice; at least 3."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(3, min(24, int(2.2 * cache / weight_bytes) + 1))


def normal(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


def times(peer, shape: tuple[int, int], tokens: list[int], product_alone: bool) -> dict[int, float]:
    """Microseconds by M. What a library refuses raises its own error."""
    match peer:
        case Humming():
            return humming(peer, shape, tokens, product_alone)
        case CublasLt():
            return cublas(peer.product, shape, tokens)


def humming(peer: Humming, shape, tokens, product_alone) -> dict[int, float]:
    from humming.layer import HummingLayer, HummingLayerMethod

    n, k = shape
    bits = int("".join(c for c in peer.weight["dtype"] if c.isdigit())[:1])
    layers = []
    for _ in range(copies(n * k * bits // 8)):
        layer = HummingLayer(
            shape_n=n,
            shape_k=k,
            weight_config=dict(peer.weight),
            input_config=dict(peer.input),
            torch_dtype=torch.bfloat16,
        ).cuda()
        layer.load_from_unquantized(normal(n, k))
        layer.transform()
        layers.append(layer)
    found = {}
    for m in tokens:
        x = normal(m, k)
        if product_alone:
            codes, scale = HummingLayerMethod.may_quant_input(layers[0], x)
            calls = [lambda layer=layer: layer(codes, input_scale=scale) for layer in layers]
        else:
            calls = [lambda layer=layer: layer(x) for layer in layers]
        found[m] = microseconds(calls)
    return found


def cublas(product: str, shape, tokens) -> dict[int, float]:
    n, k = shape
    one = torch.ones((), device="cuda")
    of_rows = torch.ones(1, n, device="cuda")
    e4m3 = torch.float8_e4m3fn
    count = copies(n * k * (2 if product == "bf16" else 1))
    cast = {"bf16": torch.bfloat16, "int8": torch.int8}.get(product, e4m3)
    scaled = 40 if product == "int8" else 1
    weights = [(normal(n, k) * scaled).clamp(-127, 127).to(cast) for _ in range(count)]
    found = {}
    for m in tokens:
        # `_scaled_mm` wants 16 rows, `_int_mm` more than 16: of fewer tokens the rest is padding.
        rows = m if product == "bf16" else max(m, 32 if product == "int8" else 16)
        x = (normal(rows, k) * scaled).clamp(-127, 127).to(cast)
        of_tokens = torch.ones(rows, 1, device="cuda")
        call = {
            "bf16": lambda w: torch.mm(x, w.t()),
            "int8": lambda w: torch._int_mm(x, w.t()),
            "fp8_tensor": lambda w: torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16),
            "fp8_rowwise": lambda w: torch._scaled_mm(x, w.t(), of_tokens, of_rows, out_dtype=torch.bfloat16),
        }[product]
        found[m] = microseconds([lambda w=w: call(w) for w in weights])
    return found
