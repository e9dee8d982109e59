//! bitsandbytes: NF4 and FP4. `weight` stores the codes of the flattened weight, the even one in
//! the high half of a byte; `weight.absmax` a scale for each block of codes; `weight.quant_map` the
//! values of the codes; `weight.quant_state.bitsandbytes__nf4` a JSON text with shape and block
//! size.
//!
//! Scales that are codes themselves (double quantisation) are decoded when the file is opened, in
//! f32 as the software does. Source: bitsandbytes 0.50.2, `functional.py` (`QuantState`).

use std::collections::BTreeMap;

use quantloom_dsl::layout::Shape;
use safetensors::Dtype;
use serde_json::{Map, Value};

use super::clause::bias_clause;
use super::config::parse_json;
use super::layer::{LayerError, Recognised};
use super::{CheckpointError, Found, LayerSource, Tensor};

/// Kinds of codes, by the end of the name of the state's tensor.
const KINDS: [&str; 2] = ["nf4", "fp4"];

pub(super) fn layers(source: &LayerSource<'_>) -> Result<Found, CheckpointError> {
    let four_bits = source.having("weight.absmax").into_iter().map(|layer| {
        let recognised = Reader { source, layer: &layer }.read();
        (layer, recognised)
    });
    let eight_bits = source.having("SCB").into_iter().map(|layer| {
        let what = "bitsandbytes' 8-bit layers are not supported: the software multiplies columns of x \
                    beyond `llm_int8_threshold` apart, which no scheme says; 4-bit layers are";
        let refused = Err(LayerError::unsupported(&layer, what).into());
        (layer, refused)
    });
    Ok(four_bits.chain(eight_bits).collect())
}

struct Reader<'a> {
    source: &'a LayerSource<'a>,
    layer: &'a str,
}

impl Reader<'_> {
    fn fault(&self, what: impl Into<String>) -> CheckpointError {
        LayerError::inconsistent(self.layer, what).into()
    }

    fn unsupported(&self, what: impl Into<String>) -> CheckpointError {
        LayerError::unsupported(self.layer, what).into()
    }

    fn read(&self) -> Result<Recognised, CheckpointError> {
        let state = self.state()?;
        let shape: Option<Vec<u64>> = state
            .get("shape")
            .and_then(Value::as_array)
            .and_then(|sizes| sizes.iter().map(Value::as_u64).collect());
        let (n, k) = match shape.as_deref() {
            Some(&[n, k]) if n > 0 && k > 0 => (n, k),
            _ => return Err(self.fault("the quant_state's `shape` is not [N, K]")),
        };
        let block = self.size(&state, "blocksize")?;
        if !k.is_multiple_of(block as u64) {
            return Err(self.unsupported(format!(
                "blocks of {block} codes of the flattened weight run over the ends of its rows of {k}, \
                 which no group of a scheme does"
            )));
        }
        let codes = self.source.needed(self.layer, "weight")?;
        if codes.dtype() != Dtype::U8 {
            let what =
                format!("`weight` is of type {:?}; only U8 storage is supported", codes.dtype());
            return Err(self.unsupported(what));
        }
        let map = self.floats("weight.quant_map")?;
        if map.len() != 16 {
            return Err(self.fault(format!("`weight.quant_map` has {} values, not 16", map.len())));
        }
        let values: Vec<String> = map.iter().map(|value| f64::from(*value).to_string()).collect();
        let mut made = BTreeMap::new();
        let absmax = self.source.needed(self.layer, "weight.absmax")?;
        if absmax.dtype() == Dtype::U8 {
            made.insert("weight.absmax".to_owned(), self.nested(&state, absmax)?);
        }
        let bias = bias_clause(self.source, self.layer)?;
        let scheme = format!(
            "BitsAndBytes {{ weight: codebook({}), scale: f32 per 1x{block} as \"weight.absmax\",
               pack: u8 [~k:2 | k, n], activation: bf16 | f16, {bias} }}",
            values.join(", ")
        );
        Ok(Recognised { scheme: scheme.into(), shape: Shape::matrix(n, k), made, flat: true })
    }

    /// The JSON text that the software keeps in a tensor of bytes.
    fn state(&self) -> Result<Map<String, Value>, CheckpointError> {
        let name = |kind: &str| format!("weight.quant_state.bitsandbytes__{kind}");
        let found = KINDS.iter().find_map(|kind| self.source.tensor(self.layer, &name(kind)));
        let tensor = found.ok_or_else(|| {
            LayerError::missing(self.layer, format!("{}.{}", self.layer, name("nf4")))
        })?;
        let fault = |what: &str| self.fault(format!("its quant_state {what}"));
        if tensor.bytes().len() > 1 << 16 {
            return Err(fault("is too large"));
        }
        let text = std::str::from_utf8(tensor.bytes()).map_err(|_| fault("is not UTF-8"))?;
        match parse_json(text, "the quant_state").map_err(|error| self.fault(error.to_string()))? {
            Value::Object(state) => Ok(state),
            _ => Err(fault("is not an object")),
        }
    }

    fn size(&self, state: &Map<String, Value>, key: &str) -> Result<usize, CheckpointError> {
        let size = state.get(key).and_then(Value::as_u64);
        let size = size.filter(|size| (1..=1 << 24).contains(size));
        size.map(|size| size as usize)
            .ok_or_else(|| self.fault(format!("the quant_state's `{key}` is not a block size")))
    }

    fn floats(&self, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let tensor = self.source.needed(self.layer, name)?;
        if tensor.dtype() != Dtype::F32 {
            return Err(LayerError::of_type(self.layer, name, tensor.dtype(), "F32").into());
        }
        let (values, _) = tensor.bytes().as_chunks::<4>();
        Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// Scales that are codes of a table: `table[code] * scale + offset`, each operation in f32.
    fn nested(
        &self,
        state: &Map<String, Value>,
        codes: &Tensor,
    ) -> Result<Tensor, CheckpointError> {
        let block = self.size(state, "nested_blocksize")?;
        let offset = state
            .get("nested_offset")
            .and_then(Value::as_f64)
            .ok_or_else(|| self.fault("the quant_state's `nested_offset` is missing"))?
            as f32;
        let table = self.floats("weight.nested_quant_map")?;
        let scales = self.floats("weight.nested_absmax")?;
        if table.len() != 256 || scales.len() < codes.bytes().len().div_ceil(block) {
            return Err(self.fault("the tables of its quantised scales are too short"));
        }
        let decoded = codes.bytes().iter().enumerate();
        let bytes = decoded
            .flat_map(|(at, code)| {
                (table[usize::from(*code)] * scales[at / block] + offset).to_le_bytes()
            })
            .collect();
        Ok(Tensor::new(Dtype::F32, codes.shape().to_vec(), bytes))
    }
}
