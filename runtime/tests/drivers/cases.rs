//! What each process does with a driver, and what it must say: most of it is the same for both.

/// A driver, and what differs in what is said of it.
pub(crate) struct Backend {
    pub(crate) name: &'static str,
    /// The library's source.
    pub(crate) source: &'static str,
    /// Folders of libraries, one of which the loader finds first: files, and the flags that they are
    /// compiled with. A file without flags is no library; it keeps the loader from the machine's own.
    pub(crate) folders: &'static [Folder],
    /// What is made and what undoes it.
    pub(crate) pairs: &'static [(&'static str, &'static str)],
    /// The functions without which no context is entered.
    pub(crate) enters: [&'static str; 2],
    /// The function that waits for a device.
    pub(crate) waits: &'static str,
    /// The function that only compiling calls.
    pub(crate) compiles: &'static str,
    /// What a launch of a plan asks for, what it calls for each kernel, and the mark before and after.
    pub(crate) engine_calls: [&'static str; 3],
    /// The sources of the tables of functions, and how the functions' names begin.
    functions: (&'static str, &'static str),
    /// Names and words that cases say.
    words: &'static Words,
    /// The cases of this driver alone.
    own: fn() -> Vec<Case>,
}

type Folder = (&'static str, &'static [(&'static str, &'static [&'static str])]);

struct Words {
    library: &'static str,
    /// Of a library that is too old.
    old: &'static str,
    devices: [&'static str; 2],
    no_device: &'static str,
    unsupported: &'static str,
    out_of_memory: &'static str,
    compile: [&'static str; 2],
    targets: [&'static str; 2],
    architecture: &'static str,
}

/// A process and what it must say.
pub(crate) struct Case {
    pub(crate) scenario: &'static str,
    pub(crate) folder: &'static str,
    pub(crate) environment: &'static [(&'static str, &'static str)],
    pub(crate) says: Vec<String>,
}

fn case(
    scenario: &'static str,
    folder: &'static str,
    environment: &'static [(&'static str, &'static str)],
    says: &[&str],
) -> Case {
    Case {
        scenario,
        folder,
        environment,
        says: says.iter().map(|says| (*says).to_owned()).collect(),
    }
}

/// The folder of libraries that have everything.
pub(crate) const WHOLE: &str = "whole";
pub(crate) const OFF: (&str, &str) = ("QUANTLOOM_CACHE", "off");
/// A cache that cannot be.
const NO_FOLDER: (&str, &str) = ("QUANTLOOM_CACHE", "/dev/null");

impl Backend {
    pub(crate) fn cases(&self) -> Vec<Case> {
        let words = self.words;
        let Words { library, targets: [target, other], architecture, .. } = *words;
        let mixed = |doing| format!("{doing}: the objects belong to different devices");
        let missing = format!("{library} not found");
        let current = [
            "copying from a device",
            "copying on a device",
            "filling a buffer",
            "recording an event",
            "waiting for an event",
            "launching a kernel",
        ]
        .map(mixed);
        let current: Vec<&str> = current.iter().map(String::as_str).collect();
        let mut cases = vec![
            case("devices", "none", &[], &[&missing]),
            case("memory", "none", &[], &[&missing]),
            case("product", "none", &[], &[&missing]),
            case("devices", "old", &[], &[words.old]),
            case("devices", WHOLE, &[], &words.devices),
            case("other device", WHOLE, &[], &[words.no_device]),
            case("unsupported", WHOLE, &[], &[words.unsupported]),
            case("current", WHOLE, &[], &current),
            case(
                "memory",
                WHOLE,
                &[],
                &[
                    "copied: true",
                    "filled: [7, 7, 7]",
                    "empty: []",
                    "copying to a device: 3 elements expected, 2 found",
                    words.out_of_memory,
                ],
            ),
            case("compile", WHOLE, &[], &words.compile),
            case("load", WHOLE, &[NO_FOLDER], &["vector_add: compiled\n"]),
            case("loader", WHOLE, &[OFF], &["texts: 1, kernels: 1"]),
            case(
                "wrong target",
                WHOLE,
                &[OFF],
                &[&format!(
                    "product of 4-bit codes to bf16, decode(rows=2), {other} is for {other}, the \
                     device is {architecture}"
                )],
            ),
            case(
                "refused",
                WHOLE,
                &[],
                &[&format!("there are no kernels for {target} here, only for sm_80")],
            ),
            case(
                "launch",
                WHOLE,
                &[OFF],
                &[
                    "launching vector_add: buffer `c` has 396 bytes, the kernel touches 400",
                    "launching vector_add: 3 arguments expected, 2 given",
                ],
            ),
            case(
                "product",
                WHOLE,
                &[OFF],
                &[&format!(
                    "product of 4-bit codes to bf16, decode(rows=2), {target} is chosen, by the model \
                     of costs, not measured; multiplied in bf16: y is right: true"
                )],
            ),
            case(
                "other tensors",
                WHOLE,
                &[OFF],
                &[
                    "the tensors were made for a weight of another scheme, shape or number of columns",
                    "is no kernel of this weight's products",
                ],
            ),
            case(
                "streams",
                WHOLE,
                &[],
                &[
                    "read after write: true",
                    "write after read: true",
                    "read after launch: true",
                    "read after drop: true",
                ],
            ),
            case("events", WHOLE, &[], &["there and back: true", "in time: 0ns"]),
            case(
                "engine",
                WHOLE,
                &[OFF],
                &[
                    "6 launches, workspace WorkspaceBytes { counters: 256, scratch: 256 }",
                    "a product: buffer `x` has 383 bytes, the kernel touches 384",
                    "a product: buffer `workspace` has 511 bytes, the kernel touches 512",
                    "y is right: true",
                    "counters are untouched: true, scratch is at the end: true",
                    "replayed with other x: true",
                ],
            ),
            case(
                "experts",
                WHOLE,
                &[OFF],
                &[
                    "10 launches, workspace WorkspaceBytes { counters: 0, scratch: 1024 }",
                    "kernels are compiled at once: true",
                    "a product: buffer `x` has 383 bytes, the kernel touches 384",
                    "the plan reads `ids`, and the call has none",
                    "y is right: true",
                    "the last token's expert and weight: 31",
                    "replayed with other x: true",
                    "and with other experts: 37",
                ],
            ),
            case("first launches", WHOLE, &[OFF], &["y is written by launches [5] of 5"]),
            case(
                "strided",
                WHOLE,
                &[OFF],
                &[
                    "a strided workspace: WorkspaceBytes { counters: 256, scratch: 768 }",
                    "a product: rows of x are 63 elements apart, and have 64",
                    "a product: buffer `x` has 447 bytes, the kernel touches 448",
                    "a product: buffer `workspace` has 1023 bytes, the kernel touches 1024",
                    "a product: buffer `x` has 448 bytes, the kernel touches 18446744073709551615",
                    "y is right: true",
                    "a product: buffer `x` is at ADDRESS, the kernel needs a multiple of 16",
                ],
            ),
            case(
                "not warm",
                WHOLE,
                &[OFF],
                &[
                    "captured: false",
                    &format!(
                        "double, {target} is not loaded, and the stream is captured into a graph: warm \
                         the weight up before"
                    ),
                    "captured: true",
                    "loaded after the capture: true",
                    "in a capture, once loaded: true",
                ],
            ),
            case("unload", WHOLE, &[], &["added: true"]),
        ];
        cases.extend((self.own)());
        cases
    }

    /// The names of all functions that the backend looks up.
    pub(crate) fn functions(&self) -> Vec<String> {
        let (own, prefix) = self.functions;
        let shared = include_str!("../../src/driver/functions.rs").split('"').skip(1).step_by(2);
        let row = |line: &'static str| line.strip_prefix("    ")?.split('(').next();
        let own = own.lines().filter_map(row);
        // A name goes on with a capital, or is hiprtc's.
        let named = shared.chain(own).filter(|name| {
            let rest = name.strip_prefix(prefix).unwrap_or_default();
            rest.starts_with(|first: char| first.is_ascii_uppercase()) || name.starts_with("hiprtc")
        });
        named.map(str::to_owned).collect()
    }
}

pub(crate) const CUDA: Backend = Backend {
    name: "cuda",
    source: "libcuda.rs",
    folders: &[
        (WHOLE, &[("libcuda.so.1", &["whole"])]),
        ("old", &[("libcuda.so.1", &["before"])]),
        ("none", &[("libcuda.so.1", &[]), ("libcuda.so", &[])]),
    ],
    pairs: &[
        ("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuStreamBeginCapture_v2", "cuStreamEndCapture"),
        ("cuStreamEndCapture", "cuGraphDestroy"),
        ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemAllocHost_v2", "cuMemFreeHost"),
        ("cuLinkCreate_v2", "cuLinkDestroy"),
        ("cuModuleLoadData", "cuModuleUnload"),
    ],
    enters: ["cuCtxGetCurrent", "cuCtxPushCurrent_v2"],
    waits: "cuCtxSynchronize",
    compiles: "cuLinkComplete",
    engine_calls: ["cuCtxGetCurrent", "cuLaunchKernelEx", "cuDriverGetVersion"],
    functions: (include_str!("../../src/cuda/library.rs"), "cu"),
    words: &Words {
        library: "libcuda",
        old: "the NVIDIA driver has no `cuTensorMapEncodeTiled`: it is older than CUDA 12.0",
        devices: [
            "Fake GPU, sm_90, 132 SM, 144384 MiB, driver for CUDA 13.0; sm_90a",
            "Fake GPU, sm_75, 132 SM, 144384 MiB, driver for CUDA 13.0; no target",
        ],
        no_device: "there is no CUDA device 2: the driver shows 2",
        unsupported: "Fake GPU is sm_75; kernels are made for sm_80 and later",
        out_of_memory: "allocating 2199023255552 bytes on CUDA device 0: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory",
        compile: ["compiling vector_add: ", "error: nonsense"],
        targets: ["sm_90a", "sm_120"],
        architecture: "sm_90",
    },
    own: cuda,
};

fn cuda() -> Vec<Case> {
    vec![
        case(
            "devices",
            WHOLE,
            &[("FAKE_FAIL", "cuInit=100")],
            &[
                "starting the NVIDIA driver: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is detected",
            ],
        ),
        // A code that the bindings do not know, as a newer driver may give.
        case(
            "current",
            WHOLE,
            &[("FAKE_FAIL", "cuStreamCreate=123456")],
            &["creating a stream: an error that the driver does not name (123456)"],
        ),
        case("callers context", WHOLE, &[], &["the caller's: 0, sm_90", "the caller's: 1, sm_75"]),
        case(
            "selftest",
            "none",
            &[],
            &[
                "good: true",
                "skipped vector add      libcuda not found",
                "skipped empty launch    libcuda not found",
            ],
        ),
        case(
            "selftest",
            WHOLE,
            &[],
            &[
                "good: true",
                "ok      vector add",
                "ok      caller's stream",
                "ok      async copies",
                "ok      shared memory",
                "ok      graph replay",
                "ok      random data",
                "ok      cluster",
                "overlapping -48.5 us",
                "ok      tensor map",
                "ok      image cache",
                "error: nonsense",
                // The driver's clock: 1000 ns a launch, 500 if it overlaps, 24 launches a graph.
                "in a graph 1.00 us, overlapping 0.50 us",
            ],
        ),
        case("selftest", WHOLE, &[("FAKE_LOCAL", "vector_add")], &["vector_add has 8 local bytes"]),
        // The linker refuses, the module loader does not.
        case(
            "load",
            WHOLE,
            &[("FAKE_FAIL", "cuLinkComplete=999"), OFF],
            &["vector_add: compiled, not kept"],
        ),
        // The linker would ignore the numbers of registers, and is not asked: its refusal does not matter.
        case(
            "load with roles",
            WHOLE,
            &[("FAKE_FAIL", "cuLinkCreate_v2=999"), OFF],
            &["vector_add: compiled by the module loader"],
        ),
        // The module loader says nothing about a wrong text, the compiler where it is wrong.
        case("compile with roles", WHOLE, &[], &["line 5; error: nonsense"]),
        case(
            "tune",
            WHOLE,
            &[],
            &[
                "model 8 threads 1.04 us, best 32 threads 1.01 us, 3 others, 0 failed\n\
                 before 8 threads, Model, after 32 threads, Tuned",
                // Not by 5%: the model's choice is kept.
                "model 8 threads 1.04 us, best 32 threads 1.01 us, 3 others, 0 failed\n\
                 before 8 threads, Model, after 8 threads, Tuned",
                "model 8 threads 1.04 us, best 32 threads 1.01 us, 3 others, 0 failed\n\
                 before 8 threads, Model, after 8 threads, Model",
                "after 8 threads, Model\n\
                 model 8 threads 1.04 us, best 32 threads 1.01 us, 3 others, 0 failed\n\
                 before 8 threads, Model, after 32 threads, Tuned\n\
                 model 8 threads 1.04 us, best 8 threads 1.04 us, 0 others, 0 failed\n\
                 before 8 threads, Model, after 8 threads, Tuned",
                "model 8 threads 1.04 us, best 32 threads 1.01 us, 1 others, 1 failed\n\
                 before 8 threads, Model, after 32 threads, Tuned",
                "model 32 threads 1.01 us, best 32 threads 1.01 us, 1 others, 1 failed\n\
                 before 0 threads, Model, after 32 threads, Tuned",
                "of 1 kernels none ran; the first said: ",
            ],
        ),
        // A kernel whose registers are spilled is not measured, however fast it would be.
        case(
            "tune",
            WHOLE,
            &[("FAKE_LOCAL", "threads 32,")],
            &[
                "model 8 threads 1.04 us, best 16 threads 1.02 us, 2 others, 0 failed, 32 threads spill \
               8 bytes of 12 registers\nbefore 8 threads, Model, after 8 threads, Tuned",
            ],
        ),
        // But for the model's choice, which others are compared with.
        case(
            "tune",
            WHOLE,
            &[("FAKE_LOCAL", "threads 8,")],
            &["model 8 threads 1.04 us, best 32 threads 1.01 us, 3 others, 0 failed\nbefore"],
        ),
        case(
            "tune at first use",
            WHOLE,
            &[],
            &["first 8 threads, Model\nagain 8 threads, Model\n\
                 first 32 threads, Tuned\nagain 32 threads, Tuned\n\
                 without one of them 32 threads, Tuned\n\
                 failing 0 threads, Model\nmeasured again: 0"],
        ),
        case(
            "tune in a capture",
            WHOLE,
            &[],
            &[
                "cuda times no calls, so that nothing can be tuned on it\nin a capture 8 threads, Model",
            ],
        ),
        case(
            "tune experts",
            WHOLE,
            &[],
            &[
                "model 8 and 8 threads, 8 and 8 slots 5.35 us, best 32 and 32 threads, 16 and 16 slots 5.07 us, 9 others, 0 failed, 0 spilled, kept for 16 slots\n\
                 before 8 and 8 threads, 8 and 8 slots, after 32 and 32 threads, 16 and 16 slots",
                "kept for 8 slots\n\
                 before 8 and 8 threads, 8 and 8 slots, after 8 and 8 threads, 8 and 8 slots",
                "kept for 16 slots\n\
                 before 8 and 8 threads, 8 and 8 slots, after 8 and 8 threads, 8 and 8 slots",
                "best 32 and 32 threads, 16 and 16 slots 5.07 us, 5 others, 4 failed, 0 spilled, kept for 16 slots\n\
                 before 8 and 8 threads, 8 and 8 slots, after 32 and 32 threads, 16 and 16 slots",
                "ceil(M * 32 / 0) * 2 is no 64-bit number",
                "model 8 and 8 threads, 8 and 8 slots 5.35 us, best 8 and 8 threads, 8 and 8 slots 5.35 us, 0 others, 0 failed, 0 spilled, kept for 8 slots\n\
                 model 8 and 8 threads, 8 and 8 slots 5.35 us, best 32 and 32 threads, 16 and 16 slots 5.07 us, 5 others, 0 failed",
                "of 9 tokens Ok(2)",
            ],
        ),
        // A kernel whose registers are spilled is not measured.
        case(
            "tune experts",
            WHOLE,
            &[("FAKE_LOCAL", "threads 32,")],
            &[
                "model 8 and 8 threads, 8 and 8 slots 5.35 us, best 16 and 16 threads, 16 and 16 slots 5.11 us, 5 others, 0 failed, 2 spilled, kept for 16 slots",
            ],
        ),
        case(
            "tune experts at first use",
            WHOLE,
            &[],
            &["batched 8 and 8 threads, 8 and 8 slots\n\
                 first 8 and 8 threads, 8 and 8 slots\nmeasured: 0, false, 0\n\
                 batched 8 and 8 threads, 8 and 8 slots\n\
                 first 32 and 32 threads, 16 and 16 slots\nmeasured: 0, true, 0\n\
                 batched 8 and 8 threads, 8 and 8 slots\n\
                 first 8 and 8 threads, 8 and 8 slots\nmeasured: 0, true, 0"],
        ),
        case(
            "tune experts in a capture",
            WHOLE,
            &[],
            &[
                "cuda times no calls, so that nothing can be tuned on it\n\
                 in a capture pairs sorted by expert, experts, sm_90a is not loaded, and",
                "then 32 and 32 threads, 16 and 16 slots",
            ],
        ),
        case("graph keeps", WHOLE, &[], &["replayed: true"]),
        case(
            "leads",
            WHOLE,
            &[],
            &[
                "Burst: 2 replays, then 7\na tenth of a second: false",
                "Sustained: ",
                "replays, then 7\na tenth of a second: true",
            ],
        ),
        case(
            "graph keeps what joins",
            WHOLE,
            &[],
            &["not run: [0, 0, 0, 0]", "replayed: [5, 5, 5, 5]", "alone: [6]"],
        ),
        case(
            "graph streams",
            WHOLE,
            &[],
            &["graph after write: [3, 3, 3, 3]", "write after graph: [3, 3, 3, 3]"],
        ),
        case(
            "captured",
            WHOLE,
            &[],
            &[
                "copying to a device: the stream is captured",
                "copying from a device: the stream is captured",
                "launching a graph: the stream is captured",
                "capturing a graph: the stream is captured",
                "replayed: [9, 9, 9, 9]",
            ],
        ),
    ]
}

pub(crate) const HIP: Backend = Backend {
    name: "hip",
    source: "libhip.rs",
    folders: &[
        (WHOLE, &[("libamdhip64.so.7", &["runtime"]), ("libhiprtc.so.7", &["compiler"])]),
        // ROCm 6 has the compiler's functions in the runtime's library too.
        (
            "together",
            &[
                ("libamdhip64.so.7", &[]),
                ("libamdhip64.so.6", &["runtime", "compiler"]),
                ("libhiprtc.so.7", &[]),
                ("libhiprtc.so.6", &[]),
                ("libhiprtc.so", &[]),
            ],
        ),
        ("old", &[("libamdhip64.so.7", &["runtime", "before"]), ("libhiprtc.so.7", &["compiler"])]),
        (
            "no compiler",
            &[
                ("libamdhip64.so.7", &["runtime"]),
                ("libhiprtc.so.7", &[]),
                ("libhiprtc.so.6", &[]),
                ("libhiprtc.so", &[]),
            ],
        ),
        (
            "none",
            &[
                ("libamdhip64.so.7", &[]),
                ("libamdhip64.so.6", &[]),
                ("libamdhip64.so", &[]),
                ("libhiprtc.so.7", &[]),
                ("libhiprtc.so.6", &[]),
                ("libhiprtc.so", &[]),
            ],
        ),
    ],
    pairs: &[
        ("hipStreamCreateWithFlags", "hipStreamDestroy"),
        ("hipEventCreateWithFlags", "hipEventDestroy"),
        ("hipMalloc", "hipFree"),
        ("hipModuleLoadData", "hipModuleUnload"),
        ("hiprtcCreateProgram", "hiprtcDestroyProgram"),
    ],
    enters: ["hipGetDevice", "hipSetDevice"],
    waits: "hipDeviceSynchronize",
    compiles: "hiprtcCompileProgram",
    engine_calls: ["hipGetDevice", "hipModuleLaunchKernel", "hipRuntimeGetVersion"],
    functions: (include_str!("../../src/hip/library.rs"), "hip"),
    words: &Words {
        library: "libamdhip64",
        old: "libamdhip64 has no `hipGetDevicePropertiesR0600`: it is older than ROCm 6.0",
        devices: [
            "Fake Instinct, gfx942, 304 CU, 196608 MiB, HIP 7.0; gfx942",
            "Fake Instinct, gfx90a, 304 CU, 196608 MiB, HIP 7.0; no target",
        ],
        no_device: "there is no HIP device 2: the driver shows 2",
        unsupported: "Fake Instinct is gfx90a; kernels are made for gfx942, gfx950, gfx1100, gfx1151, gfx1200 \
                      and gfx1201",
        out_of_memory: "allocating 2199023255552 bytes on HIP device 0: hipErrorOutOfMemory (2), out of memory",
        compile: [
            "compiling vector_add: hiprtc on the text: hiprtc (6), HIPRTC_ERROR_COMPILATION",
            "\n  kernel.hip:5:1: error: unknown type name 'nonsense'",
        ],
        targets: ["gfx942", "gfx950"],
        architecture: "gfx942",
    },
    own: hip,
};

fn hip() -> Vec<Case> {
    vec![
        // There is no clock, as graphs are CUDA's alone: every product is that of the model.
        case(
            "tune",
            WHOLE,
            &[],
            &[
                "hip times no calls, so that nothing can be tuned on it\nbefore 8 threads, Model, after 8",
            ],
        ),
        case(
            "tune at first use",
            WHOLE,
            &[],
            &[
                "first 8 threads, Model\nagain 8 threads, Model\nwithout one of them 8 threads, Model",
            ],
        ),
        case(
            "tune experts",
            WHOLE,
            &[],
            &["hip times no calls, so that nothing can be tuned on it\nbefore 8 and 8 threads"],
        ),
        case(
            "devices",
            WHOLE,
            &[("FAKE_FAIL", "hipInit=100")],
            &[
                "starting the HIP runtime: hipErrorNoDevice (100), no ROCm-capable device is detected",
            ],
        ),
        // A code that has no words, as a newer runtime may give.
        case(
            "current",
            WHOLE,
            &[("FAKE_FAIL", "hipStreamCreateWithFlags=123456")],
            &["creating a stream: an error that the driver does not name (123456)"],
        ),
        case("devices", "no compiler", &[], &["libhiprtc not found"]),
        case("compiler", WHOLE, &[], &["hiprtc 9.0"]),
        case("load", "together", &[OFF], &["vector_add: compiled\n"]),
        case(
            "wide",
            WHOLE,
            &[OFF],
            &[
                "launching vector_add: the number of threads along x is 4294967296, at most 4294967295",
            ],
        ),
    ]
}
