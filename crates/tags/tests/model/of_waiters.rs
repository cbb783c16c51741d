//! All schedules of the waiters' protocol, up to a number of preemptions, by loom: the file that runs, over a word of bits.
//!
//! A lost wake-up is a deadlock, which loom reports. Bounds: 2 or 3 threads, 1 or 2 tags, and the number of preemptions (a switch away from a thread that
//! could go on) that each model names, with one fewer in the small forms of long models. Deadlines are not modelled: a wait that ends early is `leave`.

use std::task::{Wake, Waker};

use loom::sync::Arc;
use loom::thread;

use crate::pools::{Cached, Resized, Spilling, Word};
use crate::sync::{AtomicU32, Event, Ordering};
use crate::waiters::{Granted, Shared, Supply};

/// What the threads of a model share.
struct Model<S = Word>(Supply<S>);

impl<S: Shared> Model<S> {
    fn put(&self, tag: u32) {
        self.0.put(tag);
    }

    fn take(&self) -> u32 {
        self.wait(1)[0]
    }

    fn wait(&self, wanted: usize) -> Vec<u32> {
        let place = self.0.join(wanted, None);
        let granted = self.0.sleep(&place, None);
        granted.expect("no deadline").into_tags()
    }

    /// Joins and gives up.
    fn wait_in_vain(&self) {
        let place = self.0.join(1, None);
        if let Some(granted) = self.0.leave(&place) {
            granted
                .into_tags()
                .into_iter()
                .for_each(|tag| self.put(tag));
        }
    }

    /// Takes a tag before waiters do, if it can, and puts it.
    fn pass(&self) {
        if let Some(tag) = self.0.take() {
            self.put(tag);
        }
    }
}

/// Runs a model of which `tags` tags are held at first, all of which are free in the end, with nobody waiting.
fn model(preemptions: usize, tags: u32, max_passes: u32, run: fn(Arc<Model>)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        let word = Word(AtomicU32::new(0));
        let model = Arc::new(Model(Supply::new(word, max_passes)));
        run(model.clone());
        let free = model.0.pool.0.load(Ordering::Acquire);
        assert_eq!(free, (1 << tags) - 1, "bits of the free tags");
        assert!(!model.0.has_waiters());
    });
}

/// As `model`, with a cache.
fn model_of_caches(preemptions: usize, tags: u32, run: fn(Arc<Model<Cached>>)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        let cached = Cached {
            word: Word(AtomicU32::new(0)),
            gate: AtomicU32::new(0),
        };
        let model = Arc::new(Model(Supply::new(cached, 1)));
        run(model.clone());
        assert_eq!(
            model.0.pool.gate.load(Ordering::Acquire) / Cached::USER,
            0,
            "users"
        );
        model.0.pool.move_cached();
        let free = model.0.pool.word.0.load(Ordering::Acquire);
        assert_eq!(free, (1 << tags) - 1, "bits of the free tags");
    });
}

fn put_cached(model: &Model<Cached>, tag: u32) {
    if !model.0.pool.put_cached(tag) {
        model.put(tag);
    }
}

#[test]
fn a_cached_tag_ends_a_wait() {
    model_of_caches(5, 1, |model| {
        let waiter = spawn(&model, |model| put_cached(model, model.take()));
        put_cached(&model, 0);
        waiter.join().unwrap();
    });
}

