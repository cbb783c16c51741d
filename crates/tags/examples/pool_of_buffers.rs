//! A fixed set of buffers that threads use in turn: the tag is the index of the buffer.
//!
//! The allocator gives a tag to one holder at a time, so a buffer's lock is never contended; it only tells the compiler so.

use std::sync::{Mutex, PoisonError};
use std::thread;

use nearfar_tags::{BuildError, Tags};

const BUFFERS: u32 = 4;
const WORKERS: u32 = 8;
const BLOCKS: usize = 1000;

fn main() -> Result<(), BuildError> {
    let tags = Tags::new(BUFFERS)?;
    let buffers: Vec<Mutex<[u8; 4096]>> = (0..BUFFERS).map(|_| Mutex::new([0; 4096])).collect();
    let contended = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (tags, buffers) = (&tags, &buffers);
                scope.spawn(move || (0..BLOCKS).filter(|_| fill(tags, buffers, worker)).count())
            })
            .collect();
        let joined = workers
            .into_iter()
            .map(|worker| worker.join().expect("no worker panics"));
        joined.sum::<usize>()
    });
    println!(
        "{} blocks through {BUFFERS} buffers",
        WORKERS as usize * BLOCKS
    );
    println!("a buffer was in use by another thread {contended} times");
    println!("{} of {} tags are free", tags.free(), tags.size());
    Ok(())
}

/// Fills a buffer; whether another thread was using it.
fn fill(tags: &Tags, buffers: &[Mutex<[u8; 4096]>], worker: u32) -> bool {
    let tag = tags.get();
    let buffer = &buffers[tag.number() as usize];
    let contended = buffer.try_lock().is_err();
    let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
    buffer.fill(worker as u8);
    contended
    // The buffer is unlocked, then its tag is free: locals are dropped in reverse order.
}
