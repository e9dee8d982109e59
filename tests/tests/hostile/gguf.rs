//! GGUF files that are cut off, have changed bits, or whose headers lie.

use quantloom_runtime::checkpoint::{Checkpoint, CheckpointError, GgufProblem, Options};
use quantloom_tests::{Random, golden_gguf};

use crate::drive;
use crate::refused::{read, refused};

const FILES: &[&str] = &["q4_0_bias", "q6_k", "nvfp4_scaled", "mxfp4", "q3_k", "q4_k", "iq4_xs"];

/// A header by its parts, and 64 KiB of zeros behind it.
#[derive(Clone)]
struct Header {
    version: u32,
    /// The numbers of tensors and of keys that it claims, if not those that it has.
    claimed: (Option<u64>, Option<u64>),
    values: Vec<Vec<u8>>,
    tensors: Vec<Info>,
}

#[derive(Clone)]
struct Info {
    name: Vec<u8>,
    rank: u32,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A key with a value of a type: its bytes.
fn value(key: &str, kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&text(key.as_bytes()), &kind.to_le_bytes()[..], bytes].concat()
}

/// The start of a list: its element type and length.
fn list(element: u32, len: u64) -> Vec<u8> {
    [&element.to_le_bytes()[..], &len.to_le_bytes()].concat()
}

fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Info {
    let (name, rank) = (name.as_bytes().to_vec(), dims.len() as u32);
    Info { name, rank, dims: dims.to_vec(), kind, offset }
}

impl Header {
    /// Two layers of Q4_0, of 64 x 4 (144 bytes) each.
    fn whole() -> Self {
        let tensors =
            vec![tensor("l.weight", &[64, 4], 2, 0), tensor("m.weight", &[64, 4], 2, 160)];
        Self { version: 3, claimed: (None, None), values: Vec::new(), tensors }
    }

    fn bytes(&self) -> Vec<u8> {
        let tensors = self.claimed.0.unwrap_or(self.tensors.len() as u64);
        let keys = self.claimed.1.unwrap_or(self.values.len() as u64);
        let mut bytes = [b"GGUF", &self.version.to_le_bytes()[..]].concat();
        bytes.extend([tensors, keys].iter().flat_map(|count| count.to_le_bytes()));
        bytes.extend(self.values.iter().flatten());
        for info in &self.tensors {
            bytes.extend(text(&info.name));
            bytes.extend(info.rank.to_le_bytes());
            bytes.extend(info.dims.iter().flat_map(|size| size.to_le_bytes()));
            bytes.extend(info.kind.to_le_bytes());
            bytes.extend(info.offset.to_le_bytes());
        }
        bytes.resize(bytes.len() + (64 << 10), 0);
        bytes
    }
}

/// The problem of a file that is not read.
#[track_caller]
fn problem(what: &str, bytes: Vec<u8>) -> GgufProblem {
    match Checkpoint::from_bytes(bytes, Options::default()) {
        Err(CheckpointError::Gguf { problem, .. }) => {
            assert!(!problem.to_string().is_empty());
            problem
        }
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what}: it is read"),
    }
}

#[track_caller]
fn with(what: &str, change: impl FnOnce(&mut Header)) -> GgufProblem {
    let mut header = Header::whole();
    change(&mut header);
    problem(what, header.bytes())
}

#[test]
fn the_whole_file_is_read() {
    let mut header = Header::whole();
    for version in [2, 3] {
        header.version = version;
        assert_eq!(read(header.bytes(), "l"), Ok(()));
        assert_eq!(read(header.bytes(), "m"), Ok(()));
    }
    // Dense: they touch where the alignment lets them.
    header.values = vec![value("general.alignment", 4, &16u32.to_le_bytes())];
    header.tensors[1].offset = 144;
    assert_eq!(read(header.bytes(), "m"), Ok(()));
}

