//! Writing the other way: plain codes into a scheme's stored tensors, and float weights into
//! plain codes on all cores.

use std::collections::BTreeMap;

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::{Component, Grain, Layout, Recode, Shape, Transform};
use quantloom_dsl::reference::{Packed, Plain, ReferenceError, quantise};
use quantloom_dsl::{Scheme, Store};
use rayon::prelude::*;

use crate::unpacked::UnpackError;

/// Packs plain codes through the layout transforms; the same bytes as the reference's `pack`.
///
/// # Errors
/// [`UnpackError::Bind`], [`UnpackError::Transform`], [`UnpackError::Missing`].
pub fn pack(scheme: &Scheme, plain: &Plain) -> Result<Packed, UnpackError> {
    crate::forked::check().map_err(UnpackError::Forked)?;
    let mut packed = Packed::new();
    for store in &scheme.stores {
        packed.insert(store.name.clone(), pack_store(scheme, plain, store)?);
    }
    Ok(packed)
}

fn pack_store(scheme: &Scheme, plain: &Plain, store: &Store) -> Result<Vec<u8>, UnpackError> {
    let name = || store.name.clone();
    let bind_fault = |error| UnpackError::Bind { store: name(), error };
    let transform_fault = |error| UnpackError::Transform { store: name(), error };
    let bound = scheme.bind(store, plain.shape).map_err(bind_fault)?;
    let mut bytes = bound.blank(&store.layout);
    for component in scheme.components() {
        let Some(grains) = scheme.grains(component) else { continue };
        if !store.layout.holds(component) {
            continue;
        }
        let slots = Layout::plain(component, grains.bits)
            .bind(plain.shape, &|_| Some(grains))
            .map_err(bind_fault)?;
        let slot = (grains.bits.next_power_of_two().max(8) / 8) as usize;
        let codes = plain.of(component);
        let source: Vec<u8> =
            codes.iter().flat_map(|code| code.to_le_bytes().into_iter().take(slot)).collect();
        Transform::new(component, &slots, &bound, Recode::Keep)
            .and_then(|transform| transform.run(&source, &mut bytes))
            .map_err(transform_fault)?;
    }
    Ok(bytes)
}

/// The reference's `quantise`, on blocks of rows in parallel where no scale spans all rows;
/// `progress` is told how many more weights are done.
///
/// # Errors
/// [`ReferenceError::Length`].
pub fn quantise_rows(
    scheme: &Scheme,
    shape: Shape,
    w: &[f64],
    own: FloatFormat,
    bias: Option<&[f64]>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Plain, ReferenceError> {
    let Some(block) = row_block(scheme, shape) else {
        let plain = quantise(scheme, shape, w, own, bias);
        progress(w.len() as u64);
        return plain;
    };
    let columns = shape.k as usize;
    let parts: Vec<Plain> = w
        .par_chunks(block * columns)
        .enumerate()
        .map(|(part, rows)| {
            let shape = Shape::matrix((rows.len() / columns) as u64, shape.k);
            let first = part * block;
            let bias = bias.map(|bias| &bias[first..first + shape.n as usize]);
            let plain = quantise(scheme, shape, rows, own, bias);
            progress(rows.len() as u64);
            plain
        })
        .collect::<Result<_, _>>()?;
    let mut components: BTreeMap<Component, Vec<u32>> = BTreeMap::new();
    for part in parts {
        for (component, codes) in part.components {
            let whole = components.entry(component).or_default();
            let once = scheme.grains(component).is_some_and(|g| g.rows == Grain::All);
            if !once || whole.is_empty() {
                whole.extend(codes);
            }
        }
    }
    Ok(Plain { shape, components })
}

/// Rows of a block that is quantised on its own; `None` if the weight must stay whole.
fn row_block(scheme: &Scheme, shape: Shape) -> Option<usize> {
    let groups = scheme.scales.iter().map(|scale| scale.group);
    let groups = groups.chain(scheme.zero.map(|zero| zero.group));
    let groups = groups.chain(scheme.shift.map(|shift| shift.group));
    let mut rows = 1u64;
    for group in groups {
        match group.rows {
            Grain::All => return None,
            Grain::Each(count) => {
                let count = u64::from(count);
                rows = if rows.is_multiple_of(count) { rows } else { rows.checked_mul(count)? };
            }
        }
    }
    let block = rows * 16u64.div_ceil(rows);
    (shape.experts == 1 && rows < 1 << 20).then_some(block as usize)
}
