//! A prepared weight in a file, so that the next start only reads it.
//!
//! In: a [`GpuWeight`], or the file of one. Out: safetensors with the bytes of each native buffer,
//! named `TYPE.BUFFER` by the first type of x that reads it, the order of columns (`TYPE.order`) where
//! they have one, what is known of x beforehand (`given.BUFFER`), and as metadata what it was prepared for: the version of this form, the target,
//! the scheme's text, N and K, the types of x whose scales are in the source's range, and of each buffer what it holds and where. A file is taken only where
//! this version's source of kernels asks for exactly that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quantloom_dsl::format::FloatFormat;
use quantloom_dsl::layout::Shape;
use quantloom_dsl::{Scheme, parse};

use super::executor::Executor;
use super::native::NativeBuffer;
use super::products::Request;
use super::static_inputs::StaticInputs;
use super::stored::Filled;
use super::weight::{Filling, GpuWeight};
use crate::checkpoint::{CheckpointError, Dtype, Entry, Tensors, Writer};
use crate::column_order::{Arrangement, ColumnOrder, NO_COLUMN};
use crate::op::ProductError;
use crate::source::BufferRole;

/// Why a prepared weight could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// The file could not be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] CheckpointError),
    /// A file of something else, or of another version.
    #[error("{} is not a prepared weight of this version ({VERSION}); prepare it again", .0.display())]
    Version(PathBuf),
    /// It was prepared for something else.
    #[error(
        "{} was prepared with another {what}: it has {found}, wanted is {expected}; prepare it again",
        path.display()
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// `target`, `scheme`, `shape`, or the name of a buffer.
        what: String,
        /// What the file says.
        found: String,
        /// What is asked for.
        expected: String,
    },
    /// A buffer has another size than its layout, or numbers of no columns.
    #[error("{}: the buffer {what} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The buffer's name.
        what: String,
        /// What is wrong with it.
        why: BufferDamage,
    },
    /// What the device or the source of kernels says.
    #[error(transparent)]
    Product(#[from] ProductError),
}

/// What is wrong with a buffer of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BufferDamage {
    /// The file does not have it.
    #[error("it is missing")]
    Missing,
    /// Another size than that of its layout.
    #[error("it has {found} bytes, its layout {}", expected.map_or("none".to_owned(), |bytes| bytes.to_string()))]
    Size {
        /// Its bytes.
        found: usize,
        /// Bytes of the layout; `None` if the layout does not hold the weight's shape.
        expected: Option<u64>,
    },
    /// No 32-bit words, or a part of one.
    #[error("it has {0} bytes, which is not a whole number of words")]
    PartialWord(usize),
    /// An order of columns with a number beyond K.
    #[error("there is no column {0}")]
    Column(u32),
    /// Another number of static scales or zero points of x than the scheme has.
    #[error("it has {found} numbers, not {expected}")]
    Count {
        /// Numbers in the file.
        found: usize,
        /// Numbers of the scheme.
        expected: u64,
    },
}

const VERSION: &str = "prepared weight 4";

/// Keys of the metadata.
const FORM: &str = "quantloom";
const TARGET: &str = "target";
const SCHEME: &str = "scheme";
const SHAPE: &str = "shape";
/// The types of x whose buffers are those for scales in the source's range.
const IN_RANGE: &str = "scales in range";

fn described(shape: Shape) -> String {
    format!("N = {}, K = {}", shape.n, shape.k)
}

