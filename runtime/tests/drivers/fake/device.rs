//! A GPU that is the host, behind the functions that both drivers have: `libcuda.rs` and `libhip.rs` give
//! these their names, and have the rest.
//!
//! Memory is the host's, compiling keeps the text, and the kernels of the self-test are done here
//! by name, from the parameters that the launch passed: a third transcription beside their PTX
//! and what the self-test expects. What a real driver refuses (shared memory without opting in,
//! an image of another architecture, work on a capturing stream that waits, memory on a thread that
//! captures), this one refuses.
//!
//! It is as lazy as a device may be: what is queued on a stream is done when somebody waits for it, as
//! freeing memory does. Work on memory or a kernel that is gone ends the process, and so does
//! unloading a kernel that is queued.
//!
//! `FAKE_LOG`: a file that gets a line a call, `function=result`. `FAKE_FAIL=function=code`: that function fails.
//! `FAKE_FOREIGN`: images of other processes do not load. `FAKE_LOCAL`: kernels spill.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard};

pub type Result = i32;
pub type Handle = *mut c_void;

pub const INVALID_VALUE: Result = 1;
pub const OUT_OF_MEMORY: Result = 2;
pub const INVALID_DEVICE: Result = 101;
pub const INVALID_IMAGE: Result = 200;
pub const INVALID_CONTEXT: Result = 201;
pub const NO_BINARY: Result = 209;
pub const INVALID_PTX: Result = 218;
pub const NOT_FOUND: Result = 500;
pub const NOT_READY: Result = 600;
pub const CAPTURE_UNSUPPORTED: Result = 900;
pub const CAPTURE_ISOLATION: Result = 905;

/// What a stream has to do.
#[derive(Clone)]
pub enum Item {
    Launch(Work),
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    /// Host memory is no allocation.
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
        to_host: bool,
        from_host: bool,
    },
    /// An event, and which of its records.
    Record(usize, u64),
    Wait(usize, u64),
}

/// One launch, with its parameters' bytes.
#[derive(Clone)]
pub struct Work {
    pub module: usize,
    kernel: String,
    blocks: u32,
    threads: u32,
    cluster: u32,
    overlaps: bool,
    parameters: Vec<Vec<u8>>,
}

/// Streams that are captured together, and their work.
pub struct Capture {
    pub origin: usize,
    pub streams: HashSet<usize>,
    pub events: HashSet<usize>,
    pub thread: std::thread::ThreadId,
    pub items: Vec<Item>,
}

/// An event: the streams of its records, how many have come, and when the last of them did.
#[derive(Default)]
pub struct Event {
    pub records: Vec<usize>,
    pub come: u64,
    pub time: u64,
}

#[derive(Default)]
pub struct State {
    /// The thread's: those that are pushed, or the one that is set.
    pub contexts: Vec<usize>,
    pub capturing: Option<Capture>,
    pub graphs: HashMap<usize, Vec<Item>>,
    pub events: HashMap<usize, Event>,
    pub queues: BTreeMap<usize, VecDeque<Item>>,
    /// Bytes from an address on that may be touched.
    pub live: BTreeMap<u64, usize>,
    /// What the compiler of the driver has.
    pub compiled: HashMap<usize, super::Compiled>,
    pub modules: HashMap<usize, String>,
    pub functions: HashMap<usize, (usize, String, u32)>,
    /// Nanoseconds.
    pub clock: u64,
    pub next: usize,
}

// SAFETY: the pointers are the host's memory, which belongs to no thread, and they are used with
// the lock of `STATE` held.
unsafe impl Send for State {}

