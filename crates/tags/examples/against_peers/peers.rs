//! Allocators of tags with one interface.

use std::sync::{Condvar, Mutex, PoisonError};

use nearfar_tags::{BuildError, Builder, Policy, Tags};

/// An allocator that any thread can use without registering itself.
pub trait Peer: Sync {
    fn try_take(&self) -> Option<u32>;

    /// As `try_take`; waits for a tag. `None` if this allocator cannot wait.
    fn take(&self) -> Option<u32> {
        None
    }

    fn put(&self, tag: u32);
}

impl Peer for Tags {
    #[inline]
    fn try_take(&self) -> Option<u32> {
        self.try_take()
    }

    #[inline]
    fn take(&self) -> Option<u32> {
        Some(self.take())
    }

    #[inline]
    fn put(&self, tag: u32) {
        self.put(tag);
    }
}

/// This crate's allocator; each CPU of this machine counts as a core of one node.
pub fn tags(tags: u32, policy: Policy, change: fn(Builder) -> Builder) -> Result<Tags, BuildError> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let cpu = |core| Some(nearfar_tags::Cpu::new(core, 0));
    let cpus = (0..cpus).map(cpu).collect();
    let topology = nearfar_tags::Topology::new(cpus, vec![vec![10]]);
    change(Tags::builder(tags).policy(policy).topology(topology)).build()
}

/// crossbeam-queue's bounded queue.
pub struct ArrayQueue(crossbeam_queue::ArrayQueue<u32>);

impl ArrayQueue {
    pub fn new(tags: u32) -> Self {
        let queue = crossbeam_queue::ArrayQueue::new(tags as usize);
        (0..tags).for_each(|tag| queue.push(tag).expect("it has space for all tags"));
        Self(queue)
    }
}

impl Peer for ArrayQueue {
    #[inline]
    fn try_take(&self) -> Option<u32> {
        self.0.pop()
    }

    #[inline]
    fn put(&self, tag: u32) {
        self.0.push(tag).expect("it has space for all tags");
    }
}

/// crossbeam-channel's bounded channel.
pub struct Channel {
    sender: crossbeam_channel::Sender<u32>,
    receiver: crossbeam_channel::Receiver<u32>,
}

impl Channel {
    pub fn new(tags: u32) -> Self {
        let (sender, receiver) = crossbeam_channel::bounded(tags as usize);
        let this = Self { sender, receiver };
        (0..tags).for_each(|tag| this.put(tag));
        this
    }
}

impl Peer for Channel {
    #[inline]
    fn try_take(&self) -> Option<u32> {
        self.receiver.try_recv().ok()
    }

    fn take(&self) -> Option<u32> {
        self.receiver.recv().ok()
    }

    #[inline]
    fn put(&self, tag: u32) {
        self.sender.send(tag).expect("its receiver is alive");
    }
}

/// The standard library's lock around a stack.
pub struct Locked(Mutex<Vec<u32>>);

impl Locked {
    pub fn new(tags: u32) -> Self {
        Self(Mutex::new((0..tags).collect()))
    }
}

impl Peer for Locked {
    #[inline]
    fn try_take(&self) -> Option<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    #[inline]
    fn put(&self, tag: u32) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(tag);
    }
}

/// The same with a condition variable: what one writes who needs a get that waits.
pub struct Waiting {
    locked: Locked,
    free: Condvar,
}

impl Waiting {
    pub fn new(tags: u32) -> Self {
        Self {
            locked: Locked::new(tags),
            free: Condvar::new(),
        }
    }
}

impl Peer for Waiting {
    #[inline]
    fn try_take(&self) -> Option<u32> {
        self.locked.try_take()
    }

    fn take(&self) -> Option<u32> {
        let tags = self.locked.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.free.wait_while(tags, |tags| tags.is_empty());
        wait.unwrap_or_else(PoisonError::into_inner).pop()
    }

    #[inline]
    fn put(&self, tag: u32) {
        self.locked.put(tag);
        self.free.notify_one();
    }
}

/// parking_lot's lock around a stack.
pub struct ParkingLot(parking_lot::Mutex<Vec<u32>>);

impl ParkingLot {
    pub fn new(tags: u32) -> Self {
        Self(parking_lot::Mutex::new((0..tags).collect()))
    }
}

impl Peer for ParkingLot {
    #[inline]
    fn try_take(&self) -> Option<u32> {
        self.0.lock().pop()
    }

    #[inline]
    fn put(&self, tag: u32) {
        self.0.lock().push(tag);
    }
}
