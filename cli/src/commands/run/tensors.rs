//! Tensors of `quantloom run`: those that it reads by FILE:NAME, and those that it writes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use quantloom::runtime::checkpoint::{Dtype, Entry, Tensor, Tensors, Writer};

/// The tensor of FILE:NAME.
pub(super) fn named(option: &str, text: &str) -> Result<Tensor> {
    let (file, name) = text.rsplit_once(':').with_context(|| {
        format!("{option} is FILE:NAME, a safetensors file and the name of a tensor in it")
    })?;
    let file = Tensors::open(Path::new(file))?;
    let tensor = file.get(name).with_context(|| {
        let names: Vec<&str> = file.names().take(12).collect();
        format!("{option}: the file has no tensor \"{name}\"; it has {}", names.join(", "))
    })?;
    Ok(tensor.clone())
}

/// Writes a safetensors file of tensors: name, type, dimensions, bytes.
pub(super) fn write(out: &Path, written: &[(&str, Dtype, Vec<u64>, Vec<u8>)]) -> Result<()> {
    let cannot = || format!("cannot write {}", out.display());
    let entries = written.iter().map(|(name, dtype, shape, bytes)| Entry {
        name: (*name).to_owned(),
        dtype: *dtype,
        shape: shape.clone(),
        bytes: bytes.len() as u64,
    });
    let mut writer =
        Writer::create(out, entries.collect(), &BTreeMap::new()).with_context(cannot)?;
    for (.., bytes) in written {
        if !bytes.is_empty() {
            writer.write(bytes).with_context(cannot)?;
        }
    }
    writer.finish().with_context(cannot)
}
