//! The catalogue is the files of `schemes`.

use quantloom_dsl::parse;
use quantloom_kernels::{ENTRIES, catalogue};

#[test]
fn every_file_is_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/schemes");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    assert_eq!(files, ENTRIES.iter().map(|entry| entry.name).collect::<Vec<_>>());
}

#[test]
fn every_file_is_a_scheme_in_its_printed_form() {
    for entry in ENTRIES {
        let scheme = parse(entry.text).unwrap_or_else(|faults| panic!("{}\n{faults}", entry.name));
        assert_eq!(scheme.name, entry.name);
        assert!(!scheme.summary.is_empty(), "{} has no summary", entry.name);
        assert_eq!(scheme.to_string(), entry.text, "{} is not in its printed form", entry.name);
    }
}

#[test]
fn no_two_schemes_are_the_same() {
    for (position, scheme) in catalogue().iter().enumerate() {
        let twin = catalogue()[..position].iter().find(|other| other.same_meaning(scheme));
        assert!(twin.is_none(), "{} and {}", scheme.name, twin.unwrap().name);
    }
}
