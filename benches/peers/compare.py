#!/usr/bin/env python3
"""Times of Quantloom's products on a GPU beside those of other libraries, in one run on one machine.

For each case ours are timed before and after the peers'; the faster peer's time over the mean of ours is the ratio: above 1 ours
are faster. Ours are with programmatic launch up to M = 256, one launch after another beyond.

    cargo build --release
    python3 benches/peers/compare.py --ours target/release/quantloom --m 1,16,64,256,1024,4096

It needs PyTorch with CUDA; without humming-kernels its rows are left out, and the table says so.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

try:
    import torch
except ImportError:
    sys.exit("compare.py: PyTorch with CUDA is not installed for this Python (pip install torch)")

from cases import CASES, Case
from peers import times

# Programmatic launch costs time where a product has many waves of blocks.
MOST_PROGRAMMATIC = 256


def ours(command: str, case: Case, shape: tuple[int, int], tokens: list[int]) -> dict[int, float]:
    """Microseconds by M, as `quantloom bench` has them."""
    n, k = shape
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ours.json"
        words = [command, "bench", "--backend", "cuda", "--scheme", case.scheme, "--shape", f"{n}x{k}"]
        words += ["--m", ",".join(map(str, tokens)), "--json", str(path)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        results = json.loads(path.read_text())["results"]
    found = {}
    for cell in results:
        if "not_scheduled" in cell:
            raise RuntimeError(f"{case.scheme}: {cell['not_scheduled']}")
        launch = "programmatic" if cell["m"] <= MOST_PROGRAMMATIC else "serial"
        alone = cell[f"us_product_{launch}"] if case.product_alone else None
        # A product whose x is not prepared by a kernel of its own is the whole call.
        found[cell["m"]] = alone or cell[f"us_{launch}"]
    return found


def compared(command: str, case: Case, shape, tokens) -> tuple[dict, dict]:
    """Microseconds by M: ours, and by peer; a peer that fails has its reason."""
    first = ours(command, case, shape, tokens)
    of_peers = {}
    for peer in case.peers:
        try:
            of_peers[peer.name] = times(peer, shape, tokens, case.product_alone)
        except Exception as error:  # A library's refusals are of any type.
            of_peers[peer.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        torch.cuda.empty_cache()
    last = ours(command, case, shape, tokens)
    return {m: mean((first[m], last[m])) for m in tokens}, of_peers


def row(cells: list) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def tables(results: list, tokens: list[int]) -> str:
    """Ratios, then microseconds, as Markdown."""
    heads = [f"M = {m}" for m in tokens]
    lines = [row(["the faster peer's time over ours", "peers", *heads]), row(["---"] * (2 + len(tokens)))]
    for label, own, of_peers in results:
        right = {name: found for name, found in of_peers.items() if isinstance(found, dict)}
        ratio = [f"{min(found[m] for found in right.values()) / own[m]:.2f}" if right else "" for m in tokens]
        lines.append(row([label, ", ".join(right) or "none", *ratio]))
    lines += ["", row(["us", "", *heads]), row(["---"] * (2 + len(tokens)))]
    for label, own, of_peers in results:
        lines.append(row([label, "Quantloom", *(f"{own[m]:.1f}" for m in tokens)]))
        for name, found in of_peers.items():
            cells = [f"{found[m]:.1f}" for m in tokens] if isinstance(found, dict) else [f"left out: {found}"]
            lines.append(row(["", name, *cells]))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", default="target/release/quantloom", metavar="PATH", help="the command")
    parser.add_argument("--shape", default="8192x8192", metavar="NxK")
    parser.add_argument("--m", default="1,16,32,64,256,1024,4096", metavar="LIST", help="values of M")
    parser.add_argument("--only", metavar="SCHEME,...", help="only the cases of these schemes of ours")
    parser.add_argument("--json", metavar="FILE", help="every figure")
    arguments = parser.parse_args()
    n, k = (int(size) for size in arguments.shape.split("x"))
    tokens = [int(m) for m in arguments.m.split(",")]
    only = arguments.only.split(",") if arguments.only else None
    cases = [case for case in CASES if only is None or case.scheme in only]
    if not cases:
        parser.error("--only names no case; they are " + ", ".join(case.scheme for case in CASES))
    if shutil.which(arguments.ours) is None:
        parser.error(f"--ours: there is no program {arguments.ours}; `cargo build --release` makes it")
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no NVIDIA GPU")
    device = torch.cuda.get_device_properties(0)
    print(f"{device.name}, PyTorch {torch.__version__}, N x K = {n} x {k}\n")
    results = []
    try:
        for number, case in enumerate(cases):
            print(f"{number + 1} of {len(cases)}: {case.label}", file=sys.stderr, flush=True)
            results.append((case.label, *compared(arguments.ours, case, (n, k), tokens)))
            if arguments.json:
                figures = [dict(case=label, ours=own, peers=peers) for label, own, peers in results]
                text = json.dumps(dict(device=device.name, n=n, k=k, results=figures), indent=1)
                Path(arguments.json).write_text(text)
    except KeyboardInterrupt:
        print("interrupted: what has been measured so far", file=sys.stderr)
    print(tables(results, tokens))
    return 0 if len(results) == len(cases) else 130


if __name__ == "__main__":
    sys.exit(main())
