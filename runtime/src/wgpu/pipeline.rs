//! From a text to a kernel that can be launched. The binding contract is the emitter's: group 0 has
//! the buffers in the order of the rule, then one uniform buffer of the sizes.

use ::wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingType, Buffer, BufferBindingType, BufferDescriptor, BufferUsages,
    CommandEncoderDescriptor, ComputePassDescriptor, ComputePipeline, ComputePipelineDescriptor,
    PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModuleDescriptor, ShaderSource,
    ShaderStages,
};

use super::adapter::Opened;
use super::error::{DispatchFault, WgpuError};
use super::fault::checked;
use super::memory::Memory;
use crate::gpu::LaunchBuffer;
use crate::source::{Access, KernelText, LaunchRule, Parameter, ParameterKind, ProblemSize};

/// A loaded kernel.
#[derive(Debug)]
pub struct Pipeline {
    entry: String,
    rule: LaunchRule,
    pipeline: ComputePipeline,
    layout: BindGroupLayout,
}

/// The sizes of a kernel for a problem.
#[derive(Debug)]
pub(super) struct Sizes {
    grid: [u32; 3],
    /// The sizes of the problem that the kernel reads, if it reads any.
    uniform: Option<Buffer>,
    /// The least bytes of each buffer.
    bytes: Vec<u64>,
}

/// What the length of a uniform buffer is a multiple of.
const UNIFORM: usize = 16;

