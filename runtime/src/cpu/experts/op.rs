//! A prepared expert layer on the CPU: the operation that an engine calls.

use quantloom_dsl::Scheme;
use quantloom_dsl::experts::ExpertLayer;
use quantloom_dsl::format::FloatFormat;

use super::super::device::CpuDevice;
use super::super::isa::Isa;
use super::blocks::MOST_ROWS;
use super::memory::Sizes;
use super::stack::Stack;
use crate::accumulation::Sums;
use crate::buffer::Workspace;
use crate::element::ValuesMut;
use crate::experts::{ExpertCall, ExpertError, ExpertMap, ExpertOp, ExpertOptions, Routed, route};
use crate::float_mode::standard;
use crate::forked;
use crate::op::{Op, ProductError};

/// An expert layer whose matrices are packed for the CPU.
#[derive(Clone, Debug)]
pub struct CpuExperts {
    layer: ExpertLayer,
    device: CpuDevice,
    /// L.
    local: usize,
    /// gate_up and down.
    stacks: [Stack; 2],
    options: ExpertOptions,
}

impl CpuExperts {
    pub(super) fn of(
        layer: ExpertLayer,
        device: CpuDevice,
        local: usize,
        stacks: [Stack; 2],
        options: &ExpertOptions,
    ) -> Self {
        Self { layer, device, local, stacks, options: options.clone() }
    }

    pub(super) fn description(&self) -> &ExpertLayer {
        &self.layer
    }

    pub(super) fn isa(&self) -> Isa {
        self.device.isa()
    }

    /// L.
    pub(super) fn local(&self) -> usize {
        self.local
    }

    pub(super) fn stacks(&self) -> &[Stack; 2] {
        &self.stacks
    }

    pub(super) fn map(&self) -> Option<&ExpertMap> {
        self.options.map.as_ref()
    }

    pub(super) fn score_bias(&self) -> &[f32] {
        self.options.score_bias.as_deref().unwrap_or_default()
    }

    pub(super) fn most_workspace(&self) -> u64 {
        self.options.most_workspace
    }

    /// Rows of the token blocks of M tokens: of one expert at most, and on average if they are as many
    /// for each.
    fn rows(&self, tokens: usize) -> (usize, usize) {
        let pairs = tokens.saturating_mul(self.layer.top_k as usize);
        let even = pairs.div_ceil(self.layer.experts as usize);
        (pairs.clamp(1, MOST_ROWS), even.clamp(1, MOST_ROWS))
    }

    /// The lengths of a call.
    fn check(&self, call: &ExpertCall<'_>, y: &ValuesMut<'_>) -> Result<(), ExpertError> {
        let ExpertLayer { hidden, experts, top_k, .. } = self.layer;
        let found = call.x.len() as u64;
        let same = |what: &'static str, expected: u64, found: usize| {
            let found = found as u64;
            if expected == found {
                return Ok(());
            }
            Err(ExpertError::Length { what, expected, found })
        };
        if !found.is_multiple_of(hidden) {
            return Err(ExpertError::Rows { hidden, found });
        }
        let tokens = found / hidden;
        same("y", found, y.len())?;
        if let Some(shared) = call.shared {
            same("the result of shared experts", found, shared.len())?;
        }
        match call.routed {
            Routed::Logits(logits) => {
                same("the router's logits", tokens * u64::from(experts), logits.len())
            }
            Routed::Chosen { ids, weights } => {
                same("the ids of experts", tokens * u64::from(top_k), ids.len())?;
                same("the router weights", tokens * u64::from(top_k), weights.len())
            }
            Routed::Batched { counts, most } => {
                same("the counts of rows", self.local as u64, counts.len())?;
                same("the rows of all experts", tokens, self.local.saturating_mul(most))?;
                let longest = counts.iter().copied().max().unwrap_or(0) as usize;
                if longest > most {
                    return same("the rows of an expert", most as u64, longest);
                }
                Ok(())
            }
        }
    }
}

impl ExpertOp for CpuExperts {
    fn layer(&self) -> &ExpertLayer {
        &self.layer
    }

    fn schemes(&self) -> [&Scheme; 2] {
        self.stacks.each_ref().map(Stack::scheme)
    }

    /// Of experts that each have the same number of rows.
    fn kernels(&self, tokens: usize) -> Vec<String> {
        let (_, rows) = self.rows(tokens);
        let product = |name: &str, stack: &Stack| {
            let matrix = stack.matrices().first();
            let kernel = matrix.map_or_else(String::new, |matrix| matrix.kernel(rows));
            format!("{name}: {kernel}")
        };
        let [first, second] = &self.stacks;
        vec![product("gate_up", first), product("down", second), "combine: f32".to_owned()]
    }

    fn explain(&self, tokens: usize) -> String {
        let (_, rows) = self.rows(tokens);
        let product = |(name, stack): (&str, &Stack)| {
            let matrix = stack.matrices().first()?;
            let explained = matrix.explain(rows);
            Some(format!("{name}, {rows} rows an expert:\n{explained}"))
        };
        let parts = ["gate_up", "down"].into_iter().zip(&self.stacks).filter_map(product);
        let mut lines: Vec<String> = parts.collect();
        let workspace = self.workspace_size(tokens) as u64;
        if workspace > self.options.most_workspace {
            lines.push(format!(
                "{workspace} bytes of workspace are more than {}: the call is computed in chunks \
                 of fewer tokens, which reads weights again",
                self.options.most_workspace
            ));
        }
        lines.join("\n")
    }

    fn sums(&self, _x: FloatFormat, tokens: usize) -> [Sums; 2] {
        let (most, _) = self.rows(tokens);
        self.stacks.each_ref().map(|stack| stack.sums(most))
    }

    fn workspace_size(&self, tokens: usize) -> usize {
        let pairs = tokens.saturating_mul(self.layer.top_k as usize);
        Sizes::of(self, tokens, pairs).bytes()
    }

    fn route(
        &self,
        logits: &[f32],
        ids: &mut [i32],
        weights: &mut [f32],
    ) -> Result<(), ExpertError> {
        standard(|| route(&self.layer, logits, self.score_bias(), ids, weights))
    }

    fn forward_into(
        &self,
        call: &ExpertCall<'_>,
        mut y: ValuesMut<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ExpertError> {
        forked::check().map_err(ProductError::from)?;
        self.check(call, &y)?;
        standard(|| self.in_chunks(call, &mut y, workspace))
    }
}
