#!/usr/bin/env python3
"""Runs a program of Quantloom on an AMD GPU that is not there: tinygrad's emulator of the instruction sets.

    python3 benches/emulator/emulate.py TINYGRAD gfx1201 -- quantloom verify ct_w4a16 --backend hip --shape 64x256 --m 1,4

TINYGRAD is a checkout of https://github.com/tinygrad/tinygrad at the commit in COMMIT; its emulator is in test/mockgpu/amd,
and in no package. It needs Linux on x86-64, Python 3.11 and clang 22 with lld (`.ci/clang` installs it); $CLANG names another.

The program finds hip.c's library in place of AMD's HIP runtime and does all that it does on a GPU. This process shares
its memory, compiles its kernels with clang and runs each launch on the emulator. What the emulator has wrong or has not is
in helps.py, and is put right first; --without NAME leaves a help out, faults.py shows each on its own.
"""
import argparse, ctypes, mmap, os, shutil, socket, struct, subprocess, sys, tempfile, time, traceback

HERE = os.path.dirname(os.path.abspath(__file__))
COMMIT = "a9069c177a9da9cca18593edf55acd2e6073cca6"
CLANG = os.environ.get("CLANG", "clang-22")
AT, SIZE = 0x100000000000, 8 << 30
FOLDER = tempfile.TemporaryDirectory(prefix="emulator")     # all files that are made, until this program ends


def compile_text(text, target, out):
    """HIP C++ (bytes) to a code object; raises CalledProcessError with what clang printed."""
    command = [CLANG, "-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", f"--offload-arch={target}", "-nogpulib",
               "-nogpuinc", "-O3", "-", "-o", out]
    subprocess.run(command, input=text, check=True, capture_output=True)
    with open(out, "rb") as file:
        return file.read()


def load_emulator(tinygrad, target, without=()):
    """tinygrad's module, with the helps but those named; `None` leaves all out."""
    os.symlink(shutil.which(CLANG) or sys.exit(f"no {CLANG}"), FOLDER.name + "/clang")      # tinygrad runs `clang`
    os.environ["PATH"] = FOLDER.name + os.pathsep + os.environ["PATH"]
    os.environ["CACHEDB"] = FOLDER.name + "/tinygrad.db"
    if not os.path.exists(os.path.join(tinygrad, "test/mockgpu/amd/emu.py")):
        sys.exit(f"{tinygrad} is no checkout of tinygrad's repository (no test/mockgpu/amd/emu.py); its PyPI package has no emulator")
    sys.path[:0] = [tinygrad, HERE]
    import test.mockgpu.amd.emu as emulator
    emulator.denormals, emulator.target = 0, target
    if without is not None:
        import helps
        helps.apply(emulator, without)
    return emulator


class Device:
    """What hip.c asks for."""
    def __init__(self, emulator, target, log):
        self.emulator, self.target, self.log = emulator, target, log
        self.objects, self.functions = [], []

    def answer(self, kind, data):
        from code_object import CodeObject
        if kind == "C":
            try:
                return 0, compile_text(data, self.target, FOLDER.name + "/kernel")
            except subprocess.CalledProcessError as error:
                return 6, error.stderr
        if kind == "L":
            self.objects.append(CodeObject(data))
            return 0, struct.pack("<I", len(self.objects) - 1)
        if kind == "F":
            code, name = self.objects[struct.unpack_from("<I", data)[0]], data[4:].decode()
            if name not in code.kernels:
                return 500, b""
            self.functions.append((code, name))
            places = code.places(name)
            flat = [number for place in places for number in place]
            return 0, struct.pack(f"<{6 + len(flat)}I", len(self.functions) - 1, *code.facts(name), len(places), *flat)
        if kind == "X":
            function, gx, gy, gz, bx, by, bz, shared = struct.unpack_from("<8I", data)
            code, name = self.functions[function]
            start = time.monotonic()
            try:
                code.launch(self.emulator, self.target, name, (gx, gy, gz), (bx, by, bz), shared, data[32:])
            except Exception as error:
                print(f"{name}: {error}", file=sys.stderr)
                if os.environ.get("TRACE"):
                    traceback.print_exc()
                return 719, b""
            self.log(f"  {name}: {gx} x {gy} x {gz} blocks of {bx} threads, {time.monotonic() - start:.1f} s")
            return 0, b""
        raise ValueError(kind)


def run(device, memory, command, out=None):
    """Runs a program with the device until it ends; its exit code."""
    ours, theirs = socket.socketpair()
    where = f"{theirs.fileno()} {memory} {AT:x} {SIZE:x} {device.target}"
    os.truncate(memory, 0), os.truncate(memory, SIZE)
    path = os.pathsep.join(filter(None, [FOLDER.name, os.environ.get("LD_LIBRARY_PATH")]))
    child = subprocess.Popen(command, pass_fds=(theirs.fileno(), memory), env={
        **os.environ, "QUANTLOOM_EMULATOR": where, "LD_LIBRARY_PATH": path, "QUANTLOOM_CACHE": FOLDER.name}, stdout=out)
    theirs.close()
    stream = ours.makefile("rwb")
    while len(head := stream.read(16)) == 16:
        kind, length = struct.unpack("<QQ", head)
        status, data = device.answer(chr(kind), stream.read(length))
        stream.write(struct.pack("<QQ", status, len(data)) + data)
        stream.flush()
    return child.wait()


def device(tinygrad, target, without=(), log=lambda line: None):
    """The device, and the memory that it shares with programs."""
    made = Device(load_emulator(tinygrad, target, without), target, log)
    subprocess.run([CLANG, "-shared", "-fPIC", "-O2", HERE + "/hip.c", "-o", FOLDER.name + "/libamdhip64.so"], check=True)
    memory = os.memfd_create("device")
    os.truncate(memory, SIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    fixed = 0x100000        # MAP_FIXED_NOREPLACE
    at = libc.mmap(AT, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | fixed, memory, 0)
    if at != AT:
        sys.exit(f"no memory at {AT:#x}: {os.strerror(ctypes.get_errno())}")
    return made, memory


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tinygrad", help="a checkout of tinygrad's repository")
    parser.add_argument("target", help="gfx942, gfx950, gfx1100, gfx1151, gfx1200 or gfx1201")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leaves out a help of helps.py; several may be given")
    parser.add_argument("--quiet", action="store_true", help="no line for each launch")
    parser.add_argument("command", nargs="+", help="a program and its arguments, after --")
    chosen = parser.parse_args()
    log = (lambda line: None) if chosen.quiet else (lambda line: print(line, file=sys.stderr, flush=True))
    sys.exit(run(*device(chosen.tinygrad, chosen.target, chosen.without, log), chosen.command))