impl Pipeline {
    /// Compiles a text.
    pub(super) fn new(of: &Opened, text: &KernelText<'_>) -> Result<Self, WgpuError> {
        of.there()?;
        let (entry, rule) = (text.entry.to_string(), text.rule.clone().into_owned());
        let mut entries = Vec::new();
        let mut sizes = false;
        for parameter in &rule.parameters {
            match &parameter.kind {
                ParameterKind::Buffer { access, .. } => {
                    let read_only = *access == Access::Read;
                    entries.push(BufferBindingType::Storage { read_only });
                }
                ParameterKind::Size(_) => sizes = true,
                ParameterKind::Scalar(_) | ParameterKind::TensorMap(_) => {
                    let why = format!("WGSL has no parameters like `{}`", parameter.name);
                    return Err(WgpuError::Text { entry, why });
                }
            }
        }
        entries.extend(sizes.then_some(BufferBindingType::Uniform));
        let entries: Vec<BindGroupLayoutEntry> = (0..)
            .zip(entries)
            .map(|(binding, ty)| BindGroupLayoutEntry {
                binding,
                visibility: ShaderStages::COMPUTE,
                ty: BindingType::Buffer {
                    ty,
                    has_dynamic_offset: false,
                    // Checked when buffers are bound.
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let compiled = checked(&of.device, String::new, || {
            let source = ShaderSource::Wgsl(text.text.as_ref().into());
            let module = of
                .device
                .create_shader_module(ShaderModuleDescriptor { label: Some(&entry), source });
            let layout = of.device.create_bind_group_layout(&BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
            let layouts = of.device.create_pipeline_layout(&PipelineLayoutDescriptor {
                bind_group_layouts: &[Some(&layout)],
                ..PipelineLayoutDescriptor::default()
            });
            let pipeline = of.device.create_compute_pipeline(&ComputePipelineDescriptor {
                label: Some(&entry),
                layout: Some(&layouts),
                module: &module,
                entry_point: Some(&entry),
                // A kernel writes shared memory before it reads it.
                compilation_options: PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..PipelineCompilationOptions::default()
                },
                cache: None,
            });
            (pipeline, layout)
        });
        match compiled {
            Ok((pipeline, layout)) => Ok(Self { entry, rule, pipeline, layout }),
            Err(WgpuError::Call { why, .. }) => Err(WgpuError::Text { entry, why }),
            Err(error) => Err(error),
        }
    }

    /// How it is launched.
    pub fn rule(&self) -> &LaunchRule {
        &self.rule
    }

    /// Its sizes for a problem.
    pub(super) fn sizes(&self, of: &Opened, problem: &ProblemSize) -> Result<Sizes, WgpuError> {
        of.there()?;
        let (numbers, grid) = (self.numbers(problem)?, self.grid(of, problem)?);
        let bytes = self.rule.parameters.iter().filter_map(|parameter| match &parameter.kind {
            ParameterKind::Buffer { bytes, .. } => Some(bytes.of(problem).unwrap_or(u64::MAX)),
            _ => None,
        });
        let bytes = bytes.collect();
        let doing = || format!("sizing {}", self.entry);
        let uniform = checked(&of.device, doing, || {
            (!numbers.is_empty()).then(|| {
                let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
                let size = numbers.len() as u64;
                let descriptor =
                    BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
                let buffer = of.device.create_buffer(&descriptor);
                of.queue.write_buffer(&buffer, 0, &numbers);
                buffer
            })
        })?;
        Ok(Sizes { grid, uniform, bytes })
    }

    /// Queues it.
    pub(super) fn launch(
        &self,
        of: &Opened,
        sizes: &Sizes,
        slots: &[LaunchBuffer<'_, Memory>],
    ) -> Result<(), WgpuError> {
        of.there()?;
        self.check(sizes, slots)?;
        let grid = sizes.grid;
        let doing = || format!("launching {}", self.entry);
        checked(&of.device, doing, || {
            let buffers: Vec<&Buffer> = slots.iter().map(|slot| &memory(slot).buffer).collect();
            let group = self.group(of, buffers.into_iter().chain(sizes.uniform.as_ref()));
            let mut commands =
                of.device.create_command_encoder(&CommandEncoderDescriptor::default());
            {
                let mut pass = commands.begin_compute_pass(&ComputePassDescriptor::default());
                pass.set_pipeline(&self.pipeline);
                pass.set_bind_group(0, &group, &[]);
                let [x, y, z] = grid;
                pass.dispatch_workgroups(x, y, z);
            }
            of.queue.submit([commands.finish()]);
        })
    }

    fn group<'b>(&self, of: &Opened, buffers: impl Iterator<Item = &'b Buffer>) -> BindGroup {
        let entries: Vec<BindGroupEntry<'_>> = (0..)
            .zip(buffers)
            .map(|(binding, buffer)| BindGroupEntry {
                binding,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        of.device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &self.layout,
            entries: &entries,
        })
    }

    fn fault(&self, what: DispatchFault) -> WgpuError {
        WgpuError::Launch { entry: self.entry.clone(), what }
    }

    /// The sizes of the problem as the text reads them.
    fn numbers(&self, problem: &ProblemSize) -> Result<Vec<u8>, WgpuError> {
        let mut bytes = Vec::new();
        for parameter in &self.rule.parameters {
            let ParameterKind::Size(count) = &parameter.kind else { continue };
            let size = count.of(problem).and_then(|size| u32::try_from(size).ok());
            let what = || DispatchFault::Parameter(parameter.name.clone());
            bytes.extend(size.ok_or_else(|| self.fault(what()))?.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(UNIFORM), 0);
        Ok(bytes)
    }

    /// Whether the buffers are those of the rule, and long enough.
    fn check(&self, sizes: &Sizes, slots: &[LaunchBuffer<'_, Memory>]) -> Result<(), WgpuError> {
        let buffer =
            |parameter: &&Parameter| matches!(parameter.kind, ParameterKind::Buffer { .. });
        let buffers = self.rule.parameters.iter().filter(buffer);
        let mut given = slots.iter();
        for (parameter, expected) in buffers.zip(sizes.bytes.iter().copied()) {
            let name = &parameter.name;
            let slot =
                given.next().ok_or_else(|| self.fault(DispatchFault::NoBuffer(name.clone())))?;
            let found = memory(slot).bytes;
            if found < expected {
                let buffer = name.clone();
                return Err(self.fault(DispatchFault::BufferBytes { buffer, found, expected }));
            }
        }
        match given.count() {
            0 => Ok(()),
            more => Err(self.fault(DispatchFault::ExtraBuffers(more))),
        }
    }

    /// Blocks along x, y and z.
    fn grid(&self, of: &Opened, problem: &ProblemSize) -> Result<[u32; 3], WgpuError> {
        let limit = of.device.limits().max_compute_workgroups_per_dimension;
        let mut grid = [0; 3];
        for ((blocks, count), axis) in grid.iter_mut().zip(&self.rule.grid).zip(["x", "y", "z"]) {
            let found = count.of(problem).and_then(|found| u32::try_from(found).ok());
            let fits = found.filter(|found| *found <= limit);
            let what = || DispatchFault::Blocks { blocks: count.clone(), axis, limit };
            *blocks = fits.ok_or_else(|| self.fault(what()))?;
        }
        Ok(grid)
    }
}

const fn memory<'s>(slot: &'s LaunchBuffer<'_, Memory>) -> &'s Memory {
    match slot {
        LaunchBuffer::Read(memory) => memory,
        LaunchBuffer::Write(memory) => memory,
    }
}
