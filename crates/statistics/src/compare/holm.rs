//! Many questions at once: each p-value made as large as the number of questions demands (Holm 1979).

/// Adjusted p-values: those at most `a` are rejected when the chance of any false rejection among all is to be at most `a`, however the
/// questions depend on each other. A question without a p-value does not count.
pub(super) fn adjusted(values: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut asked: Vec<(usize, f64)> = values
        .iter()
        .enumerate()
        .filter_map(|(index, value)| value.map(|value| (index, value)))
        .collect();
    asked.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let mut adjusted = vec![None; values.len()];
    let mut largest = 0.0f64;
    for (step, (index, value)) in asked.iter().enumerate() {
        largest = largest.max(value * (asked.len() - step) as f64);
        adjusted[*index] = Some(largest.min(1.0));
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_a_worked_example() {
        // 0.01 x 4, 0.03 x 2 after 0.02 x 3, 0.03 is not below its predecessor's 0.06.
        let found = adjusted(&[Some(0.02), Some(0.01), None, Some(0.04), Some(0.03)]);
        let expected = [0.06, 0.04, f64::NAN, 0.06, 0.06];
        for (found, expected) in found.into_iter().zip(expected) {
            match found {
                Some(found) => assert!((found - expected).abs() < 1e-12, "{found}"),
                None => assert!(expected.is_nan()),
            }
        }
    }
}
