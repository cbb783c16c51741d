//! Events of several CPUs in one order.
//!
//! Rings are read one after the other, so a round of reading yields events CPU by CPU. An event older than the newest one
//! of the round before can no longer be followed by an older one: each ring has been read since. The others wait for one
//! more round (`perf report` orders its rounds the same way).
//!
//! ```text
//! round 1   CPU 0: 1 4 7     CPU 1: 2 3        newest 7       out: nothing
//! round 2   CPU 0: 9         CPU 1: 5 6 8      newest 9       out: 1 2 3 4 5 6 7
//! end                                                         out: 8 9
//! ```

/// Events waiting for their turn, by time.
#[derive(Debug)]
pub struct Ordered<T> {
    waiting: Vec<(u64, T)>,
    newest_before: u64,
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            newest_before: 0,
        }
    }
}

impl<T> Ordered<T> {
    pub fn push(&mut self, time_ns: u64, event: T) {
        self.waiting.push((time_ns, event));
    }

    /// Every ring has been read once more: visits what can no longer be preceded, in order of time; events of one time in
    /// the order in which they came.
    pub fn end_round(&mut self, visit: &mut dyn FnMut(u64, T)) {
        self.waiting.sort_by_key(|(time, _)| *time);
        let Some((newest, _)) = self.waiting.last() else {
            return;
        };
        let newest = *newest;
        self.until(self.newest_before, visit);
        self.newest_before = self.newest_before.max(newest);
    }

    /// Visits what happened up to that time, in order; the caller knows that every event so old has been taken in
    /// ([`Session::settle`](crate::Session::settle)).
    pub fn until(&mut self, time_ns: u64, visit: &mut dyn FnMut(u64, T)) {
        self.waiting.sort_by_key(|(time, _)| *time);
        let settled = self.waiting.partition_point(|(time, _)| *time <= time_ns);
        self.waiting
            .drain(..settled)
            .for_each(|(time, event)| visit(time, event));
    }

    /// Visits all that is left: nothing more will come.
    pub fn finish(mut self, visit: &mut dyn FnMut(u64, T)) {
        self.waiting.sort_by_key(|(time, _)| *time);
        self.waiting
            .into_iter()
            .for_each(|(time, event)| visit(time, event));
    }
}