#[test]
fn truncated_files() {
    for name in FILES {
        let bytes = std::fs::read(golden_gguf(name)).unwrap();
        let lengths = (4..bytes.len()).filter(|at| *at < 600 || at % 331 == 0);
        for length in lengths {
            let words = ["not a valid GGUF file"];
            refused(&format!("{name}, {length} bytes"), bytes[..length].to_vec(), "layer", &words);
        }
    }
}

#[test]
fn flipped_bits() {
    for (number, name) in (0..).zip(FILES) {
        let mut bytes = std::fs::read(golden_gguf(name)).unwrap();
        let mut random = Random(number);
        for flip in 0..400 {
            let range = if flip % 4 == 0 { bytes.len() as u64 } else { 448 };
            let (at, bit) = (random.below(range) as usize, 1 << random.below(8));
            bytes[at] ^= bit;
            drive::gguf(&bytes);
            bytes[at] ^= bit;
        }
    }
}

#[test]
fn versions_and_counts() {
    assert_eq!(with("version 1", |h| h.version = 1), GgufProblem::Version(1));
    assert_eq!(with("version 4", |h| h.version = 4), GgufProblem::Version(4));
    assert_eq!(with("big-endian", |h| h.version = 3 << 24), GgufProblem::BigEndian);
    for huge in [1 << 20, 1 << 40, u64::MAX] {
        let many = with("tensors", |h| h.claimed.0 = Some(huge));
        assert!(
            matches!(many, GgufProblem::TooMany { what: "tensors", found, .. } if found == huge)
        );
        let many = with("keys", |h| h.claimed.1 = Some(huge));
        assert!(matches!(many, GgufProblem::TooMany { what: "keys", found, .. } if found == huge));
    }
    // Within the limits, and beyond the file: the zeros behind the header are names without
    // letters and tensors without dimensions.
    let more = with("100,000 tensors", |h| h.claimed.0 = Some(100_000));
    assert!(matches!(more, GgufProblem::Dimensions { .. }), "{more}");
    let more = with("60,000 keys", |h| {
        h.tensors.clear();
        h.claimed.1 = Some(60_000);
    });
    assert_eq!(more, GgufProblem::KeyTwice(String::new()));
}

