//! The operation of a prepared weight: a kernel for its M, M cut into the chunks that it takes, y
//! rounded.

use std::collections::BTreeSet;

use quantloom_dsl::format::{F16, F32, FloatFormat};
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Activation, Scheme};

use super::executor::Executor;
use super::products::ChosenKernel;
use super::weight::{GpuWeight, PreparedProduct};
use crate::accumulation::Accumulation;
use crate::buffer::Workspace;
use crate::element::{Values, ValuesMut, bf16, bf16_to_f32, f16, f16_to_f32};
use crate::explanation::together;
use crate::float_mode::standard;
use crate::op::{self, NotScheduled, Op, ProductError};
use crate::source::Refusal;

impl<E: Executor + 'static> Op for GpuWeight<E> {
    fn scheme(&self) -> &Scheme {
        &self.scheme
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn kernel(&self, tokens: usize) -> String {
        let first = self.products.first().map_or(F32, |product| product.element);
        match self.choice(first, tokens as u64) {
            Ok(choice) => format!("{}, {}", choice.key.target, choice.key.schedule.name),
            Err(why) => format!("none: {why}"),
        }
    }

    fn explain(&self, tokens: usize) -> String {
        let chosen = self.products.iter().map(|product| {
            let own = product.element;
            let taken = self.taken(product);
            match self.choice(own, tokens as u64) {
                Ok(ChosenKernel { key, by, compute_dtype, .. }) => {
                    format!("{taken}: {key} is chosen, {by}; multiplied {compute_dtype}")
                }
                Err(why) => format!("x in {own}: {why}"),
            }
        });
        let alone = |(own, _): &&(FloatFormat, Refusal)| self.product(*own).is_err();
        let refused = self.refused.iter().filter(alone);
        let refused = together(refused.map(|(own, why)| (format!("x in {own}"), why.to_string())));
        let parts = self.products.iter().flat_map(|product| &product.parts);
        let filled: BTreeSet<String> = parts.filter_map(|part| part.note.clone()).collect();
        chosen.chain(refused).chain(filled).collect::<Vec<_>>().join("\n")
    }

    fn accumulation(&self) -> &dyn Accumulation {
        self
    }

    /// None: memory is the device's.
    fn workspace_size(&self, _tokens: usize) -> usize {
        0
    }

    fn matmul_into(
        &self,
        expert: u64,
        x: Values<'_>,
        mut y: ValuesMut<'_>,
        _workspace: &mut Workspace,
    ) -> Result<(), ProductError> {
        let tokens = op::sizes(self.shape, expert, x, &y)?;
        let (own, asked) = (x.format(), y.format());
        let product = self.product(own)?;
        let output = product.output;
        if asked != F32 && asked != output {
            return Err(NotScheduled::TypeOfY { x: own, y: asked, rounded: output }.into());
        }
        if tokens == 0 {
            return Ok(());
        }
        let k = self.shape.k as usize;
        if let (Activation::Quantised(_), Some((at, value))) = (&product.activation, x.non_finite())
        {
            return Err(ProductError::NotFinite { token: at / k, k: at % k, value });
        }
        let plan = self.plan(own, tokens as u64)?;
        let mut result: Vec<u8> = Vec::new();
        for (first, chunk) in &plan.chunks {
            let (first, rows) = (*first as usize, chunk.problem.m as usize);
            let x = x.part(first * k..(first + rows) * k);
            // A kernel is perhaps simulated, with this thread's arithmetic.
            let part = standard(|| {
                let mut tensors = self.tensors_of(product, chunk.clone(), x)?;
                self.queue(&mut tensors, false).map_err(Into::into)?;
                self.result(&tensors).map_err(Into::into)
            });
            result.extend(part?);
        }
        store(&result, output, &mut y);
        Ok(())
    }
}

impl<E: Executor> GpuWeight<E> {
    /// What becomes of x in the type of a product.
    fn taken(&self, product: &PreparedProduct<E>) -> String {
        let (own, rounded) = (product.element, product.rounded);
        let Some(taken) = self.scheme.activation_for(own) else { return format!("x in {own}") };
        if rounded == own {
            return match taken.converted() {
                Some(_) => format!("x in {own} is not converted"),
                None => taken.to_string(),
            };
        }
        let refused = self.refused.iter().find(|(refused, _)| *refused == own);
        let why = match (taken.converted(), refused) {
            (None, Some((_, why))) => why.to_string(),
            _ => format!("the scheme does not list {own}"),
        };
        format!("x in {own} is rounded to {rounded}, since {why}")
    }
}

/// Results as they are, or widened.
pub(super) fn store(result: &[u8], output: FloatFormat, y: &mut ValuesMut<'_>) {
    let halves = || result.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match y {
        ValuesMut::F32(y) if output == F32 => {
            for (y, bytes) in y.iter_mut().zip(result.chunks_exact(4)) {
                *y = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        ValuesMut::F32(y) => {
            let widen = if output == F16 { f16_to_f32 } else { bf16_to_f32 };
            for (y, bits) in y.iter_mut().zip(halves()) {
                *y = widen(bits);
            }
        }
        ValuesMut::F16(y) => {
            for (y, bits) in y.iter_mut().zip(halves()) {
                *y = f16::from_bits(bits);
            }
        }
        ValuesMut::Bf16(y) => {
            for (y, bits) in y.iter_mut().zip(halves()) {
                *y = bf16::from_bits(bits);
            }
        }
    }
}
