//! Text and tokens, by the vocabulary in the file.

use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::Content;
use candle_core::quantized::tokenizer::TokenizerFromGguf as _;
use candle_core::{Error, Result};
use tokenizers::Tokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

/// The tokeniser of a GGUF file. `tokenizer.ggml.pre` is `smollm`: digits one by one, then GPT-2's words and
/// no space before the first; candle takes GPT-2's own for it, which has that space.
pub(crate) fn tokenizer(path: &Path) -> Result<Tokenizer> {
    let content = Content::read(&mut File::open(path)?)?;
    let mut tokenizer = Tokenizer::from_gguf(&content)?;
    let words = ByteLevel::new(false, true, true);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![Digits::new(true).into(), words.into()])));
    Ok(tokenizer)
}

/// Whether a GGUF file has a vocabulary.
pub(crate) fn has_vocabulary(path: &Path) -> Result<bool> {
    Ok(Content::read(&mut File::open(path)?)?.metadata.contains_key("tokenizer.ggml.tokens"))
}

/// The tokens of a text, in which `<|im_start|>` and its like are the special tokens.
pub(crate) fn tokens(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = tokenizer.encode(text, false).map_err(Error::wrap)?;
    Ok(encoding.get_ids().to_vec())
}

/// The text of tokens, without special ones.
pub(crate) fn text(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String> {
    tokenizer.decode(tokens, true).map_err(Error::wrap)
}

/// A question as the model was trained to read it: `tokenizer.chat_template` of the file.
pub(crate) fn question(words: &str) -> String {
    format!(
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n"
    )
}
