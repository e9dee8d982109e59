//! A child of `fork` that multiplies: an error in the parent's pool, a product in its own.

#![allow(clippy::print_stdout, clippy::print_stderr)]

#[cfg(unix)]
fn main() {
    use quantloom_dsl::layout::Shape;
    use quantloom_dsl::parse;
    use quantloom_runtime::Forked;
    use quantloom_runtime::cpu::CpuDevice;
    use quantloom_runtime::op::{Op as _, ProductError, Values};
    use quantloom_runtime::unpacked::{UnpackError, Unpacked};

    let scheme = "a { weight: i8, scale: bf16 per channel, pack: [n, k], activation: bf16 }";
    let (scheme, shape) = (parse(scheme).unwrap(), Shape::matrix(64, 256));
    let (codes, scales) = (vec![1u8; 64 * 256], [0x80, 0x3f].repeat(64));
    let stored = |name: &str| Some(if name.contains("scale") { &scales[..] } else { &codes[..] });
    let unpack = || Unpacked::new(&scheme, shape, &stored);
    let weight = CpuDevice::portable().prepare(&scheme, &unpack().unwrap()).unwrap();
    let x = vec![1.0f32; 5 * 256];
    let multiply = || weight.matmul(0, Values::F32(&x));
    let right = vec![256.0f32; 5 * 64];
    assert_eq!(multiply().unwrap(), right);
    let parent = std::process::id();
    // SAFETY: the child calls what takes no lock that another thread may hold: the parent's other
    // threads are those of the pool, which sleep or spin. It ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: ends the process if it hangs.
        unsafe { libc::alarm(30) };
        let checks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let told = multiply().unwrap_err();
            let Forked { parent: found } = match told {
                ProductError::Forked(forked) => forked,
                other => panic!("{other}"),
            };
            assert_eq!(found, parent);
            assert_eq!(unpack().map(drop), Err(UnpackError::Forked(Forked { parent })));
            let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
            assert_eq!(pool.install(multiply).unwrap(), right);
        }));
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(checks.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` may be written.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child hung or crashed: {status}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "see what the child says");
    // The parent goes on.
    assert_eq!(multiply().unwrap(), right);
    println!("a forked child is told that it has no threads, and multiplies in a pool of its own");
}

#[cfg(not(unix))]
fn main() {}
