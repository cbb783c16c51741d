//! Doing the same to many things on a few threads: reading ten thousand small files is all system calls.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Beyond this many threads the kernel's locks on the directories are what is waited for.
const MOST_THREADS: usize = 8;
/// Fewer things than this are not worth a thread.
const FEWEST: usize = 32;

/// Applies `f`, a few system calls, to each item and returns the results in the items' order.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    on_threads(items, items.len() / FEWEST, f)
}

/// The same for items each of which is worth a thread.
pub(crate) fn map_few<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    on_threads(items, items.len(), f)
}

fn on_threads<T: Sync, R: Send>(items: &[T], most: usize, f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cpus.min(MOST_THREADS).min(most);
    if threads < 2 {
        return items.iter().map(f).collect();
    }
    // Pieces, not halves: one thread may meet the slow files.
    let pieces: Vec<&[T]> = items.chunks(items.len().div_ceil(threads * 8)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, piece)) = next_piece(&next, &pieces) {
            done.push((index, piece.iter().map(&f).collect::<Vec<R>>()));
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
        }
        done
    });
    done.sort_unstable_by_key(|&(index, _)| index);
    done.into_iter().flat_map(|(_, results)| results).collect()
}

fn next_piece<'a, T>(next: &AtomicUsize, pieces: &[&'a [T]]) -> Option<(usize, &'a [T])> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    pieces.get(index).map(|&piece| (index, piece))
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_stand_in_the_order_of_the_items() {
        for count in [0, 1, 31, 64, 65, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let doubled = items.iter().map(|item| item * 2).collect::<Vec<_>>();
            assert_eq!(super::map(&items, |item| item * 2), doubled);
            assert_eq!(super::map_few(&items, |item| item * 2), doubled);
        }
    }
}
