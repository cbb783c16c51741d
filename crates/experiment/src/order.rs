//! The order of samples: rounds of all cells, each in a random order that the seed and the round's number decide, so that
//! a continued run finds the same one.

use fastrand::Rng;

/// One place in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Slot {
    /// The round, from 1.
    pub round: u32,
    /// The cell's place in the plan.
    pub cell: usize,
}

/// The order of one round over so many cells.
pub(crate) fn round(seed: u64, round: u32, cells: usize) -> Vec<Slot> {
    // Golden ratio: neighbouring rounds get seeds far apart.
    let mut random =
        Rng::with_seed(seed.wrapping_add(u64::from(round).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let mut order: Vec<usize> = (0..cells).collect();
    random.shuffle(&mut order);
    order.into_iter().map(|cell| Slot { round, cell }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_round_has_each_cell_once_and_is_the_same_again(seed: u64, number: u32, cells in 0usize..100) {
            let order = round(seed, number, cells);
            let mut sorted: Vec<usize> = order.iter().map(|slot| slot.cell).collect();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..cells).collect::<Vec<_>>());
            prop_assert_eq!(order, round(seed, number, cells));
        }
    }

    /// Each cell has to come first about equally often, or the first place would be an effect of the cell.
    #[test]
    fn no_cell_prefers_a_place() {
        let (cells, rounds) = (6, 6000);
        for seed in [0, 1, u64::MAX] {
            let mut at = vec![vec![0; cells]; cells];
            for number in 0..rounds {
                for (place, slot) in round(seed, number, cells).iter().enumerate() {
                    at[slot.cell][place] += 1;
                }
            }
            let most_off = at
                .iter()
                .flatten()
                .map(|&count: &i32| (count - 1000).abs())
                .max()
                .unwrap();
            // Binomial with mean 1000: 150 are more than five standard deviations.
            assert!(most_off < 150, "{at:?}");
        }
    }
}
