//! Arguments and sizes against a kernel's rule.

use quantloom_runtime::cuda::{Argument, DeviceSlice, DeviceSliceMut, Limits, Prepared};
use quantloom_runtime::source::{Access, Count, LaunchRule, Parameter, ProblemSize, Scalar};

const LIMITS: Limits = Limits {
    threads: 1024,
    shared_bytes: 227 << 10,
    grid_threads: u32::MAX as u64,
    cluster_blocks: 8,
};
const PROBLEM: ProblemSize = ProblemSize::new(2, 100, 64, 132);

fn rule() -> LaunchRule {
    let parameters = vec![
        Parameter::buffer("x", Access::Read, Count::M * Count::K * 2),
        Parameter::buffer("y", Access::Write, Count::M * Count::N * 4),
        Parameter::size("n", Count::N),
        Parameter::scalar("shift", Scalar::I32),
        Parameter::size("tiles", Count::N.ceil_div(16)),
        Parameter::scalar("factor", Scalar::F32),
    ];
    LaunchRule {
        shared_bytes: Count::K * 16,
        ..LaunchRule::plain(Count::N.ceil_div(32), 256, parameters)
    }
}

fn read<'a>(address: u64, bytes: u64) -> Argument<'a> {
    // SAFETY: nothing is launched.
    Argument::Read(unsafe { DeviceSlice::from_raw(address, bytes) })
}

fn write<'a>(address: u64, bytes: u64) -> Argument<'a> {
    // SAFETY: nothing is launched.
    Argument::Write(unsafe { DeviceSliceMut::from_raw(address, bytes) })
}

fn arguments<'a>() -> Vec<Argument<'a>> {
    vec![read(0x1000, 256), write(0x2000, 800), Argument::I32(-2), Argument::F32(0.5)]
}

#[test]
fn sizes_and_numbers_reach_the_launch() {
    let (rule, arguments) = (rule(), arguments());
    let prepared = Prepared::new(&rule, &PROBLEM, LIMITS, &arguments).unwrap();
    assert_eq!(prepared.grid, [4, 1, 1]);
    assert_eq!((prepared.threads, prepared.shared_bytes), (256, 1024));
    assert_eq!(prepared.cluster, [1, 1, 1]);
    let numbers: Vec<_> = (0..7).map(|at| prepared.number(at)).collect();
    let expected = [0x1000, 0x2000, 100, u64::from(u32::MAX - 1), 7, u64::from(0.5f32.to_bits())];
    let mut expected: Vec<_> = expected.into_iter().map(Some).collect();
    expected.push(None);
    assert_eq!(numbers, expected);
}

type Change = fn(&mut LaunchRule, &mut Vec<Argument<'static>>);

#[test]
fn what_does_not_fit_is_refused_with_a_reason() {
    let cases: &[(Change, &str)] = &[
        (|_, a| a.truncate(3), "4 arguments expected, 3 given"),
        (|_, a| a.push(Argument::U32(1)), "4 arguments expected, 5 given"),
        (|_, a| a[2] = Argument::U32(1), "parameter `shift` is an i32, a u32 given"),
        (|_, a| a[3] = Argument::U64(1), "parameter `factor` is an f32, a u64 given"),
        (
            |_, a| a[0] = write(0x1000, 256),
            "parameter `x` is a buffer to read, a buffer to write given",
        ),
        (
            |_, a| a[1] = read(0x1000, 800),
            "parameter `y` is a buffer to write, a buffer to read given",
        ),
        (|_, a| a[0] = read(0x1000, 255), "buffer `x` has 255 bytes, the kernel touches 256"),
        (|_, a| a[1] = write(0x2000, 799), "buffer `y` has 799 bytes, the kernel touches 800"),
        (
            |_, a| a[0] = read(0x1008, 256),
            "buffer `x` is at 0x1008, the kernel needs a multiple of 16",
        ),
        (|r, _| r.grid[0] = Count::Fixed(0), "the number of blocks is 0"),
        (
            |r, _| r.grid[1] = Count::Fixed(65536),
            "the number of blocks along y is 65536, at most 65535",
        ),
        (
            |r, _| r.grid[0] = Count::Fixed(1 << 31),
            "the number of blocks along x is 2147483648, at most 2147483647",
        ),
        (
            |r, _| r.grid[2] = Count::N.ceil_div(0),
            "the number of blocks along z = ceil(N / 0) is no 64-bit number for this problem",
        ),
        (|r, _| r.cluster = [3, 1, 1], "4 blocks along x are not whole clusters of 3"),
        (
            |r, _| (r.grid[0], r.cluster) = (Count::Fixed(16), [16, 1, 1]),
            "the number of blocks of a cluster is 16, at most 8",
        ),
        (|r, _| r.cluster = [2, 0, 1], "the number of blocks of a cluster is 0"),
        (
            |r, _| r.grid[0] = Count::Fixed(1 << 24),
            "the number of threads along x is 4294967296, at most 4294967295",
        ),
        (|r, _| r.threads = 0, "the number of threads is 0"),
        (|r, _| r.threads = 1056, "the number of threads of a block is 1056, at most 1024"),
        (
            |r, _| r.shared_bytes = Count::Fixed((227 << 10) + 1),
            "the bytes of shared memory of a block is 232449, at most 232448",
        ),
        (
            |r, _| r.parameters[2] = Parameter::size("n", Count::Fixed(1 << 32)),
            "parameter `n` is 4294967296, at most 4294967295",
        ),
        (
            |r, _| r.parameters.extend((0..27).map(|_| Parameter::size("n", Count::N))),
            "the number of parameters is 33, at most 32",
        ),
    ];
    for (change, expected) in cases {
        let (mut rule, mut arguments) = (rule(), arguments());
        change(&mut rule, &mut arguments);
        match Prepared::new(&rule, &PROBLEM, LIMITS, &arguments) {
            Ok(_) => panic!("taken, expected: {expected}"),
            Err(fault) => assert_eq!(fault.to_string(), *expected),
        }
    }
}

#[test]
fn the_limits_themselves_are_taken() {
    let mut rule = rule();
    rule.grid = [Count::Fixed(8), Count::Fixed(65535), Count::Fixed(65535)];
    rule.cluster = [8, 1, 1];
    rule.threads = 1024;
    rule.shared_bytes = Count::Fixed(227 << 10);
    rule.parameters.extend((0..26).map(|_| Parameter::size("n", Count::N)));
    let arguments = arguments();
    let prepared = Prepared::new(&rule, &PROBLEM, LIMITS, &arguments).unwrap();
    assert_eq!((prepared.grid, prepared.number(31)), ([8, 65535, 65535], Some(100)));
}
