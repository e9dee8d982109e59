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
//! `FAKE_FOREIGN`: images of other processes do not load. `FAKE_LOCAL=part`: kernels whose
//! text has that part spill.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard};

use super::kernels::{run, signature};

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
    pub kernel: String,
    pub blocks: u32,
    pub threads: u32,
    pub cluster: u32,
    pub overlaps: bool,
    pub parameters: Vec<Vec<u8>>,
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
        // In one piece: other threads append too.
        log.write_all(format!("{function}={result}\n").as_bytes()).unwrap();
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
    let in_grid = grid[0] > 0 && grid[1..].iter().all(|blocks| (1..=65_535).contains(blocks));
    if shared > most || block[0] > 1024 || (block[1], block[2]) != (1, 1) || !in_grid {
        return INVALID_VALUE;
    }
    let bytes = signature(&kernel).iter().enumerate();
    // SAFETY: the caller's promise.
    let value = |(at, bytes): (usize, &usize)| unsafe {
        std::slice::from_raw_parts(*parameters.add(at), *bytes).to_vec()
    };
    let parameters = bytes.map(value).collect();
    let (blocks, threads) = (grid.iter().product(), block[0]);
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
