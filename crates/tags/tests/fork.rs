//! A forked child has its parent's memory, not its parent's tags.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use nearfar_tags::{Policy, Tags};

/// Runs `child` in a forked child; whether it returned true.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child is a copy of this thread. It allocates memory and unwinds, which glibc allows after a fork (its locks are
    // consistent there), runs nothing else of the parent, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork");
    if pid == 0 {
        // A message takes locks that another thread of the parent may have held.
        std::panic::set_hook(Box::new(|_| {}));
        let result = catch_unwind(AssertUnwindSafe(child));
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!matches!(result, Ok(true)))) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

fn panics<T>(run: impl FnOnce() -> T) -> bool {
    let result = catch_unwind(AssertUnwindSafe(run));
    result.is_err_and(|panic| {
        let text = panic.downcast_ref::<&str>();
        text.is_some_and(|text| text.contains("a forked child"))
    })
}

fn refuses_everything(tags: &Arc<Tags>) -> bool {
    let mut numbers = [0; 4];
    let mut future = std::pin::pin!(tags.get_async());
    panics(|| tags.try_get())
        && panics(|| tags.get())
        && panics(|| tags.get_timeout(Duration::from_millis(1)))
        && panics(|| tags.try_get_owned())
        && panics(|| tags.try_get_batch(2))
        && panics(|| tags.get_batch(2))
        && panics(|| tags.try_take_batch(&mut numbers))
        && panics(|| tags.reserved().unwrap().try_get())
        && panics(|| tags.resize(20))
        && panics(|| {
            let mut context = Context::from_waker(Waker::noop());
            future.as_mut().poll(&mut context).is_ready()
        })
        && tags.free() == 0
}

/// One test, so that no other thread of the program holds a lock, or makes its first allocator, at the moment of a fork.
#[test]
fn a_child_is_not_its_parent() {
    threads_make_the_first_allocators_at_once();
    a_child_gets_no_tag_of_its_parent();
    a_waiting_future_is_dropped_in_a_child();
    a_started_program_changes_nothing();
}

fn threads_make_the_first_allocators_at_once() {
    let start = Barrier::new(4);
    let made = thread::scope(|scope| {
        let make = || {
            start.wait();
            Arc::new(Tags::builder(8).reserved(1).build().unwrap())
        };
        let threads = [(); 4].map(|()| scope.spawn(make));
        threads.map(|thread| thread.join().unwrap())
    });
    for tags in made {
        assert_eq!(tags.get().number() / 8, 0);
        assert!(in_child(|| refuses_everything(&tags)));
    }
}

fn a_child_gets_no_tag_of_its_parent() {
    let policies = [Policy::Stock, Policy::Limit, Policy::Bitmap, Policy::Auto];
    for policy in policies {
        let builder = Tags::builder(64).reserved(2).policy(policy);
        let tags = Arc::new(builder.build().unwrap());
        // Some of the tags are cached by this CPU.
        let held: Vec<_> = (0..40).map(|_| tags.get()).collect();
        drop(held);
        let (mut guard, raw) = (Some(tags.get()), tags.take());
        let free = tags.free();
        let refused = in_child(|| {
            tags.put(raw);
            tags.put_batch(&[raw]);
            drop(guard.take());
            refuses_everything(&tags) && makes_its_own()
        });
        assert!(refused, "{policy:?}");
        assert_eq!(tags.free(), free, "{policy:?}");
        drop(guard);
        tags.put(raw);
        assert_eq!(tags.free(), 62, "{policy:?}");
    }
}

/// A child makes an allocator, which its own child refuses, and the parent's stays refused.
fn makes_its_own() -> bool {
    let own = Tags::new(2).unwrap();
    let (first, second) = (own.get(), own.get());
    let are_two = first.number() != second.number() && own.try_get().is_none();
    drop(first);
    are_two && own.try_get().is_some() && in_child(|| panics(|| own.try_get()))
}

/// A process that is started by another program's way is not affected.
fn a_started_program_changes_nothing() {
    let tags = Tags::new(8).unwrap();
    let tag = tags.get();
    assert!(
        std::process::Command::new("true")
            .status()
            .unwrap()
            .success()
    );
    drop(tag);
    assert_eq!(tags.try_get_batch(9).numbers().len(), 8);
}

/// The queue's lock was held by a thread that the child does not have, or not: a future is dropped without it.
fn a_waiting_future_is_dropped_in_a_child() {
    let tags = Tags::new(1).unwrap();
    let held = tags.get();
    let mut future = Box::pin(tags.get_async());
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    let mut future = Some(future);
    assert!(in_child(|| {
        drop(future.take());
        true
    }));
    drop(held);
    assert!(future.unwrap().as_mut().poll(&mut context).is_ready());
}