/// A get may have the cached tag in hand while the others look for it.
#[test]
fn cached_tags_end_two_waits() {
    model_of_caches(2, 1, |model| {
        let waiters = [(); 2].map(|()| spawn(&model, |model| put_cached(model, model.take())));
        put_cached(&model, 0);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// The first waiter is woken and does not run: the other one relies on no more than the put.
#[test]
fn a_put_that_moves_other_tags_serves_waiters() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 20_000;
    builder.check(|| {
        let spilling = Spilling {
            word: Word(AtomicU32::new(0)),
            cached: AtomicU32::new(0b10),
        };
        let model = Arc::new(Model(Supply::new(spilling, 3)));
        let stopped = model.0.join(1, None);
        let waiter = spawn(&model, |model| model.put(model.take()));
        model.put(0);
        waiter.join().unwrap();
        if let Some(granted) = model.0.leave(&stopped) {
            let tags = granted.into_tags();
            tags.into_iter().for_each(|tag| model.put(tag));
        }
    });
}

/// It moves both tags and keeps one.
#[test]
fn a_get_that_revokes_serves_waiters() {
    model_of_caches(3, 2, |model| {
        put_cached(&model, 0);
        put_cached(&model, 1);
        let other = model.clone();
        let waiter = thread::spawn(move || other.take());
        let got = model.0.take();
        let waited = waiter.join().unwrap();
        for tag in got.into_iter().chain([waited]) {
            put_cached(&model, tag);
        }
    });
}

fn spawn<S: 'static>(
    model: &Arc<Model<S>>,
    run: impl FnOnce(&Model<S>) + 'static,
) -> thread::JoinHandle<()> {
    let model = model.clone();
    thread::spawn(move || run(&model))
}

#[test]
fn a_put_meets_a_waiter() {
    model(4, 1, 1, |model| {
        let waiter = spawn(&model, |model| model.put(model.take()));
        model.put(0);
        waiter.join().unwrap();
    });
}

/// The second put wakes nobody: it relies on the waiter that the first woke.
fn a_running_thread_passes_a_woken_waiter(preemptions: usize) {
    model(preemptions, 1, 1, |model| {
        let waiter = spawn(&model, |model| model.put(model.take()));
        model.put(0);
        model.pass();
        waiter.join().unwrap();
    });
}

/// The waiter may take one tag when it is woken and be handed the other.
fn a_waiter_that_was_passed_too_often_keeps_one_tag(preemptions: usize) {
    model(preemptions, 2, 0, |model| {
        let waiter = spawn(&model, |model| model.put(model.take()));
        model.put(0);
        model.pass();
        model.put(1);
        waiter.join().unwrap();
    });
}

fn a_third_thread_passes_a_woken_waiter(preemptions: usize) {
    model(preemptions, 1, 0, |model| {
        let waiter = spawn(&model, |model| model.put(model.take()));
        let passer = spawn(&model, Model::pass);
        model.put(0);
        waiter.join().unwrap();
        passer.join().unwrap();
    });
}

fn two_waiters_share_a_tag(preemptions: usize) {
    model(preemptions, 1, 1, |model| {
        let waiters = [(); 2].map(|()| spawn(&model, |model| model.put(model.take())));
        model.put(0);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// The second tag is put while the wake-up for the first may be on its way.
#[test]
fn two_waiters_keep_two_tags() {
    model(2, 2, 1, |model| {
        let waiters = [(); 2].map(|()| {
            let model = model.clone();
            thread::spawn(move || model.take())
        });
        model.put(0);
        model.put(1);
        let tags = waiters.map(|waiter| waiter.join().unwrap());
        assert_ne!(tags[0], tags[1]);
        tags.into_iter().for_each(|tag| model.put(tag));
    });
}

#[test]
fn a_waiter_that_gives_up_passes_its_wake_up_on() {
    model(2, 1, 1, |model| {
        let gives_up = spawn(&model, Model::wait_in_vain);
        let waiter = spawn(&model, |model| model.put(model.take()));
        model.put(0);
        model.pass();
        gives_up.join().unwrap();
        waiter.join().unwrap();
    });
}

/// Two callers want both tags: each gets both in its turn.
#[test]
fn two_batches_do_not_wait_for_each_other() {
    model(3, 2, 1, |model| {
        let batch = spawn(&model, |model| {
            let tags = model.wait(2);
            model.0.put_batch(&tags);
        });
        model.0.put_batch(&[0, 1]);
        let tags = model.wait(2);
        tags.into_iter().for_each(|tag| model.put(tag));
        batch.join().unwrap();
    });
}

/// Tags become free without a put, as when the number of tags is raised.
fn new_tags_end_waits(preemptions: usize) {
    model(preemptions, 2, 1, |model| {
        let waiters = [(); 2].map(|()| {
            let model = model.clone();
            thread::spawn(move || model.take())
        });
        model.0.pool.0.fetch_or(0b11, Ordering::Release);
        model.0.serve();
        let tags = waiters.map(|waiter| waiter.join().unwrap());
        tags.into_iter().for_each(|tag| model.put(tag));
    });
}

/// A batch waits when the number of tags becomes less: it is given none that is retired, also by a put that began before.
#[test]
fn a_batch_is_given_no_retired_tag() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(|| {
        let model = Arc::new(Model(Supply::new(Resized::new(3), 1)));
        let place = model.0.join(2, None);
        let put = spawn(&model, |model| model.put(2));
        model.0.pool.set(2);
        let retired = model.0.take_retired();
        for tag in retired {
            model.0.pool.put(tag);
        }
        model.put(0);
        model.put(1);
        let granted = model.0.sleep(&place, None);
        let mut tags = granted.expect("no deadline").into_tags();
        tags.sort_unstable();
        assert_eq!(tags, [0, 1]);
        put.join().unwrap();
        assert_eq!(model.0.pool.free(), 0b100);
    });
}

/// Wakes a thread that polls.
#[derive(Default)]
struct Task(Event);

impl Wake for Task {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.set();
    }
}

/// Waits as a task does.
fn take_polled(model: &Model) -> u32 {
    let task = std::sync::Arc::new(Task::default());
    let waker = Waker::from(task.clone());
    let place = model.0.join(1, Some(waker.clone()));
    loop {
        match model.0.poll(&place, &waker) {
            Some(Granted::Tag(tag)) => return tag,
            Some(Granted::Batch(_)) => panic!("one tag was wanted"),
            None => task.0.wait(None),
        };
    }
}

#[test]
fn a_task_is_polled_until_a_tag_is_handed_to_it() {
    model(4, 1, 1, |model| {
        let task = spawn(&model, |model| model.put(take_polled(model)));
        model.put(0);
        model.pass();
        task.join().unwrap();
    });
}

/// The thread may be woken for one tag and be handed the other, since a task waits behind it: the first is for the task then.
#[test]
fn a_woken_waiter_that_is_handed_another_tag_leaves_the_first() {
    model(2, 2, 1, |model| {
        let (one, other) = (model.clone(), model.clone());
        let waiter = thread::spawn(move || one.take());
        let task = thread::spawn(move || take_polled(&other));
        model.put(0);
        model.pass();
        model.put(1);
        let tags = [waiter.join().unwrap(), task.join().unwrap()];
        tags.into_iter().for_each(|tag| model.put(tag));
    });
}

/// A task that is dropped, in whatever state, while a thread waits behind it.
fn a_dropped_task_gives_its_tag_to_the_next(preemptions: usize) {
    model(preemptions, 1, 1, |model| {
        let waiter = spawn(&model, |model| model.put(model.take()));
        let task = spawn(&model, |model| {
            let place = model.0.join(1, Some(Waker::noop().clone()));
            if let Some(granted) = model.0.leave(&place) {
                granted
                    .into_tags()
                    .into_iter()
                    .for_each(|tag| model.put(tag));
            }
        });
        model.put(0);
        waiter.join().unwrap();
        task.join().unwrap();
    });
}

/// Tests of one depth: models by name with their number of preemptions.
macro_rules! with_preemptions {
    ($depth:ident: $($name:ident($preemptions:literal),)*) => {
        mod $depth {
            $(
                #[test]
                fn $name() {
                    super::$name($preemptions);
                }
            )*
        }
    };
}

with_preemptions! {
    small:
    two_waiters_share_a_tag(2),
    a_dropped_task_gives_its_tag_to_the_next(2),
    a_waiter_that_was_passed_too_often_keeps_one_tag(3),
    new_tags_end_waits(2),
    a_running_thread_passes_a_woken_waiter(4),
    a_third_thread_passes_a_woken_waiter(2),
}

// Seconds each, in the slow tier.
with_preemptions! {
    full_depth:
    two_waiters_share_a_tag(3),
    a_dropped_task_gives_its_tag_to_the_next(3),
    a_waiter_that_was_passed_too_often_keeps_one_tag(4),
    new_tags_end_waits(3),
    a_running_thread_passes_a_woken_waiter(5),
    a_third_thread_passes_a_woken_waiter(3),
}