#[test]
fn lying_values() {
    let one = |what: &str, bytes: Vec<u8>| with(what, |h| h.values = vec![bytes]);
    let truncated = |problem: &GgufProblem| matches!(problem, GgufProblem::Truncated { .. });
    for length in [1 << 17, 1 << 40, u64::MAX] {
        let problem = one("a text", value("a", 8, &length.to_le_bytes()));
        assert!(truncated(&problem), "{problem}");
        for element in [0, 1, 5, 6, 10, 12] {
            let problem = one("a list", value("a", 9, &list(element, length)));
            assert!(truncated(&problem), "{element}: {problem}");
        }
        let key = [&length.to_le_bytes()[..], &[b'k'; 8]].concat();
        let problem = one("a key", key);
        assert!(matches!(problem, GgufProblem::TooMany { .. }), "{problem}");
        // The zeros behind the header are texts without letters and false.
        let problem = one("texts", value("a", 9, &list(8, length)));
        assert!(truncated(&problem) || matches!(problem, GgufProblem::NotText { .. }), "{problem}");
        let problem = one("truths", value("a", 9, &list(7, length)));
        assert!(truncated(&problem) || problem == GgufProblem::NotBool("a".into()), "{problem}");
    }
    let unknown = |found| GgufProblem::ValueType { key: "a".into(), found };
    assert_eq!(one("a type", value("a", 13, &[0; 8])), unknown(13));
    assert_eq!(one("a type", value("a", u32::MAX, &[0; 8])), unknown(u32::MAX));
    assert_eq!(one("elements", value("a", 9, &list(99, 1))), unknown(99));
    let nested = [&list(9, 1)[..], &list(0, 1), &[7]].concat();
    assert_eq!(one("a list of lists", value("a", 9, &nested)), GgufProblem::NestedList("a".into()));
    let deep: Vec<u8> = (0..3000).flat_map(|_| list(9, 1)).collect();
    assert_eq!(one("deep lists", value("a", 9, &deep)), GgufProblem::NestedList("a".into()));
    assert_eq!(one("truth", value("a", 7, &[2])), GgufProblem::NotBool("a".into()));
    let flags = [&list(7, 3)[..], &[1, 0, 2]].concat();
    assert_eq!(one("truths", value("a", 9, &flags)), GgufProblem::NotBool("a".into()));
    let not_text = |problem| matches!(problem, GgufProblem::NotText { .. });
    assert!(not_text(one("a text", value("a", 8, &text(b"\xff\xfe")))));
    let texts = [list(8, 2), text(b"good"), text(b"\xc3")].concat();
    assert!(not_text(one("texts", value("a", 9, &texts))));
    assert!(not_text(one("a key", [text(b"\xff"), vec![0; 8]].concat())));
    let twice = vec![value("a", 0, &[1]), value("a", 0, &[1])];
    assert_eq!(with("a key twice", |h| h.values = twice), GgufProblem::KeyTwice("a".into()));
    for alignment in [0u32, 3, 24, u32::MAX] {
        let bytes = value("general.alignment", 4, &alignment.to_le_bytes());
        let expected = GgufProblem::Alignment(alignment.to_string());
        assert_eq!(one("an alignment", bytes), expected);
    }
    let problem = one("an alignment", value("general.alignment", 8, &text(b"32")));
    assert!(matches!(problem, GgufProblem::Alignment(_)), "{problem}");
    // Larger than the file: no tensor can be.
    let bytes = value("general.alignment", 4, &(1u32 << 31).to_le_bytes());
    let large = with("an alignment", |h| {
        h.values = vec![bytes];
        h.tensors.truncate(1);
    });
    assert_eq!(large, GgufProblem::Beyond("l.weight".into()));
}

#[test]
fn lying_tensors() {
    let first = |what: &str, change: &dyn Fn(&mut Info)| with(what, |h| change(&mut h.tensors[0]));
    for dims in [vec![], vec![0], vec![64, 0], vec![64; 5], vec![u64::MAX, 4], vec![1 << 32; 4]] {
        let problem =
            first("dimensions", &|t| (t.rank, t.dims) = (dims.len() as u32, dims.clone()));
        assert!(matches!(problem, GgufProblem::Dimensions { .. }), "{dims:?}: {problem}");
    }
    // Zeros of the rank's dimensions would be read, were the rank believed.
    let problem = first("rank", &|t| t.rank = u32::MAX);
    assert!(matches!(problem, GgufProblem::Dimensions { .. }), "{problem}");
    let problem = first("half a block", &|t| t.dims[0] = 48);
    assert!(matches!(problem, GgufProblem::Row { columns: 48, block: 32, .. }), "{problem}");
    let problem = first("between", &|t| t.offset = 8);
    assert!(
        matches!(problem, GgufProblem::Unaligned { offset: 8, alignment: 32, .. }),
        "{problem}"
    );
    let beyond = || GgufProblem::Beyond("l.weight".into());
    for offset in [64 << 10, 1 << 40, u64::MAX - 31] {
        assert_eq!(first("an offset", &|t| t.offset = offset), beyond(), "{offset}");
    }
    for rows in [1 << 12, 1 << 40, 1 << 57] {
        assert_eq!(first("rows", &|t| t.dims[1] = rows), beyond(), "{rows}");
    }
    // 2^62 numbers of 4 bytes overflow 64 bits.
    assert_eq!(first("f32", &|t| (t.kind, t.dims) = (0, vec![1 << 31, 1 << 31])), beyond());
    let problem = with("overlap", |h| h.tensors[1].offset = 128);
    assert_eq!(problem, GgufProblem::Overlap("l.weight".into(), "m.weight".into()));
    let problem = with("twice", |h| h.tensors[1].name = b"l.weight".to_vec());
    assert_eq!(problem, GgufProblem::TensorTwice("l.weight".into()));
    let problem = with("twice", |h| h.tensors = vec![tensor("a", &[1], 99, 0); 2]);
    assert_eq!(problem, GgufProblem::TensorTwice("a".into()));
    let problem = first("a name", &|t| t.name = b"\xff".to_vec());
    assert!(matches!(problem, GgufProblem::NotText { .. }), "{problem}");
    let problem = first("a name", &|t| t.name = vec![b'a'; 1 << 16]);
    assert!(matches!(problem, GgufProblem::TooMany { .. }), "{problem}");
}

