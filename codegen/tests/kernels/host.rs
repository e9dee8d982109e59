//! HIP texts run on this machine: `host.h` defines what only AMD GPUs have.

use std::path::Path;
use std::process::Command;

use quantloom_codegen::emit::hip;
use quantloom_codegen::ir::{Kernel, Verified};
use quantloom_codegen::sim::{Arguments, Contents};

/// What a kernel's text leaves in the buffers, when the host runs it.
pub fn run(clang: &Path, kernel: &Verified<Kernel>, arguments: &Arguments) -> Vec<Contents> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("host.h"), include_str!("host.h")).unwrap();
    std::fs::write(path("main.cpp"), program(kernel)).unwrap();
    let mut command = Command::new(clang);
    command.args(["-x", "c++", "-std=gnu++20", "-O1", "-pthread", "-w", "-ffp-contract=off"]);
    // 16-bit floats round after each operation, as on the device.
    command.args(["-Xclang", "-ffloat16-excess-precision=none"]);
    // FP8 of gfx942 has a form of its own.
    command.args((kernel.target.name == "gfx942").then_some("-DFNUZ"));
    let output = command
        .arg(path("main.cpp"))
        .args(["-lstdc++", "-lm"])
        .arg("-o")
        .arg(path("main"))
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{words}", kernel.name);

    let mut given: Vec<u64> =
        kernel.launch.grid.map(|extent| extent.value(&arguments.parameters).unwrap().into()).into();
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
    let output = Command::new(path("main")).arg(path("given")).arg(path("left")).output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", kernel.name);

    let left = std::fs::read(path("left")).unwrap();
    let mut rest = left.as_slice();
    let buffers = arguments.buffers.iter().map(|buffer| {
        let (bytes, tail) = rest.split_at(buffer.bytes.len());
        rest = tail;
        Contents::of(bytes.to_vec())
    });
    buffers.collect()
}

fn program(kernel: &Verified<Kernel>) -> String {
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
