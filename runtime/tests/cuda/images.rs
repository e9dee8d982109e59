//! Images on disk.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use quantloom_runtime::cuda::{ImageCache, ImageKey, VARIABLE};

const CAP: u64 = 1 << 20;

fn key(text: &str) -> ImageKey<'_> {
    ImageKey { text, architecture: "sm_90", driver_version: 13000 }
}

fn entries(root: &Path) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(root.join("images")) else { return Vec::new() };
    let mut entries: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

fn only(root: &Path) -> PathBuf {
    let entries = entries(root);
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries[0].clone()
}

/// Makes an entry look as if it had been used so long ago.
fn age(path: &Path, age: Duration) {
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

#[test]
fn what_is_put_is_got() {
    let root = tempfile::tempdir().unwrap();
    let cache = ImageCache::in_directory(root.path(), CAP);
    assert_eq!(cache.get(&key("text")), None);
    cache.put(&key("text"), b"image");
    assert_eq!(cache.get(&key("text")).as_deref(), Some(&b"image"[..]));
    let name = only(root.path()).file_name().unwrap().to_str().unwrap().to_owned();
    let digest = name.strip_suffix(".image").unwrap();
    assert!(digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
    cache.put(&key("text"), b"another");
    assert_eq!(cache.get(&key("text")).as_deref(), Some(&b"another"[..]));
    cache.put(&key("text"), b"");
    assert_eq!(cache.get(&key("text")).as_deref(), Some(&b""[..]));
    only(root.path());
    cache.forget(&key("text"));
    cache.forget(&key("text"));
    assert_eq!(cache.get(&key("text")), None);
}

#[test]
fn every_part_of_the_key_counts() {
    let root = tempfile::tempdir().unwrap();
    let cache = ImageCache::in_directory(root.path(), CAP);
    let keys = [
        ImageKey { text: "text", architecture: "sm_90", driver_version: 13000 },
        ImageKey { text: "text ", architecture: "sm_90", driver_version: 13000 },
        ImageKey { text: "text", architecture: "sm_89", driver_version: 13000 },
        ImageKey { text: "text", architecture: "sm_90", driver_version: 12080 },
        // The same bytes one after another, cut at another place.
        ImageKey { text: "0text", architecture: "sm_90", driver_version: 1300 },
        ImageKey { text: "text", architecture: "sm_901", driver_version: 3000 },
        ImageKey { text: "", architecture: "sm_90", driver_version: 13000 },
    ];
    for (at, key) in keys.iter().enumerate() {
        cache.put(key, at.to_string().as_bytes());
    }
    for (at, key) in keys.iter().enumerate() {
        assert_eq!(cache.get(key), Some(at.to_string().into_bytes()), "{key:?}");
    }
}

#[test]
fn a_damaged_entry_is_absent_and_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let cache = ImageCache::in_directory(root.path(), CAP);
    let image: Vec<u8> = (0..100).collect();
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 6] = [
        ("a bit of the image", |entry| entry[131] ^= 1),
        ("a bit of the digest", |entry| entry[0] ^= 128),
        ("the end", |entry| entry.truncate(131)),
        ("all but the digest", |entry| entry.truncate(32)),
        ("half of the digest", |entry| entry.truncate(16)),
        ("more than there was", |entry| entry.push(0)),
    ];
    for (what, damage) in damages {
        cache.put(&key("text"), &image);
        let path = only(root.path());
        let mut entry = fs::read(&path).unwrap();
        assert_eq!(entry.len(), 132);
        damage(&mut entry);
        fs::write(&path, entry).unwrap();
        assert_eq!(cache.get(&key("text")), None, "{what}");
        cache.put(&key("text"), &image);
        assert_eq!(cache.get(&key("text")).as_ref(), Some(&image), "{what}");
    }
}

