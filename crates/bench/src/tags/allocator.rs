//! What hands the tags out: a policy of nearfar-tags, or what a program without it would use.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;
use nearfar_experiment::BoxError;
use nearfar_tags::{Builder, Get, Group, Policy, Steals, Tags};

/// The levels of the factor that are policies.
const LEVELS: [(&str, Policy); 8] = [
    ("stock", Policy::Stock),
    ("limit", Policy::Limit),
    ("limit_topology", Policy::LimitTopology),
    ("coarse_core", Policy::Coarse(Group::Core)),
    ("coarse_llc", Policy::Coarse(Group::Llc)),
    ("coarse_node", Policy::Coarse(Group::Node)),
    ("bitmap", Policy::Bitmap),
    ("auto", Policy::Auto),
];

/// Their names, in the order of tables.
pub(super) const POLICIES: &[&str] = &{
    let mut names = [""; LEVELS.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = LEVELS[place].0;
        place += 1;
    }
    names
};

const MUTEX_VEC: &str = "mutex_vec";
const ARRAY_QUEUE: &str = "array_queue";

/// The levels that are not policies of nearfar-tags.
pub(super) const PEERS: &[&str] = &[MUTEX_VEC, ARRAY_QUEUE];

/// All of them.
pub(super) const ALL: &[&str] = &{
    let mut names = [""; POLICIES.len() + PEERS.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = match place < POLICIES.len() {
            true => POLICIES[place],
            false => PEERS[place - POLICIES.len()],
        };
        place += 1;
    }
    names
};

/// An allocator with all of its tags free.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and a box is a further load for each tag"
)]
pub(super) enum Allocator {
    Tags {
        tags: Tags,
        /// Whether the policy takes tags from where another CPU has put them, and counts that.
        counts_steals: bool,
    },
    /// A stack: the tag that was put last is taken first.
    Mutex(Mutex<Vec<u32>>),
    /// A queue without a lock.
    Queue(ArrayQueue<u32>),
}

impl Allocator {
    /// `set_up` says more about a policy's.
    ///
    /// # Errors
    /// A level that there is not, or a policy that cannot be made so.
    pub(super) fn new(
        level: &str,
        tags: u32,
        set_up: impl FnOnce(Builder) -> Builder,
    ) -> Result<Self, BoxError> {
        if let Some((_, policy)) = LEVELS.into_iter().find(|(name, _)| *name == level) {
            let builder = set_up(Tags::builder(tags).policy(policy));
            return Ok(Self::Tags {
                tags: builder.build()?,
                counts_steals: !matches!(policy, Policy::Bitmap | Policy::Auto),
            });
        }
        match level {
            MUTEX_VEC => Ok(Self::Mutex(Mutex::new((0..tags).rev().collect()))),
            ARRAY_QUEUE => {
                let queue = ArrayQueue::new(tags as usize);
                // As many as there is room for.
                (0..tags).for_each(|tag| _ = queue.push(tag));
                Ok(Self::Queue(queue))
            }
            _ => Err(format!("{level} is no level of policy").into()),
        }
    }

    /// A free tag, `None` without one.
    pub(super) fn take(&self) -> Option<u32> {
        match self {
            Self::Tags { tags, .. } => tags.try_take(),
            Self::Mutex(tags) => lock(tags).pop(),
            Self::Queue(tags) => tags.pop(),
        }
    }

    pub(super) fn put(&self, tag: u32) {
        match self {
            Self::Tags { tags, .. } => tags.put(tag),
            Self::Mutex(tags) => lock(tags).push(tag),
            // There is room for all tags.
            Self::Queue(tags) => _ = tags.push(tag),
        }
    }

    /// A place among those that wait for a tag; `None` where there is no queue of them.
    pub(super) fn wait(&self) -> Option<Get<'_>> {
        match self {
            Self::Tags { tags, .. } => Some(tags.get_async()),
            Self::Mutex(_) | Self::Queue(_) => None,
        }
    }

    /// Since it was made; `None` where none are counted.
    pub(super) fn steals(&self) -> Option<Steals> {
        match self {
            Self::Tags {
                tags,
                counts_steals: true,
            } => Some(tags.statistics().steals),
            _ => None,
        }
    }
}

/// Nothing panics while the lock is held.
fn lock(tags: &Mutex<Vec<u32>>) -> MutexGuard<'_, Vec<u32>> {
    tags.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tags::groups::tests::machine;
    use crate::tags::topology::topology;

    #[test]
    fn each_level_hands_every_tag_out_once_and_again_after_a_put() {
        let machine = machine();
        for level in ALL {
            let allocator =
                Allocator::new(level, 70, |it| it.topology(topology(&machine))).unwrap();
            for _ in 0..2 {
                let taken: BTreeSet<u32> = std::iter::from_fn(|| allocator.take()).collect();
                assert_eq!(taken, (0..70).collect(), "{level}");
                taken.into_iter().for_each(|tag| allocator.put(tag));
            }
        }
        assert_eq!(ALL.iter().collect::<BTreeSet<_>>().len(), 10);
    }

    #[test]
    fn only_policies_that_take_tags_of_other_cpus_count_steals() {
        let machine = machine();
        let counts = |level: &&&str| {
            let allocator =
                Allocator::new(level, 70, |it| it.topology(topology(&machine))).unwrap();
            allocator.steals().is_some()
        };
        let counting: Vec<_> = ALL.iter().filter(counts).collect();
        assert_eq!(counting, POLICIES[..6].iter().collect::<Vec<_>>());
    }

    #[test]
    fn peers_have_no_queue_and_an_unknown_level_is_named() {
        let made = |level| Allocator::new(level, 2, |it| it);
        assert!(
            PEERS
                .iter()
                .all(|peer| made(peer).unwrap().wait().is_none())
        );
        assert!(made("auto").unwrap().wait().is_some());
        let error = made("fifo").err().unwrap();
        assert!(error.to_string().contains("fifo"));
    }
}