/// Ends the process: an `extern "C"` function does not unwind.
pub fn fault(what: &str) -> ! {
    eprintln!("the device panicked: {what}");
    std::process::abort()
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

pub struct Locked(MutexGuard<'static, Option<State>>);

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
    pub fn handle(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    /// Queues work, or captures it.
    pub fn queue(&mut self, stream: Handle, item: Item) {
        let stream = stream as usize;
        match &mut self.capturing {
            Some(capture) if capture.streams.contains(&stream) => capture.items.push(item),
            _ => self.queues.entry(stream).or_default().push_back(item),
        }
    }

    pub fn captures(&self, stream: Handle) -> bool {
        self.capturing.as_ref().is_some_and(|capture| capture.streams.contains(&(stream as usize)))
    }

    /// Whether this thread may neither allocate nor free.
    pub fn forbidden(&self) -> bool {
        let here = std::thread::current().id();
        self.capturing.as_ref().is_some_and(|capture| capture.thread == here)
    }

    /// Does what a stream has to do.
    ///
    /// # Safety
    /// As [`run`].
    pub unsafe fn drain(&mut self, stream: usize) {
        // SAFETY: the caller's promise.
        while unsafe { self.step(stream) } {}
    }

    /// # Safety
    /// As [`run`].
    pub unsafe fn drain_all(&mut self) {
        let streams: Vec<usize> = self.queues.keys().copied().collect();
        for stream in streams {
            // SAFETY: the caller's promise.
            unsafe { self.drain(stream) };
        }
    }

    /// Runs streams until a record of an event has come.
    ///
    /// # Safety
    /// As [`run`].
    pub unsafe fn reach(&mut self, event: usize, record: u64) {
        loop {
            let Some(of) = self.events.get(&event) else { return };
            if of.come >= record {
                return;
            }
            let stream = of.records[record as usize - 1];
            // SAFETY: the caller's promise.
            if !unsafe { self.step(stream) } {
                fault("an event that never comes is waited for");
            }
        }
    }

    /// Does the first thing that a stream has to do. False if there is none.
    ///
    /// # Safety
    /// As [`run`].
    unsafe fn step(&mut self, stream: usize) -> bool {
        let Some(item) = self.queues.get_mut(&stream).and_then(VecDeque::pop_front) else {
            return false;
        };
        // SAFETY: the caller's promise for host memory; `touch` looks at the device's.
        unsafe {
            match item {
                Item::Launch(work) => run(self, &work),
                Item::Fill { to, byte, bytes } => {
                    self.touch(to, bytes);
                    (to as *mut u8).write_bytes(byte, bytes);
                }
                Item::Copy { to, from, bytes, to_host, from_host } => {
                    if !to_host {
                        self.touch(to, bytes);
                    }
                    if !from_host {
                        self.touch(from, bytes);
                    }
                    (from as *const u8).copy_to(to as *mut u8, bytes);
                }
                Item::Record(event, record) => {
                    let now = self.clock;
                    if let Some(event) = self.events.get_mut(&event) {
                        (event.come, event.time) = (event.come.max(record), now);
                    }
                }
                Item::Wait(event, record) => self.reach(event, record),
            }
        }
        true
    }

    /// Ends the process if the device touches memory that is not allocated.
    pub fn touch(&self, address: u64, bytes: usize) {
        let block = self.live.range(..=address).next_back();
        let inside = |(first, len): (&u64, &usize)| address + bytes as u64 <= first + *len as u64;
        if !block.is_some_and(inside) {
            fault("work touches memory that is not allocated");
        }
    }
}

/// The state, or the failure that was asked for.
pub fn enter(function: &str) -> std::result::Result<Locked, Result> {
    let mut state = STATE.lock().unwrap();
    let now = state.get_or_insert_default();
    if let Ok(failing) = std::env::var("FAKE_FAIL") {
        let (name, code) = failing.split_once('=').unwrap();
        if name == function {
            match name {
                // A capture that is not valid ends all the same.
                _ if name.contains("StreamEndCapture") => now.capturing = None,
                // A device that cannot be waited for does nothing any more.
                _ if name.contains("StreamSynchronize") => now.queues.clear(),
                _ => {}
            }
            return Err(code.parse().unwrap());
        }
    }
    Ok(Locked(state))
}

/// A call and its result, to the log.
pub fn note(function: &str, result: Result) -> Result {
    if let Some(path) = std::env::var_os("FAKE_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(log, "{function}={result}").unwrap();
    }
    result
}

type Row = (Result, &'static CStr, &'static CStr);

/// A text of a result.
///
/// # Safety
/// `to` can be written to.
pub unsafe fn words(code: Result, to: *mut *const c_char, of: fn(&Row) -> &'static CStr) -> Result {
    match super::NAMES.iter().find(|row| row.0 == code) {
        // SAFETY: the caller's promise.
        Some(row) => unsafe {
            *to = of(row).as_ptr();
            0
        },
        None => INVALID_VALUE,
    }
}

/// Bytes of each parameter, from the kernel's text.
pub fn signature(kernel: &str) -> &'static [usize] {
    match kernel {
        "vector_add" => &[8, 8, 8, 4],
        "shared_mirror" => &[8, 8, 4],
        "cluster_ring" => &[8],
        "overlap_first" | "overlap_second" => &[8, 8, 8, 4],
        "tma_box" => &[8, 8, 4, 4, 128],
        "fill_random" => &[8, 4, 4],
        _ => &[],
    }
}

/// What a kernel of that name does.
///
/// # Safety
/// The parameters are those of the kernel: addresses of live allocations, as long as the numbers
/// beside them say.
unsafe fn run(state: &mut State, work: &Work) {
    if !state.modules.contains_key(&work.module) {
        fault("a kernel runs that is unloaded");
    }
    state.clock += if work.overlaps { 500 } else { 1000 };
    let p64 = |at: usize| u64::from_le_bytes(work.parameters[at][..8].try_into().unwrap());
    let p32 = |at: usize| u32::from_le_bytes(work.parameters[at][..4].try_into().unwrap());
    let at = |address: u64, i: u32| (address as *mut u32).wrapping_add(i as usize);
    let threads = work.blocks * work.threads;
    let touch = |state: &State, at: usize, words: u32| state.touch(p64(at), words as usize * 4);
    // SAFETY: every index is below the count that the kernel was given or the number of its
    // threads, and the caller promises allocations of that length.
    unsafe {
        match work.kernel.as_str() {
            "vector_add" => {
                (0..3).for_each(|at| touch(state, at, p32(3).min(threads)));
                for i in 0..p32(3).min(threads) {
                    *at(p64(2), i) = (*at(p64(0), i)).wrapping_add(*at(p64(1), i));
                }
            }
            "shared_mirror" => {
                let words = p32(2);
                (0..2).for_each(|at| touch(state, at, words));
                for i in 0..words {
                    *at(p64(1), words - 1 - i) = *at(p64(0), i);
                }
            }
            "cluster_ring" => {
                let c = work.cluster;
                touch(state, 0, work.blocks);
                for block in 0..work.blocks {
                    let neighbour = if block % c == c - 1 { block + 1 - c } else { block + 1 };
                    *at(p64(0), block) = neighbour + 1 + 1000 * c;
                }
            }
            "overlap_first" => {
                (0..2).for_each(|at| touch(state, at, p32(3).min(threads)));
                for i in 0..p32(3).min(threads) {
                    *at(p64(1), i) = (*at(p64(0), i)).wrapping_add(1);
                }
                state.clock += 50_000;
                *(p64(2) as *mut u64) = state.clock;
            }
            "overlap_second" => {
                (0..2).for_each(|at| touch(state, at, p32(3).min(threads)));
                for i in 0..p32(3).min(threads) {
                    *at(p64(1), i) = *at(p64(0), i) << 1;
                }
                let began = if work.overlaps { state.clock - 49_000 } else { state.clock };
                *(p64(2) as *mut u64).add(1) = began;
            }
            "tma_box" => {
                touch(state, 1, 257);
                tma_box(work, p64(1), p32(2), p32(3));
            }
            "fill_random" => {
                let (n, seed) = (p32(1), p32(2));
                touch(state, 0, n);
                for i in 0..n {
                    let mut x = i.wrapping_mul(0x9E37_79B1).wrapping_add(seed);
                    for (shift, factor) in [(16, 0x7FEB_352Du32), (15, 0x846C_A68B), (16, 1)] {
                        x = (x ^ (x >> shift)).wrapping_mul(factor);
                    }
                    *at(p64(0), i) = x;
                }
            }
            _ => {}
        }
    }
}

/// The map's 128 bytes as `cuTensorMapEncodeTiled` below leaves them.
///
/// # Safety
/// The map is that of a live matrix, and y has 1028 bytes.
unsafe fn tma_box(work: &Work, y: u64, column: u32, row: u32) {
    let field =
        |at: usize| u64::from_le_bytes(work.parameters[4][8 * at..8 * at + 8].try_into().unwrap());
    let (address, columns, rows, pitch) = (field(0), field(1), field(2), field(3));
    let (box_columns, box_rows, swizzle) = (field(4), field(5), field(6));
    assert_eq!((box_columns * 2 * box_rows, swizzle), (1024, 3));
    for byte in (0..1024u64).step_by(2) {
        let (r, c) = (u64::from(row) + byte / 128, u64::from(column) + byte % 128 / 2);
        let inside = r < rows && c < columns;
        let from = (address + r * pitch + c * 2) as *const u16;
        // SAFETY: inside of the matrix that the map describes, which is live.
        let value = if inside { unsafe { *from } } else { 0 };
        // Bits 4 to 6 of the address are XORed with bits 7 to 9.
        let to = byte ^ ((byte >> 7 & 7) << 4);
        // SAFETY: `to` is even and below 1024: the XOR changes bits 4 to 6 only.
        unsafe { *((y + to) as *mut u16) = value };
    }
    // SAFETY: the last four of y's bytes.
    unsafe { *((y + 1024) as *mut u32) = 1 };
}

/// Queues a launch of so many blocks, threads and bytes of shared memory, in clusters, with or without
/// overlap.
///
/// # Safety
/// As [`run`].
pub unsafe fn launch(
    state: &mut State,
    function: Handle,
    (grid, block, shared): ([c_uint; 3], [c_uint; 3], c_uint),
    (cluster, overlaps): (u32, bool),
    stream: Handle,
    parameters: *const *const u8,
) -> Result {
    let (module, kernel, most) = state.functions[&(function as usize)].clone();
    let shape = (grid[1], grid[2], block[1], block[2]);
    if shared > most || block[0] > 1024 || shape != (1, 1, 1, 1) {
        return INVALID_VALUE;
    }
    let bytes = signature(&kernel).iter().enumerate();
    // SAFETY: the caller's promise.
    let value = |(at, bytes): (usize, &usize)| unsafe {
        std::slice::from_raw_parts(*parameters.add(at), *bytes).to_vec()
    };
    let parameters = bytes.map(value).collect();
    let (blocks, threads) = (grid[0], block[0]);
    let work = Work { module, kernel, blocks, threads, cluster, overlaps, parameters };
    state.queue(stream, Item::Launch(work));
    0
}

/// Queues a copy of rows on the device, each of so many bytes.
pub fn copy_rows(
    state: &mut State,
    [to, to_pitch, from, from_pitch, bytes, rows]: [u64; 6],
    stream: Handle,
) -> Result {
    if to_pitch < bytes || from_pitch < bytes {
        return INVALID_VALUE;
    }
    for row in 0..rows {
        let (to, from, bytes) = (to + row * to_pitch, from + row * from_pitch, bytes as usize);
        state.queue(stream, Item::Copy { to, from, bytes, to_host: false, from_host: false });
    }
    0
}

macro_rules! library {
    ($(fn $name:ident($state:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        #[allow(unused_mut, unused_unsafe)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> Result {
            let call = || match enter(stringify!($name)) {
                // SAFETY: the caller keeps the driver's interface: pointers are valid for what the
                // function of that name reads and writes. The state is locked.
                Ok(mut $state) => unsafe { $body },
                Err(code) => code,
            };
            let result = call();
            note(stringify!($name), result)
        })*
    };
}

/// Defines the functions that both drivers have, by their names in one of them.
macro_rules! shared {
    (init: $init:ident, version: $version:ident, error_name: $error_name:ident,
     error_string: $error_string:ident, device_count: $device_count:ident, device: $device:ident,
     device_name: $device_name:ident, device_attribute: $device_attribute:ident,
     device_memory: $device_memory:ident, synchronize: $synchronize:ident,
     stream_create: $stream_create:ident, stream_destroy: $stream_destroy:ident,
     stream_synchronize: $stream_synchronize:ident,
     stream_is_capturing: $stream_is_capturing:ident, stream_wait_event: $stream_wait_event:ident,
     begin_capture: $begin_capture:ident, end_capture: $end_capture:ident,
     graph_instantiate: $graph_instantiate:ident, graph_launch: $graph_launch:ident,
     executable_destroy: $executable_destroy:ident, graph_destroy: $graph_destroy:ident,
     event_create: $event_create:ident, event_record: $event_record:ident,
     event_synchronize: $event_synchronize:ident, event_elapsed: $event_elapsed:ident,
     event_destroy: $event_destroy:ident, alloc: $alloc:ident, free: $free:ident,
     copy_to_device: $copy_to_device:ident, copy_to_host: $copy_to_host:ident, copy: $copy:ident,
     fill: $fill:ident, module_load: $module_load:ident, module_unload: $module_unload:ident,
     module_function: $module_function:ident, function_attribute: $function_attribute:ident,) => { library! {
        fn $init(state, flags: c_uint) { if flags == 0 { 0 } else { INVALID_VALUE } }
        fn $version(state, to: *mut c_int) { *to = VERSION; 0 }
        fn $error_name(state, code: i32, to: *mut *const c_char) { words(code, to, |row| row.1) }
        fn $error_string(state, code: i32, to: *mut *const c_char) { words(code, to, |row| row.2) }
        fn $device_count(state, to: *mut c_int) { *to = ARCHITECTURES.len() as c_int; 0 }
        fn $device(state, to: *mut c_int, ordinal: c_int) {
            *to = FIRST_DEVICE + ordinal;
            if (ordinal as usize) < ARCHITECTURES.len() { 0 } else { INVALID_DEVICE }
        }
        fn $device_name(state, to: *mut c_char, len: c_int, device: c_int) {
            let name = DEVICE;
            assert!(len as usize > name.count_bytes());
            name.as_ptr().copy_to(to, name.count_bytes() + 1);
            0
        }
        fn $device_attribute(state, to: *mut c_int, attribute: c_int, device: c_int) {
            match $crate::attribute(attribute, (device - FIRST_DEVICE) as usize) {
                Some(value) => {
                    *to = value;
                    0
                }
                None => INVALID_VALUE,
            }
        }
        fn $device_memory(state, to: *mut usize, device: c_int) { *to = MEMORY; 0 }
        fn $synchronize(state) {
            if state.forbidden() {
                return CAPTURE_UNSUPPORTED;
            }
            state.drain_all();
            0
        }
        fn $stream_create(state, to: *mut Handle, flags: c_uint) {
            *to = state.handle() as Handle;
            if flags == 1 { 0 } else { INVALID_VALUE }
        }
        // What is queued is still done.
        fn $stream_destroy(state, stream: Handle) { 0 }
        fn $stream_synchronize(state, stream: Handle) {
            if state.captures(stream) {
                return CAPTURE_UNSUPPORTED;
            }
            state.drain(stream as usize);
            0
        }
        fn $stream_is_capturing(state, stream: Handle, to: *mut c_int) {
            *to = c_int::from(state.captures(stream));
            0
        }
        fn $stream_wait_event(state, stream: Handle, event: Handle, flags: c_uint) {
            let (at, event) = (stream as usize, event as usize);
            if let Some(capture) = &mut state.capturing && capture.events.contains(&event) {
                // The stream is captured from now on.
                capture.streams.insert(at);
                return 0;
            }
            let records = state.events[&event].records.len() as u64;
            if state.captures(stream) && records > 0 {
                return CAPTURE_ISOLATION;
            }
            state.queue(stream, Item::Wait(event, records));
            0
        }
        fn $begin_capture(state, stream: Handle, mode: c_int) {
            if state.capturing.is_some() || stream.is_null() || mode != 1 {
                return CAPTURE_UNSUPPORTED;
            }
            let (origin, thread) = (stream as usize, std::thread::current().id());
            let (streams, events) = ([origin].into(), Default::default());
            state.capturing = Some(Capture { origin, streams, events, thread, items: Vec::new() });
            0
        }
        fn $end_capture(state, stream: Handle, to: *mut Handle) {
            match state.capturing.take() {
                Some(capture) if capture.origin == stream as usize => {
                    let graph = state.handle();
                    state.graphs.insert(graph, capture.items);
                    *to = graph as Handle;
                    0
                }
                _ => CAPTURE_UNSUPPORTED,
            }
        }
        fn $graph_instantiate(state, to: *mut Handle, graph: Handle, flags: u64) {
            let executable = state.handle();
            let items = state.graphs[&(graph as usize)].clone();
            state.graphs.insert(executable, items);
            *to = executable as Handle;
            0
        }
        fn $graph_launch(state, graph: Handle, stream: Handle) {
            for item in state.graphs[&(graph as usize)].clone() {
                state.queue(stream, item);
            }
            0
        }
        fn $executable_destroy(state, graph: Handle) { state.graphs.remove(&(graph as usize)); 0 }
        fn $graph_destroy(state, graph: Handle) { state.graphs.remove(&(graph as usize)); 0 }
        fn $event_create(state, to: *mut Handle, flags: c_uint) {
            let event = state.handle();
            state.events.insert(event, Event::default());
            *to = event as Handle;
            0
        }
        fn $event_record(state, event: Handle, stream: Handle) {
            let event = event as usize;
            if state.captures(stream) {
                state.capturing.as_mut().unwrap().events.insert(event);
                return 0;
            }
            if let Some(capture) = &mut state.capturing {
                capture.events.remove(&event);
            }
            let records = &mut state.events.get_mut(&event).unwrap().records;
            records.push(stream as usize);
            let record = records.len() as u64;
            state.queue(stream, Item::Record(event, record));
            0
        }
        fn $event_synchronize(state, event: Handle) {
            let records = state.events[&(event as usize)].records.len() as u64;
            state.reach(event as usize, records);
            0
        }
        fn $event_elapsed(state, to: *mut f32, start: Handle, end: Handle) {
            let (start, end) = (&state.events[&(start as usize)], &state.events[&(end as usize)]);
            if [start, end].iter().any(|event| event.come < event.records.len() as u64) {
                return NOT_READY;
            }
            *to = (end.time - start.time) as f32 / 1e6;
            0
        }
        // What waits for it goes on doing so: handles are not used twice.
        fn $event_destroy(state, event: Handle) { 0 }
        fn $alloc(state, to: *mut u64, bytes: usize) {
            if bytes > 1 << 40 {
                return OUT_OF_MEMORY;
            }
            if state.forbidden() {
                return CAPTURE_UNSUPPORTED;
            }
            // From 256 bytes on, as a driver's; what is in it is not 0.
            let block = vec![0xA5u8; bytes + 256].leak();
            let address = (block.as_ptr() as u64).next_multiple_of(256);
            state.live.insert(address, bytes);
            *to = address;
            0
        }
        fn $free(state, address: u64) {
            if state.forbidden() {
                return CAPTURE_UNSUPPORTED;
            }
            state.drain_all();
            // The block stays the process's, so that the device's mistakes do not become the host's.
            if state.live.remove(&address).is_some() { 0 } else { INVALID_VALUE }
        }
        fn $copy_to_device(state, to: u64, from: u64, bytes: usize, stream: Handle) {
            state.queue(stream, Item::Copy { to, from, bytes, to_host: false, from_host: true });
            0
        }
        fn $copy_to_host(state, to: u64, from: u64, bytes: usize, stream: Handle) {
            state.queue(stream, Item::Copy { to, from, bytes, to_host: true, from_host: false });
            0
        }
        fn $copy(state, to: u64, from: u64, bytes: usize, stream: Handle) {
            state.queue(stream, Item::Copy { to, from, bytes, to_host: false, from_host: false });
            0
        }
        fn $fill(state, to: u64, byte: u8, bytes: usize, stream: Handle) {
            state.queue(stream, Item::Fill { to, byte, bytes });
            0
        }
        fn $module_load(state, to: *mut Handle, image: *const c_char) {
            if state.forbidden() {
                return CAPTURE_UNSUPPORTED;
            }
            // An image does not end in 0, but its length is in it: here, the last brace.
            let mut bytes = Vec::new();
            while !matches!((bytes.last(), *image.add(bytes.len())), (_, 0) | (Some(b'}'), _)) {
                bytes.push(*image.add(bytes.len()) as u8);
            }
            let text = String::from_utf8(bytes).unwrap();
            let mut parts = text.split(' ');
            match (parts.next(), parts.next(), parts.next()) {
                (Some("FAKE"), Some(architecture), Some(process)) => {
                    let own = process.lines().next() == Some(&std::process::id().to_string());
                    if architecture != ARCHITECTURES[current(&state)] {
                        return NO_BINARY;
                    }
                    if std::env::var_os("FAKE_FOREIGN").is_some() && !own {
                        return INVALID_IMAGE;
                    }
                }
                _ if !LOADS_TEXT => return NO_BINARY,
                _ if text.contains("nonsense") => return INVALID_PTX,
                _ => {}
            }
            let module = state.handle();
            state.modules.insert(module, text);
            *to = module as Handle;
            0
        }
        fn $module_unload(state, module: Handle) {
            let module = module as usize;
            let runs = |item: &Item| matches!(item, Item::Launch(work) if work.module == module);
            if state.queues.values().flatten().any(runs) {
                fault("a kernel is unloaded that is queued");
            }
            state.modules.remove(&module);
            0
        }
        fn $module_function(state, to: *mut Handle, module: Handle, name: *const c_char) {
            let name = CStr::from_ptr(name).to_str().unwrap().to_owned();
            if !state.modules[&(module as usize)].contains(&format!(" {name}(")) {
                return NOT_FOUND;
            }
            let function = state.handle();
            state.functions.insert(function, (module as usize, name, SHARED));
            *to = function as Handle;
            0
        }
        fn $function_attribute(state, to: *mut c_int, attribute: c_int, function: Handle) {
            *to = match attribute {
                0 => 1024,
                1 => 0,
                3 => if std::env::var_os("FAKE_LOCAL").is_some() { 8 } else { 0 },
                4 => 12,
                _ => return INVALID_VALUE,
            };
            0
        }
    }};
}
