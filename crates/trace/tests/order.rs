//! Events of several CPUs in one order.

use nearfar_trace::Ordered;
use proptest::prelude::*;

#[test]
fn an_event_waits_until_no_older_one_can_come() {
    let mut order = Ordered::default();
    let mut out = Vec::new();
    for round in [&[1u64, 4, 7, 2, 3][..], &[9, 5, 6, 8]] {
        round.iter().for_each(|&time| order.push(time, ()));
        order.end_round(&mut |time, ()| out.push(time));
    }
    assert_eq!(
        out,
        [1, 2, 3, 4, 5, 6, 7],
        "those up to the first round's newest"
    );
    order.finish(&mut |time, ()| out.push(time));
    assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

proptest! {
    /// Each ring is in order of time; a round reads each ring up to some moment, and a later ring of the same round may
    /// already hold events from after that moment.
    #[test]
    fn rings_read_in_rounds_come_out_in_order_of_time(
        gaps in proptest::collection::vec((0usize..3, 1u64..50), 0..200),
        rounds in proptest::collection::vec((1u64..500, 0u64..40), 1..20),
    ) {
        let (mut rings, mut now) = ([Vec::new(), Vec::new(), Vec::new()], 0);
        for (ring, gap) in gaps {
            now += gap;
            rings[ring].push(now);
        }
        let total: usize = rings.iter().map(Vec::len).sum();
        let (mut order, mut out, mut moment) = (Ordered::default(), Vec::new(), 0);
        for (pause, skew) in rounds {
            moment += pause;
            for (number, ring) in rings.iter_mut().enumerate() {
                // Reading takes time: the next ring is read a little later.
                let until = moment + skew * number as u64;
                let ready = ring.partition_point(|&time| time <= until);
                ring.drain(..ready).for_each(|time| order.push(time, ()));
            }
            moment += skew * 3;
            order.end_round(&mut |time, ()| out.push(time));
        }
        rings.iter_mut().flat_map(|ring| ring.drain(..)).for_each(|time| order.push(time, ()));
        order.finish(&mut |time, ()| out.push(time));
        prop_assert_eq!(out.len(), total);
        prop_assert!(out.is_sorted(), "{:?}", out);
    }
}