impl<E: Executor> GpuWeight<E> {
    /// Writes all that products read of the weight into a file, whole or not at all.
    ///
    /// # Errors
    /// [`SavedError::Write`], or what the device says.
    pub fn save(&self, path: &Path) -> Result<(), SavedError> {
        let shape = self.shape;
        let mut metadata = BTreeMap::from([
            (FORM.to_owned(), VERSION.to_owned()),
            (TARGET.to_owned(), self.executor().target().to_owned()),
            (SCHEME.to_owned(), self.scheme.to_string()),
            (SHAPE.to_owned(), described(shape)),
        ]);
        let in_range = self.products.iter().filter(|product| product.scales_in_range);
        let in_range: Vec<String> = in_range.map(|product| product.element.to_string()).collect();
        metadata.insert(IN_RANGE.to_owned(), in_range.join(" "));
        let mut buffers = Vec::new();
        for (name, native, memory) in self.buffers() {
            metadata.insert(name.clone(), native.to_string());
            buffers.push((name, memory));
        }
        for (name, arrangement, memory) in self.orders() {
            metadata.insert(name.clone(), arrangement.to_string());
            buffers.push((name, memory));
        }
        for (role, memory) in &self.static_inputs {
            buffers.push((given_name(*role), &**memory));
        }
        let mut contents = Vec::new();
        for (name, memory) in buffers {
            let bytes = self.executor().download(memory).map_err(Into::<ProductError>::into)?;
            contents.push((name, bytes));
        }
        let entry = |(name, bytes): &(String, Vec<u8>)| {
            let bytes = bytes.len() as u64;
            Entry { name: name.clone(), dtype: Dtype::U8, shape: vec![bytes], bytes }
        };
        let entries = contents.iter().map(entry).collect();
        let written = Writer::create(path, entries, &metadata).and_then(|mut writer| {
            contents.iter().try_for_each(|(_, bytes)| writer.write(bytes))?;
            writer.finish()
        });
        written.map_err(|error| SavedError::Write { path: path.to_owned(), error })
    }

    /// Uploads what [`GpuWeight::save`] wrote for the same scheme (its packing aside), shape and
    /// target.
    ///
    /// # Errors
    /// What cannot be read, [`SavedError::Version`], [`SavedError::Differs`] and
    /// [`SavedError::Damaged`]; what the source of kernels refuses and the device says.
    pub fn load(
        executor: Arc<E>,
        scheme: &Scheme,
        shape: Shape,
        path: &Path,
    ) -> Result<Self, SavedError> {
        let file = Saved { path, tensors: Tensors::open(path)? };
        file.check(executor.target(), scheme, shape)?;
        let inputs = file.static_inputs(scheme, shape)?;
        let mut loading = Loading { file: &file, executor: &*executor, shape, refused: None };
        let uploaded = Self::filled(&executor, scheme, shape, &inputs, &mut loading);
        match (uploaded, loading.refused) {
            (Err(_), Some(refused)) => Err(refused),
            (uploaded, _) => Ok(uploaded?),
        }
    }
}

/// Stands for [`Loading::refused`] where an error of products is wanted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the file of the prepared weight is refused")]
struct RefusedFile;

/// A file whose buffers are uploaded.
struct Loading<'f, E> {
    file: &'f Saved<'f>,
    executor: &'f E,
    shape: Shape,
    /// A refusal of the file, kept while the weight is refused.
    refused: Option<SavedError>,
}

impl<E> Loading<'_, E> {
    fn of_file<T>(&mut self, found: Result<T, SavedError>) -> Result<T, ProductError> {
        found.map_err(|why| {
            let said = ProductError::device(RefusedFile);
            self.refused = Some(why);
            said
        })
    }
}

impl<E: Executor> Filling<E::Memory> for Loading<'_, E> {
    fn order(
        &mut self,
        request: &Request<'_>,
        arrangement: &Arrangement,
    ) -> Result<ColumnOrder, ProductError> {
        let name = buffer_name(request.input_dtype, BufferRole::ColumnOrder);
        let found = self.file.order(&name, arrangement, self.shape);
        self.of_file(found)
    }

    fn may_be_in_range(&self, element: FloatFormat) -> bool {
        self.file.said(IN_RANGE).split(' ').any(|name| name == element.to_string())
    }

    fn fill(
        &mut self,
        request: &Request<'_>,
        order: Option<&ColumnOrder>,
        part: &NativeBuffer,
    ) -> Result<Filled<E::Memory>, ProductError> {
        let name = buffer_name(request.input_dtype, part.role);
        let stored = order.map_or(self.shape, |order| order.shape(self.shape));
        let file = self.file;
        let bytes = self.of_file(file.buffer(&name, &part.to_string(), part.bytes(stored)))?;
        let memory = self.executor.upload(bytes).map_err(Into::into)?;
        let note = Some(format!("{}: loaded", part.role));
        Ok(Filled { memory, bytes: bytes.len() as u64, note })
    }
}

