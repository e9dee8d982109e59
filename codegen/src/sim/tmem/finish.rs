//! What the hardware completes: products and copies, in the order of their commits.

use super::{
    Commit, InFlight, InFlightKind, Place, ProductOperand, ScaleWords, TensorMemory, cell,
    scale_places,
};
use crate::ir::{Element, Scaling};
use crate::sim::clock::{ALL_LANES, Observer};
use crate::sim::fault::FaultKind;
use crate::sim::matrix::{elements, summed};
use crate::sim::misuse::TmemMisuse;
use crate::sim::state::UnitState;
use crate::target::{ScaleCode, TMEM_LANES, TMEM_WARP_LANES};

/// Why a commit of a block fails, and where.
pub(in crate::sim) struct Failed {
    pub(in crate::sim) point: u32,
    pub(in crate::sim) kind: FaultKind,
}

/// Completes the oldest commit of a block: its work, in order, and its arrival.
pub(in crate::sim) fn land(state: &mut UnitState<'_, '_>, block: usize) -> Result<(), Box<Failed>> {
    let Some(tmem) = &mut state.blocks[block].tmem else { return Ok(()) };
    let Some(mut commit) = tmem.commits.pop_front() else { return Ok(()) };
    let landed = &mut tmem.landed[usize::from(commit.by.0)];
    *landed += 1;
    let (epoch, entity) = (*landed, state.context.tmem_engine(commit.by.0));
    for work in &commit.work {
        let engine = Observer {
            unit: state.unit,
            entity,
            epoch,
            point: work.point,
            clock: &commit.clock,
            partial: None,
        };
        let finished = finish(state, block, (work, &commit), &engine);
        finished.map_err(|kind| Box::new(Failed { point: work.point, kind }))?;
    }
    // What the thread committed before has landed too.
    commit.clock.own[usize::from(entity)].full = epoch;
    let number = commit.mbarrier;
    let engine = state.context.engine(block, number);
    let arrived = state.blocks[block].mbarriers[number].arrive(&commit.clock, engine);
    arrived.map_err(|misuse| {
        let barrier = state.mbarrier_name(number);
        let kind = FaultKind::Barrier { barrier, misuse };
        Box::new(Failed { point: commit.point, kind })
    })
}

fn finish(
    state: &mut UnitState<'_, '_>,
    block: usize,
    (work, commit): (&InFlight, &Commit),
    engine: &Observer<'_>,
) -> Result<(), FaultKind> {
    let truncate = state.context.options.truncate_fp8;
    let record = engine.record(ALL_LANES);
    let at = &mut state.blocks[block];
    let Some(tmem) = &mut at.tmem else { return Ok(()) };
    let mut shared = |segments: &[(u32, u32)]| {
        let mut all = Vec::new();
        for &(start, len) in segments {
            all.extend_from_slice(&at.shared.bytes[start as usize..(start + len) as usize]);
            at.shared.end_read(engine, ALL_LANES, (start, len));
        }
        all
    };
    match &work.what {
        InFlightKind::Copy { to, from } => {
            let bytes = shared(&[(*from, 512)]);
            for lane in 0..TMEM_LANES {
                let row = 16 * (lane % TMEM_WARP_LANES) as usize;
                tmem.cells.land(cell(lane, to.start), &bytes[row..row + 16], record, 0);
            }
        }
        InFlightKind::Product(of) => {
            let (op, k) = (of.op, of.op.shape[2]);
            let a = match &of.a {
                ProductOperand::Shared(segments) => elements(op.a, &shared(segments)),
                ProductOperand::Tmem(columns) => {
                    let place = Place { lanes: 0..TMEM_LANES, columns: columns.clone() };
                    let mut bytes = Vec::new();
                    for range in place.ranges() {
                        let words = tmem.words(range);
                        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
                        tmem.cells.end_read(engine, ALL_LANES, range);
                    }
                    elements(op.a, &bytes)
                }
            };
            let b = elements(op.b, &shared(&of.b));
            let [mut a, mut b] = [a, b];
            if let (Some(scaling), Some([of_a, of_b])) = (op.scaling, &of.scales) {
                scale(tmem, (&mut a, k), scaling, of_a, engine)?;
                scale(tmem, (&mut b, k), scaling, of_b, engine)?;
            }
            let k = k as usize;
            let mut products = vec![0f64; k];
            for row in 0..TMEM_LANES {
                let range = (cell(row, of.d.start), 4 * of.n);
                let old = of.adds.then(|| tmem.words(range));
                let a = &a[row as usize * k..][..k];
                let sums = (0..of.n as usize).map(|column| {
                    let b = &b[column * k..][..k];
                    for (product, (a, b)) in products.iter_mut().zip(a.iter().zip(b)) {
                        *product = a * b;
                    }
                    let addend = old.as_ref().map(|old| old[column]);
                    let fp8 = op.a == Element::E4m3;
                    let cut = truncate && fp8 && op.scaling.is_none();
                    summed(&products, addend, op.d, cut)
                });
                let bytes: Vec<u8> = sums.flat_map(u32::to_le_bytes).collect();
                tmem.cells.land(range.0, &bytes, record, 0);
            }
            let writes = |work: &InFlight| match &work.what {
                InFlightKind::Product(later) => later.d == of.d,
                InFlightKind::Copy { .. } => false,
            };
            // This product has left its commit's list already, or is the one that is compared with itself.
            let behind = commit.work.iter().skip_while(|other| !std::ptr::eq(*other, work)).skip(1);
            if behind.chain(tmem.in_flight()).any(writes) {
                let place = Place { lanes: 0..TMEM_LANES, columns: of.d.clone() };
                for range in place.ranges() {
                    tmem.cells.resume_write(range);
                }
            }
        }
    }
    Ok(())
}

/// Multiplies the elements of an operand, row by row, by their scales.
fn scale(
    tmem: &mut TensorMemory,
    (elements, k): (&mut [f64], u32),
    scaling: Scaling,
    scales: &ScaleWords,
    engine: &Observer<'_>,
) -> Result<(), FaultKind> {
    let number = scaling.code.number();
    for row in 0..scales.rows {
        let column = scales.columns.start + row / TMEM_WARP_LANES;
        let lanes = (0..TMEM_LANES / TMEM_WARP_LANES)
            .map(|quarter| TMEM_WARP_LANES * quarter + row % TMEM_WARP_LANES);
        let words: Vec<u32> = lanes.map(|lane| tmem.words((cell(lane, column), 4))[0]).collect();
        if words.iter().any(|word| *word != words[0]) {
            return Err(FaultKind::Tmem(TmemMisuse::ScaleCopies { row, column }));
        }
        let of_row = &mut elements[(row * k) as usize..((row + 1) * k) as usize];
        for (block, elements) in of_row.chunks_mut(scaling.columns as usize).enumerate() {
            let code = words[0] >> (8 * (u32::from(scales.byte) + block as u32)) & 0xff;
            // What the instruction takes a set top bit for is not specified.
            if scaling.code == ScaleCode::UnsignedE4m3 && code & 0x80 > 0 {
                let what = "a scale of unsigned e4m3 with its top bit set";
                return Err(FaultKind::Unsupported(what));
            }
            let scale = number.decode(code);
            elements.iter_mut().for_each(|element| *element *= scale);
        }
    }
    for place in scale_places(&scales.columns, scales.rows) {
        for range in place.ranges() {
            tmem.cells.end_read(engine, ALL_LANES, range);
        }
    }
    Ok(())
}
