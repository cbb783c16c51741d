//! Whether a trace is whole, and if not, which of two things happened.
//!
//! ```text
//! occurred ─┬─ read
//!           └─ lost ─┬─ a ring was full            the kernel says how many (PERF_FORMAT_LOST, since Linux 6.0)
//!                    └─ unwritten                  it counted them, and neither wrote them nor calls them lost
//! ```
//!
//! perf_swevent_event() in kernel/events/core.c adds to the count first and writes after. Linux as published leaves an event
//! out in between only when it was disabled meanwhile. A hosted virtual machine's own build of Linux 6.18 wrote none in whose
//! context process 1 or the idle task of CPU 1 was, and every other one (docs/trace.md).
//!
//! Count and ring are looked at one after the other, and events go on. What came in between must not stand in for one that is
//! missing, so a look counts only if nothing came ([`between_events`]).

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Losses {
    /// Events that the kernel counted, whether or not it could write them.
    pub occurred: u64,
    pub read: u64,
    /// Events that occurred and were not read.
    pub lost: u64,
    /// How many of the lost ones were not for want of room in a ring: the kernel counted them and did not write them. `None`
    /// where it does not tell the two apart, which it does since Linux 6.0.
    #[serde(default)]
    pub unwritten: Option<u64>,
    /// Records that made no sense; none are known from any kernel.
    pub damaged: u64,
    /// How often the kernel paused an event for being too frequent.
    pub throttled: u64,
}

/// What the kernel says of an event, or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    pub(crate) occurred: u64,
    /// How many of those found no room in the ring; `None` before Linux 6.0.
    pub(crate) no_room: Option<u64>,
}

/// So many looks at one CPU are made to find a quiet one; each takes some microseconds a tracepoint.
const LOOKS: usize = 20;

/// Reads a ring at a moment between two events: how often they had occurred by then, all of which are written by now or never
/// will be, but for one that is being written. Where events do not cease for as long as a look takes, those of the last
/// look may stand in for as many that are missing: too few are called lost then, never too many.
pub(crate) fn between_events<T, E>(
    cpu: &mut T,
    count: impl Fn(&T) -> Result<Count, E>,
    mut drain: impl FnMut(&mut T),
) -> Result<Count, E> {
    let mut before = count(cpu)?;
    for _ in 0..LOOKS {
        drain(cpu);
        let after = count(cpu)?;
        if after.occurred == before.occurred {
            return Ok(after);
        }
        before = after;
    }
    drain(cpu);
    Ok(before)
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        let none = Self {
            occurred: 0,
            no_room: Some(0),
        };
        counts.fold(none, |sum, one| Self {
            occurred: sum.occurred + one.occurred,
            no_room: sum.no_room.zip(one.no_room).map(|(a, b)| a + b),
        })
    }
}

impl Losses {
    pub fn is_whole(&self) -> bool {
        self.lost == 0 && self.damaged == 0 && self.throttled == 0
    }

    /// What was counted after `earlier`, which is the same session's.
    pub fn since(&self, earlier: &Self) -> Self {
        let read = self.read.saturating_sub(earlier.read);
        let lost = self.lost.saturating_sub(earlier.lost);
        let unwritten = self
            .unwritten
            .zip(earlier.unwritten)
            .map(|(now, then)| now.saturating_sub(then).min(lost));
        Self {
            // What was given up for lost by then and came after all is among those read.
            occurred: self
                .occurred
                .saturating_sub(earlier.occurred)
                .max(read + lost),
            read,
            lost,
            unwritten,
            damaged: self.damaged.saturating_sub(earlier.damaged),
            throttled: self.throttled.saturating_sub(earlier.throttled),
        }
    }

    /// How many of so many events were neither read nor found no room: they may still be written.
    pub(crate) fn missing(&self, count: &Count) -> u64 {
        count
            .occurred
            .saturating_sub(self.read + self.no_room(count))
    }

    /// The same with the kernel's own count, which is needed because a ring says that records were lost only with the next
    /// one that fits: after the last event of a trace it says nothing more.
    pub(crate) fn counted(self, count: &Count) -> Self {
        let lost = self.lost.max(count.occurred.saturating_sub(self.read));
        let unwritten = count.no_room.map(|_| self.missing(count));
        // Events may have been read that came after the count, if they did not cease.
        Self {
            occurred: count.occurred.max(self.read + lost),
            lost,
            unwritten,
            ..self
        }
    }

    /// Of all CPUs together, of which there is one at least.
    pub(crate) fn of_all(each: impl IntoIterator<Item = Self>) -> Self {
        let none = Self {
            unwritten: Some(0),
            ..Self::default()
        };
        each.into_iter().fold(none, |sum, one| Self {
            occurred: sum.occurred + one.occurred,
            read: sum.read + one.read,
            lost: sum.lost + one.lost,
            unwritten: sum.unwritten.zip(one.unwritten).map(|(a, b)| a + b),
            damaged: sum.damaged + one.damaged,
            throttled: sum.throttled + one.throttled,
        })
    }

