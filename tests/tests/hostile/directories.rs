//! Directories of shards, and paths that are not files.

use quantloom_runtime::checkpoint::{Checkpoint, FileAccess, Options, Tensors};
use quantloom_tests::file::File;
use quantloom_tests::golden_file;
use serde_json::json;

#[test]
fn directories_that_lie() {
    let good = File::golden("ct_w4a16").bytes();
    let map = |shard: &str| json!({"weight_map": {"layer.weight_packed": shard}}).to_string();
    let indices = [
        (map("../shard.safetensors"), "../shard.safetensors"),
        (map("sub/shard.safetensors"), "sub/shard.safetensors"),
        (map("/etc/passwd"), "/etc/passwd"),
        (map("/"), "not a file of this directory"),
        (map("."), "not a file of this directory"),
        (map(".."), "not a file of this directory"),
        (map(""), "not a file of this directory"),
        (map("missing.safetensors"), "missing.safetensors"),
        (map("a\u{0}b"), "cannot read"),
        (map("folder"), "is not a file"),
        (json!({"weight_map": {"a": 7}}).to_string(), "not a string"),
        (json!({"weight_map": {}}).to_string(), "weight_map"),
        (json!({"weight_map": ["shard.safetensors"]}).to_string(), "weight_map"),
        (json!([]).to_string(), "weight_map"),
        ("{".to_owned(), "not valid JSON"),
        ("[".repeat(100_000), "not valid JSON"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let open = || Checkpoint::open(folder.path()).map(|_| ()).map_err(|e| e.to_string());
    assert!(open().unwrap_err().contains("holds no .safetensors file"));
    std::fs::write(path("shard.safetensors"), &good).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    assert_eq!(open(), Ok(()));
    for (index, word) in &indices {
        std::fs::write(path("model.safetensors.index.json"), index).unwrap();
        let error = open().expect_err(word);
        assert!(error.contains(word), "{index:.80}: {error}");
    }
    std::fs::remove_file(path("model.safetensors.index.json")).unwrap();
    std::fs::write(path("again.safetensors"), &good).unwrap();
    assert!(open().unwrap_err().contains("occurs twice"));
    std::fs::write(path("again.safetensors"), b"").unwrap();
    assert!(open().unwrap_err().contains("again.safetensors is not a valid safetensors file"));
    std::fs::remove_file(path("again.safetensors")).unwrap();
    std::fs::create_dir(path("again.safetensors")).unwrap();
    assert!(open().unwrap_err().contains("again.safetensors is not a file"));
}

/// Opening a pipe would wait forever for a writer.
#[cfg(unix)]
#[test]
fn a_pipe_is_not_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.safetensors");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    if made.is_ok_and(|status| status.success()) {
        let error = Checkpoint::open(&pipe).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("is not a file"), "{error}");
    }
}

/// A file that is truncated while it is open: a copy in memory does not change. (A mapped file
/// would end this process.)
#[test]
fn a_copied_file_may_be_shortened_while_it_is_open() {
    let golden = golden_file("ct_w4a16");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::copy(&golden, &path).unwrap();
    let options = Options { access: FileAccess::Copied, ..Options::default() };
    let checkpoint = Checkpoint::open_with(&path, options).unwrap();
    let tensors = Tensors::open_as(&path, FileAccess::Copied).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(8).unwrap();
    let mapped = Tensors::open(&golden).unwrap();
    for name in mapped.names() {
        let [copied, mapped] =
            [&tensors, &mapped].map(|tensors| tensors.get(name).unwrap().bytes());
        assert!(copied == mapped, "{name}");
    }
    assert!(checkpoint.layers().count() > 0);
    for (name, layer) in checkpoint.layers() {
        assert!(layer.is_ok_and(|layer| layer.unpack().is_ok()), "{name}");
    }
    // Too short from the beginning.
    let error = Checkpoint::open_with(&path, options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("is not a valid safetensors file"), "{error}");
}
