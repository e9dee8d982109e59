#!/usr/bin/env bash
# Builds ggml from the sources that the PyPI package llama-cpp-python carries, with llama.cpp's own defaults, and
# `ggml_bench`, which times its products. Argument: the folder for all of it. A second run builds what has changed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh FOLDER}
version=0.3.36
need() { command -v "$1" >/dev/null || { echo "no $1: the comparison with ggml needs $2" >&2; exit 3; }; }
need c++ "a C++ compiler (apt install g++)"
need cmake "CMake (apt install cmake, or pip install cmake)"
need python3 "Python with pip, to fetch ggml's sources"
mkdir -p "$out"
sources=$out/llama_cpp_python-$version/vendor/llama.cpp
if [ ! -d "$sources" ]; then
    # The archive alone: `pip download` would build the package to learn its metadata.
    python3 -m pip install --quiet --no-deps --target "$out/tools" scikit-build-core packaging pathspec
    PYTHONPATH=$out/tools python3 -m pip download --quiet --no-deps --no-build-isolation \
        --no-binary llama-cpp-python --dest "$out" "llama-cpp-python==$version"
    tar -xzf "$out/llama_cpp_python-$version.tar.gz" -C "$out" "llama_cpp_python-$version/vendor/llama.cpp/ggml"
fi
log=$out/build.log
if ! {
    cmake -S "$here" -B "$out/build" -DLLAMA_CPP="$sources" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_OPENMP=ON
    cmake --build "$out/build" --target ggml_bench --parallel "$(nproc)"
} >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "ggml does not build; all of it is in $log" >&2
    exit 1
fi
