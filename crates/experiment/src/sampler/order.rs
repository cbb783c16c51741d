//! The order of samples: rounds of all items. The seed and the round's number decide the order of a round, so that a
//! continued run finds the same one.

use fastrand::Rng;

/// One sample's place in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot {
    /// The round, from 1; 0 is the warm-up.
    pub round: u32,
    /// The item's place in the plan, from 0.
    pub item: usize,
}

impl Slot {
    /// Whether its sample is not kept.
    pub fn is_warm_up(self) -> bool {
        self.round == 0
    }
}

/// The order of the items within a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Another random order in each round.
    Shuffled {
        /// Of the random numbers.
        seed: u64,
    },
    /// As planned in odd rounds and backwards in even ones: A B B A A B B A. A drift of the machine then affects two
    /// items alike even over few rounds.
    Mirrored,
}

impl Order {
    /// The order of one round over so many items.
    pub fn round(self, round: u32, items: usize) -> Vec<Slot> {
        let mut order: Vec<usize> = (0..items).collect();
        match self {
            Self::Shuffled { seed } => {
                // Golden ratio: neighbouring rounds get seeds far apart.
                let of_round = u64::from(round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Rng::with_seed(seed.wrapping_add(of_round)).shuffle(&mut order);
            }
            Self::Mirrored if round.is_multiple_of(2) => order.reverse(),
            Self::Mirrored => {}
        }
        order.into_iter().map(|item| Slot { round, item }).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_round_has_each_item_once_and_is_the_same_again(seed: u64, number: u32, items in 0usize..100) {
            let shuffled = Order::Shuffled { seed };
            let order = shuffled.round(number, items);
            let mut sorted: Vec<usize> = order.iter().map(|slot| slot.item).collect();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..items).collect::<Vec<_>>());
            prop_assert_eq!(order, shuffled.round(number, items));
        }
    }

    /// Each item has to come first about equally often, or the first place would be an effect of the item.
    #[test]
    fn no_item_prefers_a_place() {
        let (items, rounds) = (6, 6000);
        for seed in [0, 1, u64::MAX] {
            let mut at = vec![vec![0; items]; items];
            for number in 0..rounds {
                let order = Order::Shuffled { seed }.round(number, items);
                for (place, slot) in order.iter().enumerate() {
                    at[slot.item][place] += 1;
                }
            }
            let off = |&count: &i32| (count - 1000).abs();
            let most_off = at.iter().flatten().map(off).max().unwrap();
            // Binomial with mean 1000: 150 are more than five standard deviations.
            assert!(most_off < 150, "{at:?}");
        }
    }

    #[test]
    fn mirrored_rounds_give_both_items_as_many_first_places() {
        let items = |round| {
            let order = Order::Mirrored.round(round, 2);
            order.into_iter().map(|slot| slot.item)
        };
        let order: Vec<usize> = (1..=4).flat_map(items).collect();
        assert_eq!(order, [0, 1, 1, 0, 0, 1, 1, 0]);
    }
}