/// The name of a native buffer in the file.
pub(super) fn buffer_name(own: FloatFormat, role: BufferRole) -> String {
    format!("{own}.{role}")
}

fn given_name(role: BufferRole) -> String {
    format!("given.{role}")
}

/// A file of a prepared weight.
struct Saved<'p> {
    path: &'p Path,
    tensors: Tensors,
}

impl Saved<'_> {
    /// Whether it was prepared for this.
    fn check(&self, target: &str, scheme: &Scheme, shape: Shape) -> Result<(), SavedError> {
        if self.said(FORM) != VERSION {
            return Err(SavedError::Version(self.path.to_owned()));
        }
        self.same(TARGET, target)?;
        self.same(SHAPE, &described(shape))?;
        let found = self.said(SCHEME);
        match parse(found) {
            Ok(other) if other.same_compute(scheme) => Ok(()),
            _ => Err(self.differs(SCHEME, found, &scheme.to_string())),
        }
    }

    fn said(&self, key: &str) -> &str {
        self.tensors.metadata(key).unwrap_or("none")
    }

    fn same(&self, key: &str, expected: &str) -> Result<(), SavedError> {
        let found = self.said(key);
        if found == expected { Ok(()) } else { Err(self.differs(key, found, expected)) }
    }

    fn differs(&self, what: &str, found: &str, expected: &str) -> SavedError {
        let [what, found, expected] = [what, found, expected].map(str::to_owned);
        SavedError::Differs { path: self.path.to_owned(), what, found, expected }
    }

    fn damaged(&self, what: &str, why: BufferDamage) -> SavedError {
        SavedError::Damaged { path: self.path.to_owned(), what: what.to_owned(), why }
    }

    /// The bytes of a native buffer that holds this.
    fn buffer(&self, name: &str, holds: &str, bytes: Option<u64>) -> Result<&[u8], SavedError> {
        self.same(name, holds)?;
        let tensor = self.tensors.get(name);
        let found = tensor.ok_or_else(|| self.damaged(name, BufferDamage::Missing))?.bytes();
        if bytes != Some(found.len() as u64) {
            let why = BufferDamage::Size { found: found.len(), expected: bytes };
            return Err(self.damaged(name, why));
        }
        Ok(found)
    }

    /// The words of a tensor.
    fn words(&self, name: &str) -> Result<&[[u8; 4]], SavedError> {
        let tensor = self.tensors.get(name);
        let bytes = tensor.ok_or_else(|| self.damaged(name, BufferDamage::Missing))?.bytes();
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() || words.is_empty() {
            return Err(self.damaged(name, BufferDamage::PartialWord(bytes.len())));
        }
        Ok(words)
    }

    /// The order of columns of this name.
    fn order(
        &self,
        name: &str,
        arrangement: &Arrangement,
        shape: Shape,
    ) -> Result<ColumnOrder, SavedError> {
        self.same(name, &arrangement.to_string())?;
        let columns: Vec<u32> =
            self.words(name)?.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let none = |column: &&u32| **column != NO_COLUMN && u64::from(**column) >= shape.k;
        if let Some(wrong) = columns.iter().find(none) {
            return Err(self.damaged(name, BufferDamage::Column(*wrong)));
        }
        Ok(ColumnOrder::kept(columns))
    }

    /// What is known of x, with all that the scheme wants.
    fn static_inputs(&self, scheme: &Scheme, shape: Shape) -> Result<StaticInputs, SavedError> {
        let mut inputs = StaticInputs::default();
        for (role, component) in StaticInputs::roles(scheme) {
            let name = given_name(role);
            let words = self.words(&name)?;
            let (rows, columns) = scheme
                .granularity(component)
                .map_or((1, 1), |granularity| granularity.elements(shape));
            if words.len() as u64 != rows * columns {
                let (found, expected) = (words.len(), rows * columns);
                let why = BufferDamage::Count { found, expected };
                return Err(self.damaged(&name, why));
            }
            inputs.buffers.push((role, words.concat()));
        }
        Ok(inputs)
    }
}
