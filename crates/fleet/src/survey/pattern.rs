//! Cells of an experiment in words: what those have in common that a host deviates in.

use nearfar_runs::Cell;

/// Cells that are listed one by one.
const MAX_LISTED: usize = 4;

/// What these of all cells have in common: `all`, a level of a factor, `cpu_node and memory_node differ`, or the cells themselves.
pub(super) fn pattern(all: &[Cell], chosen: &[usize]) -> String {
    if chosen.len() == all.len() {
        return "all".to_owned();
    }
    let is_exactly = |holds: &dyn Fn(&Cell) -> bool| {
        let mut places = 0..all.len();
        places.all(|place| holds(&all[place]) == chosen.contains(&place))
    };
    let Some(first) = chosen.first().map(|&place| &all[place]) else {
        return "none".to_owned();
    };
    for (factor, level) in first.levels() {
        if is_exactly(&|cell| cell.level(factor) == Some(level)) {
            return format!("{factor}={level}");
        }
    }
    let factors: Vec<&str> = first.levels().map(|(factor, _)| factor).collect();
    for (index, a) in factors.iter().enumerate() {
        for b in &factors[index + 1..] {
            if is_exactly(&|cell| cell.level(a) != cell.level(b)) {
                return format!("{a} and {b} differ");
            }
            if is_exactly(&|cell| cell.level(a) == cell.level(b)) {
                return format!("{a} and {b} are equal");
            }
        }
    }
    let listed: Vec<String> = chosen
        .iter()
        .take(MAX_LISTED)
        .map(|&place| all[place].to_string())
        .collect();
    match chosen.len() - listed.len() {
        0 => listed.join("; "),
        more => format!("{} and {more} more of {}", listed.join("; "), all.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_named_by_what_they_have_in_common() {
        let cell = |cpu: u32, memory: u32| {
            Cell::new()
                .with("cpu_node", cpu)
                .with("memory_node", memory)
        };
        let all = [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)];
        for (chosen, text) in [
            (&[0, 1, 2, 3][..], "all"),
            (&[1, 3], "memory_node=1"),
            (&[0, 1], "cpu_node=0"),
            (&[1, 2], "cpu_node and memory_node differ"),
            (&[0, 3], "cpu_node and memory_node are equal"),
            (&[1], "cpu_node=0 memory_node=1"),
            (&[], "none"),
        ] {
            assert_eq!(pattern(&all, chosen), text, "{chosen:?}");
        }
    }
}
