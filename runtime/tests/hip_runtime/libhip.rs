//! A HIP runtime without a GPU: libraries that the test compiles, whose devices are the host.
//!
//! `--cfg runtime` gives it the functions of libamdhip64, `--cfg compiler` those of libhiprtc.
//! Memory is the host's, compiling keeps the text behind its architecture, and the one kernel,
//! `vector_add`, is done here by name from the parameters that the launch passed. Device 0 is a
//! gfx942, device 1 a gfx1100.
//!
//! It is as lazy as a device may be: what is queued on a stream is done when somebody waits for it, as
//! freeing memory does. Work on memory or a kernel that is gone ends the process, and so does
//! unloading a kernel that is queued.
//!
//! `FAKE_LOG`: a file that gets a line a call, `function=result`. `FAKE_FAIL=function=code`: that
//! function fails. `FAKE_FOREIGN`: images of other processes do not load. `FAKE_LOCAL`: kernels spill.

#![allow(non_snake_case, unused_variables, dead_code, unused_imports)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard};

type Result = i32;
type Handle = *mut c_void;

const INVALID_VALUE: Result = 1;
const OUT_OF_MEMORY: Result = 2;
const INVALID_DEVICE: Result = 101;
const INVALID_IMAGE: Result = 200;
const NO_BINARY: Result = 209;
const NOT_FOUND: Result = 500;
const COMPILATION: Result = 6;

const ARCHITECTURES: [&CStr; 2] = [c"gfx942:sramecc+:xnack-", c"gfx1100"];

