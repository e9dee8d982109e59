//! Shapes, values of M and numbers of bytes on the command line.

/// `NxK`, two whole numbers from 1 on.
pub(crate) fn shape(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("\"{text}\" is not NxK, such as 4096x4096");
    let (n, k) = text.split_once('x').ok_or_else(wrong)?;
    let size = |text: &str| text.trim().parse().ok().filter(|size| (1..1 << 32).contains(size));
    Ok((size(n).ok_or_else(wrong)?, size(k).ok_or_else(wrong)?))
}

/// Units of bytes, those that end in another one's name first.
const UNITS: [(&str, u64); 7] = [
    ("KIB", 1 << 10),
    ("MIB", 1 << 20),
    ("GIB", 1 << 30),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// A number of bytes: `8388608`, `8MiB` or `5GB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let mut units = UNITS.iter();
    let with_unit = units.find_map(|(name, unit)| Some((upper.strip_suffix(name)?, *unit)));
    let (number, unit) = with_unit.unwrap_or((&upper, 1));
    let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .ok_or_else(|| format!("\"{text}\" is not a number of bytes, such as 8388608, 8MiB or 5GB"))
}

/// Values of M: `1,8,32` or `1-17`, from 1 on.
pub(crate) fn tokens(text: &str) -> Result<Vec<usize>, String> {
    tokens_from(1, text)
}

/// Values of M from `least` on.
fn tokens_from(least: usize, text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("\"{text}\" is not a list of M, such as 1,8,32 or 1-17");
    let one = |text: &str| {
        text.trim().parse::<usize>().ok().filter(|m| (least..1 << 20).contains(m)).ok_or_else(wrong)
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => all.extend(one(first)?..=one(last)?),
            None => all.push(one(part)?),
        }
    }
    if all.is_empty() { Err(wrong()) } else { Ok(all) }
}

/// A list that clap takes as one value.
#[derive(Clone, Debug)]
pub(crate) struct Tokens(pub(crate) Vec<usize>);

impl std::str::FromStr for Tokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        tokens(text).map(Self)
    }
}

/// The same of calls that may have no tokens: from 0 on.
#[derive(Clone, Debug)]
pub(crate) struct TokensOrNone(pub(crate) Vec<usize>);

impl std::str::FromStr for TokensOrNone {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        tokens_from(0, text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_have_units_or_none() {
        let right = [
            ("0", 0),
            ("8388608", 8 << 20),
            ("8MiB", 8 << 20),
            ("9 kb", 9000),
            ("5GB", 5_000_000_000),
        ];
        for (text, expected) in right {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "MiB", "8TB", "-1", "1.5GB", "99999999999GB"] {
            assert!(bytes(text).is_err_and(|why| why.contains("such as 8388608")), "{text}");
        }
    }
}