#[cfg(unix)]
#[test]
fn the_folder_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let root = tempfile::tempdir().unwrap();
    let made = root.path().join("made/by/us");
    let cache = ImageCache::in_directory(&made, CAP);
    cache.put(&key("text"), b"image");
    assert_eq!(mode(&made.join("images")), 0o700);
    assert_eq!(mode(&made), 0o700);
    // One that was there and open to others is closed before anything is read from it.
    fs::set_permissions(made.join("images"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(cache.get(&key("text")).is_some());
    assert_eq!(mode(&made.join("images")), 0o700);
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    let root = tempfile::tempdir().unwrap();
    // Three entries of 1000 + 32 bytes fit, four do not.
    let cache = ImageCache::in_directory(root.path(), 4000);
    let image = [7u8; 1000];
    let hours = |hours: u64| Duration::from_secs(3600 * hours);
    for (at, name) in ["first", "second", "third"].into_iter().enumerate() {
        let before = entries(root.path());
        cache.put(&key(name), &image);
        let new = entries(root.path()).into_iter().find(|path| !before.contains(path));
        age(&new.unwrap(), hours(9 - at as u64));
    }
    // Its use makes the oldest the youngest.
    assert!(cache.get(&key("first")).is_some());
    cache.put(&key("fourth"), &image);
    let there = |name: &str| cache.get(&key(name)).is_some();
    assert_eq!(["first", "second", "third", "fourth"].map(there), [true, false, true, true]);
    // What would never fit is not kept, and pushes nothing out.
    cache.put(&key("large"), &[0; 4001]);
    assert_eq!(entries(root.path()).len(), 3);
}

#[test]
fn what_a_dead_process_left_goes_too() {
    let root = tempfile::tempdir().unwrap();
    let cache = ImageCache::in_directory(root.path(), CAP);
    cache.put(&key("text"), b"image");
    let (left, fresh) =
        (root.path().join("images/writing-left"), root.path().join("images/writing-now"));
    for path in [&left, &fresh] {
        fs::write(path, "half").unwrap();
    }
    age(&left, Duration::from_secs(2 * 3600));
    cache.put(&key("other"), b"image");
    assert!(!left.exists() && fresh.exists());
    assert_eq!(entries(root.path()).len(), 3);
}

#[test]
fn where_the_cache_is() {
    let home = Some(PathBuf::from("/home/user"));
    type Variables = &'static [(&'static str, &'static str)];
    let cases: &[(Variables, Option<PathBuf>, Option<&str>)] = &[
        (&[], home.clone(), Some("/home/user/.cache/quantloom/images")),
        (&[("XDG_CACHE_HOME", "/var/u")], home.clone(), Some("/var/u/quantloom/images")),
        // Not absolute, so ignored.
        (&[("XDG_CACHE_HOME", "u")], home.clone(), Some("/home/user/.cache/quantloom/images")),
        (&[(VARIABLE, "/big/disk")], home.clone(), Some("/big/disk/images")),
        (
            &[(VARIABLE, "/big/disk"), ("XDG_CACHE_HOME", "/var/u")],
            home.clone(),
            Some("/big/disk/images"),
        ),
        (&[(VARIABLE, "off")], home.clone(), None),
        (&[(VARIABLE, "")], home, Some("/home/user/.cache/quantloom/images")),
        (&[], None, None),
    ];
    for (variables, home, expected) in cases {
        let variable = |name: &str| {
            let found = variables.iter().find(|variable| variable.0 == name);
            found.map(|variable| OsString::from(variable.1))
        };
        let cache = ImageCache::from_variables(&variable, home.clone());
        assert_eq!(cache.directory(), expected.map(Path::new), "{variables:?} {home:?}");
    }
}

#[test]
fn a_cache_that_is_off_does_nothing() {
    let cache = ImageCache::off();
    cache.put(&key("text"), b"image");
    assert_eq!(cache.get(&key("text")), None);
    cache.forget(&key("text"));
}

/// Counts warnings.
struct Warnings(AtomicU32);

impl tracing::Subscriber for &'static Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_cache_that_cannot_be_is_told_and_fails_nothing() {
    static WARNINGS: Warnings = Warnings(AtomicU32::new(0));
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("images"), "a file where the folder should be").unwrap();
    let cache = ImageCache::in_directory(root.path(), CAP);
    tracing::subscriber::with_default(&WARNINGS, || {
        cache.put(&key("text"), b"image");
        assert_eq!(cache.get(&key("text")), None);
        cache.forget(&key("text"));
    });
    assert_eq!(WARNINGS.0.load(Ordering::Relaxed), 3);
    // An entry that is merely not there is nothing to tell.
    let empty = ImageCache::in_directory(&root.path().join("empty"), CAP);
    tracing::subscriber::with_default(&WARNINGS, || {
        assert_eq!(empty.get(&key("text")), None);
        empty.forget(&key("text"));
    });
    assert_eq!(WARNINGS.0.load(Ordering::Relaxed), 3);
}

#[test]
fn threads_see_whole_images_only() {
    let root = tempfile::tempdir().unwrap();
    let cache = ImageCache::in_directory(root.path(), CAP);
    let images: Vec<Vec<u8>> = (0..4u8).map(|thread| vec![thread; 20_000]).collect();
    std::thread::scope(|scope| {
        for image in &images {
            let (cache, images) = (&cache, &images);
            scope.spawn(move || {
                for _ in 0..25 {
                    cache.put(&key("text"), image);
                    let found = cache.get(&key("text"));
                    assert!(found.is_some_and(|found| images.contains(&found)));
                }
            });
        }
    });
    only(root.path());
}

/// Root may read what others own, and runs none of it. Without root the owner cannot be changed.
#[cfg(unix)]
#[test]
fn what_another_user_owns_or_may_write_is_not_used() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let root = tempfile::tempdir().unwrap();
    let cache = ImageCache::in_directory(root.path(), CAP);
    cache.put(&key("text"), b"image");
    let (folder, image) = (root.path().join("images"), only(root.path()));
    let mode = |mode| fs::set_permissions(&image, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o620);
    assert_eq!(cache.get(&key("text")), None);
    mode(0o600);
    assert!(cache.get(&key("text")).is_some());
    const NOBODY: u32 = 65534;
    if chown(&image, Some(NOBODY), None).is_err() {
        return;
    }
    assert_eq!(cache.get(&key("text")), None);
    chown(&image, Some(0), None).unwrap();
    assert!(cache.get(&key("text")).is_some());
    chown(&folder, Some(NOBODY), None).unwrap();
    assert_eq!(cache.get(&key("text")), None);
    cache.put(&key("other"), b"image");
    cache.forget(&key("text"));
    chown(&folder, Some(0), None).unwrap();
    assert_eq!(only(root.path()), image);
    assert!(cache.get(&key("text")).is_some());
}