/// What a stream has to do.
enum Item {
    /// c = a + b, so many words, by a module's kernel.
    Add {
        module: usize,
        words: usize,
        arrays: [u64; 3],
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    ToDevice {
        to: u64,
        from: u64,
        bytes: usize,
    },
    ToHost {
        to: u64,
        from: u64,
        bytes: usize,
    },
}

#[derive(Default)]
struct State {
    current: c_int,
    queues: BTreeMap<usize, VecDeque<Item>>,
    /// Bytes from an address on that may be touched.
    live: BTreeMap<u64, usize>,
    modules: HashMap<usize, String>,
    functions: HashMap<usize, (usize, String)>,
    programs: HashMap<usize, (String, Vec<u8>, Vec<u8>)>,
    next: usize,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

struct Locked(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().unwrap()
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().unwrap()
    }
}

impl State {
    fn handle(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    fn queue(&mut self, stream: Handle, item: Item) {
        self.queues.entry(stream as usize).or_default().push_back(item);
    }

    /// Does what a stream has to do.
    ///
    /// # Safety
    /// Host memory of copies is there.
    unsafe fn drain(&mut self, stream: usize) {
        for item in self.queues.remove(&stream).into_iter().flatten() {
            // SAFETY: the caller's promise for host memory; `touch` looks at the device's.
            unsafe {
                match item {
                    Item::Add { module, words, arrays } => {
                        if !self.modules.contains_key(&module) {
                            fault("a kernel runs that is unloaded");
                        }
                        arrays.iter().for_each(|array| self.touch(*array, words * 4));
                        let [a, b, c] = arrays.map(|array| array as *mut u32);
                        for at in 0..words {
                            *c.add(at) = (*a.add(at)).wrapping_add(*b.add(at));
                        }
                    }
                    Item::Fill { to, byte, bytes } => {
                        self.touch(to, bytes);
                        (to as *mut u8).write_bytes(byte, bytes);
                    }
                    Item::ToDevice { to, from, bytes } => {
                        self.touch(to, bytes);
                        (from as *const u8).copy_to(to as *mut u8, bytes);
                    }
                    Item::ToHost { to, from, bytes } => {
                        self.touch(from, bytes);
                        (from as *const u8).copy_to(to as *mut u8, bytes);
                    }
                }
            }
        }
    }

    /// # Safety
    /// As [`Self::drain`].
    unsafe fn drain_all(&mut self) {
        while let Some(stream) = self.queues.keys().next().copied() {
            // SAFETY: the caller's promise.
            unsafe { self.drain(stream) };
        }
    }

    /// Ends the process if the device touches memory that is not allocated.
    fn touch(&self, address: u64, bytes: usize) {
        let block = self.live.range(..=address).next_back();
        let inside = |(first, len): (&u64, &usize)| address + bytes as u64 <= first + *len as u64;
        if !block.is_some_and(inside) {
            fault("work touches memory that is not allocated");
        }
    }
}

/// Ends the process: an `extern "C"` function does not unwind.
fn fault(what: &str) -> ! {
    eprintln!("the device panicked: {what}");
    std::process::abort()
}

/// The state, or the failure that was asked for.
fn enter(function: &str) -> std::result::Result<Locked, Result> {
    let mut state = STATE.lock().unwrap();
    let now = state.get_or_insert_default();
    if let Ok(failing) = std::env::var("FAKE_FAIL") {
        let (name, code) = failing.split_once('=').unwrap();
        if name == function {
            if name == "hipStreamSynchronize" {
                // A device that cannot be waited for does nothing any more.
                now.queues.clear();
            }
            return Err(code.parse().unwrap());
        }
    }
    Ok(Locked(state))
}

/// A call and its result, to the log.
fn note(function: &str, result: Result) -> Result {
    if let Some(path) = std::env::var_os("FAKE_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(log, "{function}={result}").unwrap();
    }
    result
}

macro_rules! library {
    ($(fn $name:ident($state:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        #[allow(unused_mut, unused_unsafe)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> Result {
            let call = || match enter(stringify!($name)) {
                // SAFETY: the caller keeps the library's interface: pointers are valid for what the
                // function of that name reads and writes. The state is locked.
                Ok(mut $state) => unsafe { $body },
                Err(code) => code,
            };
            let result = call();
            note(stringify!($name), result)
        })*
    };
}

#[cfg(runtime)]
const NAMES: &[(Result, &CStr, &CStr)] = &[
    (INVALID_VALUE, c"hipErrorInvalidValue", c"invalid argument"),
    (OUT_OF_MEMORY, c"hipErrorOutOfMemory", c"out of memory"),
    (100, c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
    (999, c"hipErrorUnknown", c"unknown error"),
];

#[cfg(runtime)]
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(code: i32) -> *const c_char {
    let row = NAMES.iter().find(|row| row.0 == code);
    row.map_or(std::ptr::null(), |row| row.1.as_ptr())
}

#[cfg(runtime)]
#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(code: i32) -> *const c_char {
    let row = NAMES.iter().find(|row| row.0 == code);
    row.map_or(std::ptr::null(), |row| row.2.as_ptr())
}

#[cfg(all(runtime, not(before_6)))]
library! {
    fn hipGetDevicePropertiesR0600(state, to: *mut u8, device: c_int) {
        let Some(name) = ARCHITECTURES.get(device as usize) else { return INVALID_DEVICE };
        to.write_bytes(0, 1472);
        c"Fake Instinct".as_ptr().copy_to(to.cast(), 14);
        name.as_ptr().copy_to(to.add(1160).cast(), name.count_bytes() + 1);
        0
    }
}

#[cfg(runtime)]
library! {
    fn hipInit(state, flags: c_uint) { if flags == 0 { 0 } else { INVALID_VALUE } }
    fn hipRuntimeGetVersion(state, to: *mut c_int) { *to = 70_051_831; 0 }
    fn hipGetDeviceCount(state, to: *mut c_int) { *to = 2; 0 }
    fn hipGetDevice(state, to: *mut c_int) { *to = state.current; 0 }
    fn hipSetDevice(state, device: c_int) {
        state.current = device;
        if (0..2).contains(&device) { 0 } else { INVALID_DEVICE }
    }
    fn hipDeviceGetName(state, to: *mut c_char, len: c_int, device: c_int) {
        let name = c"Fake Instinct";
        assert!(len as usize > name.count_bytes());
        name.as_ptr().copy_to(to, name.count_bytes() + 1);
        0
    }
    fn hipDeviceTotalMem(state, to: *mut usize, device: c_int) { *to = 192 << 30; 0 }
    fn hipDeviceGetAttribute(state, to: *mut c_int, attribute: c_int, device: c_int) {
        *to = match attribute {
            19 => 4 << 20,
            63 => 304,
            74 => 64 << 10,
            _ => return INVALID_VALUE,
        };
        0
    }
    fn hipStreamCreateWithFlags(state, to: *mut Handle, flags: c_uint) {
        *to = state.handle() as Handle;
        if flags == 1 { 0 } else { INVALID_VALUE }
    }
    fn hipStreamDestroy(state, stream: Handle) { 0 }
    fn hipStreamSynchronize(state, stream: Handle) { state.drain(stream as usize); 0 }
    fn hipDeviceSynchronize(state) { state.drain_all(); 0 }
    fn hipMalloc(state, to: *mut u64, bytes: usize) {
        if bytes > 1 << 40 {
            return OUT_OF_MEMORY;
        }
        // From 256 bytes on, as a device's; what is in it is not 0.
        let block = vec![0xA5u8; bytes + 256].leak();
        let address = (block.as_ptr() as u64).next_multiple_of(256);
        state.live.insert(address, bytes);
        *to = address;
        0
    }
    fn hipFree(state, address: u64) {
        state.drain_all();
        // The block stays the process's, so that the device's mistakes do not become the host's.
        if state.live.remove(&address).is_some() { 0 } else { INVALID_VALUE }
    }
    fn hipMemcpyHtoDAsync(state, to: u64, from: u64, bytes: usize, stream: Handle) {
        state.queue(stream, Item::ToDevice { to, from, bytes });
        0
    }
    fn hipMemcpyDtoHAsync(state, to: u64, from: u64, bytes: usize, stream: Handle) {
        state.queue(stream, Item::ToHost { to, from, bytes });
        0
    }
    fn hipMemsetAsync(state, to: u64, byte: c_int, bytes: usize, stream: Handle) {
        state.queue(stream, Item::Fill { to, byte: byte as u8, bytes });
        0
    }
    fn hipModuleLoadData(state, to: *mut Handle, image: *const c_char) {
        // The compiler below ends an image in 0.
        let text = CStr::from_ptr(image).to_str().unwrap().to_owned();
        let own = ARCHITECTURES[state.current as usize].to_str().unwrap();
        let own = own.split(':').next().unwrap();
        let mut parts = text.split(' ');
        if (parts.next(), parts.next()) != (Some("FAKE"), Some(own)) {
            return NO_BINARY;
        }
        let process = parts.next().unwrap().lines().next().unwrap().to_owned();
        let foreign = std::env::var_os("FAKE_FOREIGN").is_some();
        if foreign && process != std::process::id().to_string() {
            return INVALID_IMAGE;
        }
        let module = state.handle();
        state.modules.insert(module, text);
        *to = module as Handle;
        0
    }
    fn hipModuleUnload(state, module: Handle) {
        let at = module as usize;
        let runs = |item: &Item| matches!(item, Item::Add { module, .. } if *module == at);
        if state.queues.values().flatten().any(runs) {
            fault("a kernel is unloaded that is queued");
        }
        state.modules.remove(&at);
        0
    }
    fn hipModuleGetFunction(state, to: *mut Handle, module: Handle, name: *const c_char) {
        let name = CStr::from_ptr(name).to_str().unwrap().to_owned();
        if !state.modules[&(module as usize)].contains(&format!("void {name}(")) {
            return NOT_FOUND;
        }
        let function = state.handle();
        state.functions.insert(function, (module as usize, name));
        *to = function as Handle;
        0
    }
    fn hipFuncGetAttribute(state, to: *mut c_int, attribute: c_int, function: Handle) {
        *to = match attribute {
            0 => 1024,
            1 => 0,
            3 => if std::env::var_os("FAKE_LOCAL").is_some() { 8 } else { 0 },
            4 => 12,
            _ => return INVALID_VALUE,
        };
        0
    }
    fn hipModuleLaunchKernel(state, function: Handle, x: c_uint, y: c_uint, z: c_uint,
                             threads: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
                             stream: Handle, parameters: *const *const u64, extra: Handle) {
        let (module, name) = state.functions[&(function as usize)].clone();
        assert_eq!(name, "vector_add");
        let shape = (y, z, by, bz, shared);
        if shape != (1, 1, 1, 1, 0) || threads > 1024 || stream.is_null() || !extra.is_null() {
            return INVALID_VALUE;
        }
        let arrays = [0, 1, 2].map(|at| **parameters.add(at));
        let words = (*(*parameters.add(3)).cast::<u32>()).min(x * threads) as usize;
        state.queue(stream, Item::Add { module, words, arrays });
        0
    }
}

#[cfg(compiler)]
#[unsafe(no_mangle)]
pub extern "C" fn hiprtcGetErrorString(code: i32) -> *const c_char {
    match code {
        COMPILATION => c"HIPRTC_ERROR_COMPILATION".as_ptr(),
        999 => c"unknown error".as_ptr(),
        _ => std::ptr::null(),
    }
}

#[cfg(compiler)]
library! {
    fn hiprtcVersion(state, major: *mut c_int, minor: *mut c_int) { *major = 9; *minor = 0; 0 }
    fn hiprtcCreateProgram(state, to: *mut Handle, text: *const c_char, name: *const c_char,
                           headers: c_int, contents: Handle, names: Handle) {
        if headers != 0 || name.is_null() {
            return INVALID_VALUE;
        }
        let text = CStr::from_ptr(text).to_str().unwrap().to_owned();
        let program = state.handle();
        state.programs.insert(program, (text, Vec::new(), Vec::new()));
        *to = program as Handle;
        0
    }
    fn hiprtcCompileProgram(state, program: Handle, count: c_int, options: *const *const c_char) {
        let options = (0..count as usize)
            .map(|at| CStr::from_ptr(*options.add(at)).to_str().unwrap().to_owned());
        let options: Vec<String> = options.collect();
        let target = options.iter().find_map(|option| option.strip_prefix("--offload-arch="));
        let (text, image, log) = state.programs.get_mut(&(program as usize)).unwrap();
        let Some(target) = target else { return INVALID_VALUE };
        if text.contains("nonsense") {
            *log = b"kernel.hip:5:1: error: unknown type name 'nonsense'\n\0".to_vec();
            return COMPILATION;
        }
        *image = format!("FAKE {target} {}\n{text}\0", std::process::id()).into_bytes();
        0
    }
    fn hiprtcGetProgramLogSize(state, program: Handle, to: *mut usize) {
        *to = state.programs[&(program as usize)].2.len();
        0
    }
    fn hiprtcGetProgramLog(state, program: Handle, to: *mut u8) {
        let log = &state.programs[&(program as usize)].2;
        log.as_ptr().copy_to(to, log.len());
        0
    }
    fn hiprtcGetCodeSize(state, program: Handle, to: *mut usize) {
        *to = state.programs[&(program as usize)].1.len();
        0
    }
    fn hiprtcGetCode(state, program: Handle, to: *mut u8) {
        let image = &state.programs[&(program as usize)].1;
        image.as_ptr().copy_to(to, image.len());
        0
    }
    fn hiprtcDestroyProgram(state, program: *mut Handle) {
        state.programs.remove(&(*program as usize));
        *program = std::ptr::null_mut();
        0
    }
}
