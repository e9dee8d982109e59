//! Free choices that a user sets: which are replaced, and which texts are refused.

use quantloom_codegen::jit::Overrides;
use quantloom_runtime::source::Schedule;

fn skinny() -> Schedule {
    Schedule::new("skinny", [("warps", 16), ("row_tiles", 1), ("n", 64)])
}

#[test]
fn the_schedules_own_choices_are_replaced() {
    let text = " skinny(row_tiles=2, warps=12); tile(rows=64) ";
    let mut schedule = skinny();
    assert!(text.parse::<Overrides>().unwrap().apply(&mut schedule).unwrap());
    assert_eq!(schedule.to_string(), "skinny(n=64, row_tiles=2, warps=12)");
    let mut schedule = skinny();
    assert!(!"tile(rows=64)".parse::<Overrides>().unwrap().apply(&mut schedule).unwrap());
    assert!(!"".parse::<Overrides>().unwrap().apply(&mut schedule).unwrap());
    assert_eq!(schedule, skinny());
}

#[test]
fn what_is_none_is_said() {
    for wrong in ["skinny", "skinny(warps)", "skinny(warps=x)", "warps=2", "skinny(warps=2"] {
        assert!(wrong.parse::<Overrides>().is_err(), "{wrong}");
    }
    let error = "decode(warps=2)".parse::<Overrides>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no schedule \"decode\", only tensor_memory, skinny, warp_group, tile, shader"
    );
    assert!("use decode".parse::<Overrides>().is_err());
    assert_eq!("use tile".parse::<Overrides>().unwrap().instead(), Some("tile"));
    for unknown in ["skinny(rows=2)", "skinny(n=2)"] {
        let overrides: Overrides = unknown.parse().unwrap();
        let error = overrides.apply(&mut skinny()).unwrap_err();
        assert!(error.to_string().contains("it has tokens, row_tiles, warps, "), "{error}");
    }
}
