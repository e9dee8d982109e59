//! A function of a schedule as a kernel of its own, one element a thread.

use quantloom_codegen::ir::{
    Access, Address, Builder, Cache, Extent, LaunchConfig, Operand, Special, Type, Width, Word,
    verify,
};
use quantloom_codegen::sim::{Arguments, Contents, SimulationOptions, run};
use quantloom_codegen::target::target;

const THREADS: u32 = 256;

/// `f` of each element of one list, or of two.
pub(super) fn apply(
    name: &str,
    inputs: &[Vec<f32>],
    f: impl FnOnce(&mut Builder, &[Operand]) -> Operand,
) -> Vec<f32> {
    let len = inputs[0].len() as u32;
    assert!(len.is_multiple_of(THREADS));
    let one = Extent::Constant(1);
    let grid = [Extent::Constant(len / THREADS), one, one];
    let launch =
        LaunchConfig { grid, threads: THREADS, min_blocks: 1, cluster: 1, programmatic: false };
    let mut b = Builder::new("apply", "f of each element.", target(name).unwrap(), launch);
    let shape = [Extent::Constant(len)];
    let sources: Vec<_> = (0..inputs.len())
        .map(|at| b.buffer(&format!("in{at}"), Word::U32, Access::ReadOnly, &shape, "f32"))
        .collect();
    let result = b.buffer("out", Word::U32, Access::WriteOnce, &shape, "f32");
    let (block, thread) = (b.special(Special::Block(0)), b.special(Special::Thread));
    let at = b.mad(block, THREADS, thread);
    let values: Vec<Operand> = sources
        .into_iter()
        .map(|from| {
            let from = Address::new(from, at);
            b.load_as(Type::F32, from, Width::B32, None, Cache::Default)[0].into()
        })
        .collect();
    let value = f(&mut b, &values);
    b.store(Address::new(result, at), &[value], Width::B32, None);
    let kernel = verify(b.finish()).unwrap_or_else(|refusals| panic!("{refusals}"));
    let words = |values: &Vec<f32>| {
        Contents::from_words(&values.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
    };
    let mut buffers: Vec<Contents> = inputs.iter().map(words).collect();
    buffers.push(Contents::poison(4 * len as usize));
    let mut arguments = Arguments { parameters: Vec::new(), buffers };
    run(&kernel, &mut arguments, &SimulationOptions::default())
        .unwrap_or_else(|fault| panic!("{fault}"));
    let result = arguments.buffers.pop().unwrap().words();
    result.into_iter().map(f32::from_bits).collect()
}
