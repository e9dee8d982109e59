//! Runs HIP sources on this machine: `host.h` defines the builtins of AMD GPUs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use quantloom_codegen::emit::hip;
use quantloom_codegen::ir::{Kernel, Verified};
use quantloom_codegen::jit::{Jit, launch_rule};
use quantloom_codegen::sim::{Arguments, Contents};
use quantloom_runtime::gpu::{Executor, Launch, LaunchBuffer, Products};
use quantloom_runtime::op::ProductError;
use quantloom_runtime::source::{KernelKey, LaunchRule, ParameterKind, ProblemSize, Refusal};
use quantloom_tests::tools::clang::Clang;

/// A kernel's source, compiled for this machine.
pub struct Program {
    path: PathBuf,
    kernel: Verified<Kernel>,
}

/// 16-bit floats round after each operation, as on the device.
const FLAGS: &str = "-x c++ -std=gnu++20 -O1 -pthread -w -ffp-contract=off \
                     -Xclang -ffloat16-excess-precision=none -lstdc++ -lm";

impl Program {
    pub fn new(clang: &Clang, kernel: Verified<Kernel>) -> Self {
        // gfx942 has another FP8 format.
        let fnuz = (kernel.target.name == "gfx942").then_some("-DFNUZ");
        let lanes = format!("-DLANES_OF_WARP={}", kernel.target.gpu.unwrap().warp);
        let flags: Vec<&str> = FLAGS.split_whitespace().chain(fnuz).chain([&*lanes]).collect();
        let path = clang.program(&flags, &text(&kernel), include_str!("host.h"));
        Self { path, kernel }
    }

    /// What it leaves in the buffers.
    pub fn run(&self, arguments: &Arguments) -> Vec<Contents> {
        let kernel = &self.kernel;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // No kernel of AMD's persists.
        let grid = kernel.launch.grid.map(|extent| extent.value(&arguments.parameters).unwrap());
        let mut given: Vec<u64> = grid.map(u64::from).into();
        given.push(kernel.launch.threads.into());
        given.push(arguments.parameters.len() as u64);
        given.extend(arguments.parameters.iter().map(|&parameter| u64::from(parameter)));
        given.push(arguments.buffers.len() as u64);
        let mut bytes: Vec<u8> = given.iter().flat_map(|number| number.to_le_bytes()).collect();
        for buffer in &arguments.buffers {
            bytes.extend((buffer.bytes.len() as u64).to_le_bytes());
            bytes.extend(&buffer.bytes);
        }
        std::fs::write(path("given"), bytes).unwrap();
        let mut command = Command::new(&self.path);
        let output = command.arg(path("given")).arg(path("left")).output().unwrap();
        assert!(output.status.success(), "{}: {output:?}", kernel.name);
        let left = std::fs::read(path("left")).unwrap();
        let mut rest = left.as_slice();
        let buffers = arguments.buffers.iter().map(|buffer| {
            let (bytes, tail) = rest.split_at(buffer.bytes.len());
            rest = tail;
            Contents::from_bytes(bytes.to_vec())
        });
        buffers.collect()
    }
}

fn text(kernel: &Verified<Kernel>) -> String {
    let buffers = (0..kernel.buffers.len()).map(|at| format!("launch.buffers[{at}]"));
    let parameters = (0..kernel.parameters.len()).map(|at| format!("launch.parameters[{at}]"));
    let arguments: Vec<String> = buffers.chain(parameters).collect();
    format!(
        "#include \"host.h\"\n{}\nint main(int, char **files)\n{{\n    host::Launch launch(files[1]);\n    \
         launch.run([&] {{ quantloom::{}({}); }});\n    launch.save(files[2]);\n}}\n",
        hip::emit(kernel).unwrap(),
        kernel.name,
        arguments.join(", ")
    )
}

/// Runs the sources of [`Jit`]'s kernels for a target, as a device does.
pub struct Host {
    clang: &'static Clang,
    target: &'static str,
    kernels: Mutex<HashMap<KernelKey, Arc<(Program, LaunchRule)>>>,
}

impl Host {
    pub fn new(clang: &'static Clang, target: &'static str) -> Self {
        Self { clang, target, kernels: Mutex::default() }
    }

    /// Kernels that it ran.
    pub fn kernels(&self) -> usize {
        self.kernels.lock().unwrap().len()
    }
}

impl Executor for Host {
    type Memory = Contents;
    type Kernel = Arc<(Program, LaunchRule)>;
    type Ready = (Self::Kernel, Vec<u32>);
    type Error = ProductError;

    fn name(&self) -> &str {
        self.target
    }

    fn target(&self) -> &str {
        self.target
    }

    fn multiprocessors(&self) -> u64 {
        304
    }

    fn source(&self) -> &dyn Products {
        &Jit
    }

    fn is_loaded(&self, key: &KernelKey) -> bool {
        self.kernels.lock().unwrap().contains_key(key)
    }

    fn kernel(&self, key: &KernelKey) -> Result<Self::Kernel, ProductError> {
        if let Some(kernel) = self.kernels.lock().unwrap().get(key) {
            return Ok(kernel.clone());
        }
        let kernel = Jit.kernel(key)?;
        let rule = launch_rule(&kernel).map_err(|why| Refusal::Fault(Arc::new(why)))?;
        let ready = Arc::new((Program::new(self.clang, kernel), rule));
        self.kernels.lock().unwrap().insert(key.clone(), ready.clone());
        Ok(ready)
    }

    fn rule<'k>(&self, kernel: &'k Self::Kernel) -> &'k LaunchRule {
        &kernel.1
    }

    fn ready(
        &self,
        kernel: &Self::Kernel,
        problem: &ProblemSize,
    ) -> Result<Self::Ready, ProductError> {
        let size = |kind: &ParameterKind| match kind {
            ParameterKind::Size(count) => Some(count.of(problem).unwrap() as u32),
            _ => None,
        };
        let parameters = kernel.1.parameters.iter().filter_map(|parameter| size(&parameter.kind));
        Ok((kernel.clone(), parameters.collect()))
    }

    fn wait(&self) -> Result<(), ProductError> {
        Ok(())
    }

    fn upload(&self, bytes: &[u8]) -> Result<Contents, ProductError> {
        Ok(Contents::from_bytes(bytes.to_vec()))
    }

    fn output(&self, bytes: u64) -> Result<Contents, ProductError> {
        Ok(Contents::from_bytes(vec![0xff; bytes as usize]))
    }

    fn zeroed(&self, bytes: u64) -> Result<Contents, ProductError> {
        Ok(Contents::from_bytes(vec![0; bytes as usize]))
    }

    fn download(&self, memory: &Contents) -> Result<Vec<u8>, ProductError> {
        Ok(memory.bytes.clone())
    }

    fn launch(&self, mut launch: Launch<'_, '_, Self>) -> Result<(), ProductError> {
        let (kernel, parameters) = launch.kernel();
        let slots = launch.slots();
        let buffers = slots.iter().map(|slot| match slot {
            LaunchBuffer::Read(memory) => (*memory).clone(),
            LaunchBuffer::Write(memory) => (**memory).clone(),
        });
        let arguments = Arguments { parameters: parameters.clone(), buffers: buffers.collect() };
        for (slot, left) in slots.iter_mut().zip(kernel.0.run(&arguments)) {
            if let LaunchBuffer::Write(memory) = slot {
                **memory = left;
            }
        }
        Ok(())
    }
}
