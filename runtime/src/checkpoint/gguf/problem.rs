//! What may be wrong with a GGUF file.

/// Why a GGUF file is not read. Names and keys are the file's own, shortened if they are long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// A version of the format that is not read. Version 1 has other sizes, and no file of today.
    #[error("version {0} of the format is not read; 2 and 3 are")]
    Version(u32),
    /// Numbers with the most significant byte first.
    #[error("its numbers have the most significant byte first, which is not supported")]
    BigEndian,
    /// The file ends before its header does, or a length in the header is beyond the file.
    #[error("at byte {at} its header goes on beyond the end of the file")]
    Truncated {
        /// Bytes from the start of the file.
        at: u64,
    },
    /// More keys or tensors, or a longer name, than are read.
    #[error("{found} {what} are too many; the limit is {most}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The number that the header claims.
        found: u64,
        /// The most that is read.
        most: u64,
    },
    /// A key, a name or a text that is not UTF-8.
    #[error("the text at byte {at} is not UTF-8")]
    NotText {
        /// Bytes from the start of the file.
        at: u64,
    },
    /// A key occurs twice.
    #[error("the key \"{0}\" occurs twice")]
    KeyTwice(String),
    /// A value of a type that the format does not have.
    #[error("the value of \"{key}\" is of type {found}; the format has types 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The number of the type.
        found: u32,
    },
    /// A list of lists.
    #[error("the value of \"{0}\" is a list of lists, which is not read")]
    NestedList(String),
    /// A truth value other than 0 and 1.
    #[error("the value of \"{0}\" is a truth value other than 0 and 1")]
    NotBool(String),
    /// `general.alignment` is not a power of two of 32 bits.
    #[error("\"general.alignment\" is {0}, which is not a power of two")]
    Alignment(String),
    /// A tensor without dimensions, with more than four, with an empty one, or with more elements
    /// than 64 bits count.
    #[error(
        "the tensor \"{tensor}\" has the dimensions {found:?}; one to four are read, none of them 0"
    )]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Its dimensions as the file has them, fastest first; the first four.
        found: Vec<u64>,
    },
    /// Rows that are not a whole number of blocks.
    #[error(
        "the tensor \"{tensor}\" has rows of {columns}, which are not whole blocks of {block} ({kind})"
    )]
    Row {
        /// The tensor.
        tensor: String,
        /// The name of its type.
        kind: &'static str,
        /// Elements of a row.
        columns: u64,
        /// Elements of a block.
        block: u64,
    },
    /// A tensor that starts between two multiples of the alignment.
    #[error("the tensor \"{tensor}\" starts at {offset}, which is not a multiple of {alignment}")]
    Unaligned {
        /// The tensor.
        tensor: String,
        /// Bytes from the start of the data.
        offset: u64,
        /// The file's alignment in bytes.
        alignment: u64,
    },
    /// A tensor that is not within the file.
    #[error("the tensor \"{0}\" is beyond the end of the file")]
    Beyond(String),
    /// A tensor occurs twice.
    #[error("the tensor \"{0}\" occurs twice")]
    TensorTwice(String),
    /// Two tensors that share bytes.
    #[error("the tensors \"{0}\" and \"{1}\" overlap")]
    Overlap(String, String),
    /// A GGUF file among the files of a directory of safetensors files.
    #[error("it is one of several files of a checkpoint; open a GGUF file by its own path")]
    AmongOthers,
}
