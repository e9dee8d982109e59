//! Shares of the cases of long tests.

use quantloom_tests::sweep::Share;

/// Every case is of one part; the parts are of about one size, in each column of a table too.
#[test]
fn parts_have_every_case_once() {
    let parts: Vec<Share> =
        (100..107).map(|number| Share::asked(50, 7, Some(&number.to_string()))).collect();
    for column in 0..7 {
        let cases = || (0..700).map(|row| 7 * row + column);
        assert!(cases().all(|case| parts.iter().filter(|share| share.takes(case)).count() == 1));
        for share in &parts {
            let count = cases().filter(|case| share.takes(*case)).count();
            assert!((70..=130).contains(&count), "{count} of 700 in column {column}");
        }
    }
    assert_eq!(Share::asked(50, 7, Some("all")).of(0..1000).len(), 1000);
    let few = Share::asked(50, 7, None).of(0..1000).len();
    assert!((5..50).contains(&few), "{few}");
}
