//! Static scales of the inputs of experts: each expert's own, or the largest of all.

use quantloom_dsl::Quantiser;
use quantloom_dsl::reference::StaticInput;

/// Gives every matrix the largest static scales of all, with the zero points that belong to them, as
/// vLLM does. Of a level that divides, the largest scale is the smallest divisor. The column groups of
/// a scale are apart from one another. A prescale stays each matrix's own.
pub fn take_largest(quantiser: &Quantiser, inputs: &mut [&mut StaticInput]) {
    for (level, scale) in quantiser.scales.iter().enumerate().filter(|(_, scale)| scale.stored) {
        let columns = inputs.iter().filter_map(|input| Some(input.scales.get(level)?.len())).min();
        for column in 0..columns.unwrap_or(0) {
            let sizes = || inputs.iter().map(|input| input.scales[level][column]);
            let factor = |size: f64| if scale.divide { 1.0 / size } else { size };
            let largest = sizes()
                .enumerate()
                .reduce(|best, next| if factor(next.1) > factor(best.1) { next } else { best });
            let Some((owner, size)) = largest else { continue };
            let zero = inputs[owner].zeros.get(column).copied().filter(|_| level == 0);
            for input in &mut *inputs {
                input.scales[level][column] = size;
                if let (Some(zero), Some(own)) = (zero, input.zeros.get_mut(column)) {
                    *own = zero;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quantloom_dsl::parse;

    use super::*;

    #[test]
    fn the_largest_scale_has_its_zero_point_with_it() {
        let largest = |activation: &str, scales: [f64; 3]| {
            let scheme = parse(&format!(
                "s {{ weight: i8, scale: f32 per channel, pack: [k, n], activation: {activation} }}"
            ))
            .unwrap();
            let mut zero = 0.0;
            let mut inputs: Vec<StaticInput> = scales
                .into_iter()
                .map(|scale| {
                    zero += 1.0;
                    let scales = vec![vec![scale]];
                    StaticInput { scales, zeros: vec![zero], prescale: vec![zero] }
                })
                .collect();
            let mut all: Vec<&mut StaticInput> = inputs.iter_mut().collect();
            take_largest(scheme.quantiser().unwrap(), &mut all);
            inputs
        };
        let static_scale = "i8 { zero: i8, scale: f32 per tensor from amax / 127 static }";
        for (at, input) in largest(static_scale, [0.5, 2.0, 1.0]).into_iter().enumerate() {
            assert_eq!((input.scales, input.zeros), (vec![vec![2.0]], vec![2.0]));
            assert_eq!(input.prescale, [at as f64 + 1.0]);
        }
        // Divisors: 0.5 is the largest scale.
        let divisor = "e2m1 { scale: e4m3 per 1x16, \
                       scale: divide f32 per tensor from amax / 2688 static }";
        let scheme = parse(&format!(
            "s {{ weight: i8, scale: f32 per channel, pack: [k, n], activation: {divisor} }}"
        ))
        .unwrap();
        let mut inputs = [4.0, 0.5, 3.0].map(|divisor| StaticInput {
            scales: vec![Vec::new(), vec![divisor]],
            ..StaticInput::default()
        });
        take_largest(scheme.quantiser().unwrap(), &mut inputs.each_mut());
        assert!(inputs.iter().all(|input| input.scales == [vec![], vec![0.5]]));
    }
}
