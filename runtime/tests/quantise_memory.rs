//! Quantising a layer takes memory for its codes and for some rows as numbers, not for all of them:
//! beside the mapped file, less than the layer has as f32, and a block of rows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use quantloom_dsl::parse;
use quantloom_runtime::checkpoint::Tensors;
use quantloom_runtime::quantise::{candidates, quantise_checkpoint};

/// The system's allocator, with the bytes in use and the most there were.
struct Counted;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(used, Relaxed);
        // SAFETY: the caller's layout is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's pointer came from `alloc`, that is from the system.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

const N: usize = 512;
const K: usize = 4096;

#[test]
fn a_layer_is_streamed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("float.safetensors");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let bytes = N * K * 4;
    let header =
        format!(r#"{{"l.weight":{{"dtype":"F32","shape":[{N},{K}],"data_offsets":[0,{bytes}]}}}}"#);
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    for at in 0..N * K {
        let value = ((at * 2_654_435_761) % 2001) as f32 / 1000.0 - 1.0;
        file.write_all(&value.to_le_bytes()).unwrap();
    }
    file.into_inner().unwrap();
    let threads = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    for scale in ["bf16 per 1x128", "bf16 per channel", "f32 per tensor"] {
        let text = format!("s {{ weight: i8, scale: {scale}, pack: [k, n], activation: bf16 }}");
        let scheme = parse(&text).unwrap();
        let tensors = Tensors::open(&path).unwrap();
        let chosen = candidates(&tensors, &scheme);
        let out = folder.path().join("q.safetensors");
        let before = USED.load(Relaxed);
        MOST.store(before, Relaxed);
        threads.install(|| quantise_checkpoint(&tensors, &scheme, &chosen, &out, &|_| {})).unwrap();
        // Codes in slots and packed are a quarter of the weight each. Of this small one the rows of
        // a block, several times in 8 bytes, are about as much as the whole; all rows would be six
        // times as much.
        let most = MOST.load(Relaxed) - before;
        assert!(most < bytes * 3 / 2, "{scale}: {most} bytes for a weight of {bytes}");
    }
}