/// Types without a scheme are refused by name, with the reason, and concern their layers alone.
#[test]
fn types_without_a_scheme() {
    let rows: &[(u32, u64, &[&str])] = &[
        (17, 256, &["IQ2_XS is not supported: its codes stand for several weights"]),
        (19, 256, &["IQ1_S is not supported"]),
        (21, 256, &["IQ3_S is not supported"]),
        (34, 256, &["TQ1_0 is not supported", "base 3"]),
        (9, 32, &["Q8_1 is not supported", "activations"]),
        (4, 32, &["ggml's type 4 is not known"]),
        (u32::MAX, 32, &["ggml's type 4294967295 is not known"]),
    ];
    for (kind, columns, words) in rows {
        let mut header = Header::whole();
        header.tensors.remove(0);
        header.tensors.push(tensor("l.weight", &[*columns, 4], *kind, 1 << 14));
        for word in *words {
            refused(&format!("type {kind}"), header.bytes(), "l", &[word]);
        }
        assert_eq!(read(header.bytes(), "m"), Ok(()));
    }
}

/// Layers that are read in part.
#[test]
fn layers_that_do_not_fit() {
    let l = |what: &str, word: &str, change: &dyn Fn(&mut Header)| {
        let mut header = Header::whole();
        header.tensors.remove(1);
        change(&mut header);
        let name = String::from_utf8(header.tensors[0].name.clone()).unwrap();
        let layer = name.strip_suffix(".weight").unwrap_or(&name).to_owned();
        refused(what, header.bytes(), &layer, &[word]);
    };
    l("a vector", "is not a matrix", &|h| h.tensors[0] = tensor("l.weight", &[64], 2, 0));
    l("four dimensions", "is not a matrix", &|h| {
        h.tensors[0] = tensor("l.weight", &[64, 2, 2, 1], 2, 0)
    });
    l("a name", "does not end in `.weight`", &|h| h.tensors[0].name = b"rope".to_vec());
    l("a longer bias", "bias", &|h| h.tensors.push(tensor("l.bias", &[5], 0, 1 << 14)));
    l("codes as a bias", "bias", &|h| h.tensors.push(tensor("l.bias", &[32], 2, 1 << 14)));
    l("two scales", "scale", &|h| h.tensors.push(tensor("l.scale", &[2], 0, 1 << 14)));
    l("an unknown tensor", "may change the product", &|h| {
        h.tensors.push(tensor("l.shift", &[4], 0, 1 << 14));
    });
    for version in [1u32, 3] {
        l("older blocks", "quantization_version", &|h| {
            h.values = vec![value("general.quantization_version", 4, &version.to_le_bytes())];
        });
    }
    // What a product that quantises x would take is no part of the weight.
    let mut header = Header::whole();
    header.tensors.push(tensor("l.input_scale", &[1], 0, 1 << 14));
    assert_eq!(read(header.bytes(), "l"), Ok(()));
}

/// A directory of safetensors files holds no GGUF file.
#[test]
fn a_file_among_others() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.safetensors", "b.safetensors"] {
        std::fs::write(folder.path().join(name), Header::whole().bytes()).unwrap();
    }
    match Checkpoint::open(folder.path()) {
        Err(CheckpointError::Gguf { problem: GgufProblem::AmongOthers, .. }) => {}
        other => panic!("{other:?}"),
    }
}