    /// How many found no room, as far as that is known: a ring may have said so of some since they were counted.
    fn no_room(&self, count: &Count) -> u64 {
        self.lost.max(count.no_room.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(losses: Losses, occurred: u64, no_room: Option<u64>) -> Losses {
        losses.counted(&Count { occurred, no_room })
    }

    #[test]
    fn events_that_were_counted_and_not_read_are_lost_even_when_no_record_says_so() {
        let losses = Losses {
            read: 7,
            lost: 2,
            ..Losses::default()
        };
        assert_eq!(counted(losses, 10, None).lost, 3);
        assert_eq!(counted(losses, 8, None).lost, 2, "the kernel said so");
        assert!(!counted(losses, 10, None).is_whole());
        let seven = Losses {
            read: 7,
            ..Losses::default()
        };
        assert!(counted(seven, 7, Some(0)).is_whole());
        let (early, late) = (
            counted(losses, 12, None),
            counted(
                Losses {
                    read: 12,
                    ..Losses::default()
                },
                12,
                None,
            ),
        );
        assert_eq!(early.lost, 5);
        let between = late.since(&early);
        assert_eq!(
            (between.occurred, between.read, between.lost),
            (5, 5, 0),
            "those given up came after all"
        );
        assert_eq!(
            counted(Losses { read: 9, ..seven }, 7, None).occurred,
            9,
            "two came after the count"
        );
    }

    #[test]
    fn what_found_no_room_is_told_from_what_was_never_written() {
        let losses = Losses {
            read: 7,
            ..Losses::default()
        };
        let told = |occurred, no_room| {
            let losses = counted(losses, occurred, no_room);
            (losses.lost, losses.unwritten)
        };
        assert_eq!(told(10, Some(3)), (3, Some(0)), "the ring was full");
        assert_eq!(told(10, Some(1)), (3, Some(2)));
        assert_eq!(told(10, Some(0)), (3, Some(3)));
        assert_eq!(told(10, None), (3, None), "an old kernel does not tell");
        assert_eq!(
            losses.missing(&Count {
                occurred: 10,
                no_room: Some(3)
            }),
            0,
            "events that found no room are not waited for"
        );
        assert_eq!(
            losses.missing(&Count {
                occurred: 10,
                no_room: None
            }),
            3
        );
        let said_since = Losses { lost: 2, ..losses };
        assert_eq!(
            counted(said_since, 10, Some(1)).unwritten,
            Some(1),
            "a record said so after the count"
        );
    }

    /// A CPU on which one event comes after every count, so many times, and some were never written.
    struct Busy {
        coming: usize,
        written: u64,
        never_written: u64,
        losses: Losses,
    }

    impl Busy {
        /// How many are found to be missing, and how many events are still to come.
        fn settled(coming: usize) -> (u64, usize) {
            let mut busy = Self {
                coming,
                written: 10,
                never_written: 3,
                losses: Losses::default(),
            };
            let count = |busy: &Self| -> Result<Count, ()> {
                Ok(Count {
                    occurred: busy.written + busy.never_written,
                    no_room: Some(0),
                })
            };
            let drain = |busy: &mut Self| {
                if busy.coming > 0 {
                    busy.coming -= 1;
                    busy.written += 1;
                }
                busy.losses.read = busy.written;
            };
            let count = between_events(&mut busy, count, drain).unwrap();
            (busy.losses.missing(&count), busy.coming)
        }
    }

    #[test]
    fn events_that_come_during_a_look_do_not_stand_in_for_missing_ones() {
        assert_eq!(Busy::settled(0), (3, 0));
        assert_eq!(Busy::settled(1), (3, 0));
        assert_eq!(Busy::settled(LOOKS - 1), (3, 0));
        let (missing, to_come) = Busy::settled(1000);
        assert_eq!(
            missing, 2,
            "the one of the last look is taken for one of them"
        );
        assert_eq!(to_come, 1000 - LOOKS - 1, "looking ends");
    }

    #[test]
    fn one_event_of_which_it_is_not_known_makes_the_sum_unknown() {
        let [known, unknown] = [Some(2), None].map(|no_room| Count {
            occurred: 5,
            no_room,
        });
        assert_eq!(
            [known, known].into_iter().sum::<Count>(),
            Count {
                occurred: 10,
                no_room: Some(4)
            }
        );
        assert_eq!(
            [known, unknown].into_iter().sum::<Count>(),
            Count {
                occurred: 10,
                no_room: None
            }
        );
        let [known, unknown] = [Some(1), None].map(|unwritten| Losses {
            lost: 1,
            unwritten,
            ..Losses::default()
        });
        assert_eq!(Losses::of_all([known, known]).unwritten, Some(2));
        assert_eq!(
            Losses::of_all([known, unknown]),
            Losses {
                lost: 2,
                ..Losses::default()
            }
        );
        assert_eq!(known.since(&unknown).unwritten, None);
        assert_eq!(
            Losses {
                lost: 4,
                unwritten: Some(3),
                ..known
            }
            .since(&known)
            .unwritten,
            Some(2)
        );
    }

    #[test]
    fn what_was_stored_before_the_two_were_told_apart_is_read() {
        let stored = r#"{"occurred": 3, "read": 2, "lost": 1, "damaged": 0, "throttled": 0}"#;
        let losses: Losses = serde_json::from_str(stored).unwrap();
        assert_eq!(
            losses,
            Losses {
                occurred: 3,
                read: 2,
                lost: 1,
                ..Losses::default()
            }
        );
    }
}
