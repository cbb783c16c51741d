//! Reserved tags in every form, and futures of batches.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use nearfar_tags::{Policy, ResizeError, Tags};

const POLICIES: [Policy; 4] = [Policy::Stock, Policy::Limit, Policy::Bitmap, Policy::Auto];
const MOMENT: Duration = Duration::from_millis(1);

/// `tags` tags, of which 2 are reserved.
fn tags(policy: Policy, tags: u32) -> Tags {
    let builder = Tags::builder(tags).policy(policy).reserved(2);
    builder.build().unwrap()
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn reserved_tags_are_handed_out_by_their_view_only() {
    for policy in POLICIES {
        let tags = tags(policy, 6);
        let ordinary = tags.try_get_batch(6);
        assert!(ordinary.numbers().iter().all(|tag| *tag >= 2), "{policy:?}");
        assert_eq!(ordinary.numbers().len(), 4);
        let reserved = tags.reserved().unwrap();
        assert_eq!(reserved.size(), 2);
        let (one, other) = (reserved.get(), reserved.try_take().unwrap());
        assert_eq!(one.number() + other, 1);
        assert!(reserved.try_get().is_none());
        assert!(reserved.get_timeout(MOMENT).is_none());
        assert!(reserved.get_batch_timeout(1, MOMENT).is_none());
        assert!(reserved.get_batch(3).is_none(), "there are two");
        tags.put(other);
        assert_eq!(reserved.take_timeout(MOMENT), Some(other));
        tags.put(other);
        drop(one);
        assert_eq!(reserved.try_get_batch(9).numbers().len(), 2);
        assert_eq!(reserved.get_batch(2).unwrap().numbers().len(), 2);
    }
    assert!(Tags::new(4).unwrap().reserved().is_none());
}

#[test]
fn a_reserved_tag_ends_waits() {
    for policy in POLICIES {
        let tags = tags(policy, 3);
        let reserved = tags.reserved().unwrap();
        let both = reserved.try_get_batch(2);
        let mut future = pin!(reserved.get_async());
        assert!(poll(future.as_mut()).is_pending());
        thread::scope(|scope| {
            let waiter = scope.spawn(|| reserved.get().into_number());
            let (first, second) = (both.numbers()[0], both.numbers()[1]);
            tags.put(first);
            let Poll::Ready(tag) = poll(future.as_mut()) else {
                panic!("it was first")
            };
            assert_eq!(tag.into_number(), first);
            tags.put(second);
            assert_eq!(waiter.join().unwrap(), second);
        });
        let numbers = both.into_numbers();
        let mut batch = pin!(reserved.get_batch_async(2));
        assert!(poll(batch.as_mut()).is_pending());
        tags.put_batch(&numbers);
        assert!(poll(batch.as_mut()).is_ready());
    }
}

#[test]
fn a_batch_is_ready_when_it_is_whole() {
    for policy in POLICIES {
        let tags = tags(policy, 8);
        assert!(matches!(
            poll(pin!(tags.get_batch_async(7))),
            Poll::Ready(None)
        ));
        let Poll::Ready(Some(all)) = poll(pin!(tags.get_batch_async(6))) else {
            panic!("all are free")
        };
        let all = all.into_numbers();
        let mut batch = pin!(tags.get_batch_async(4));
        assert!(poll(batch.as_mut()).is_pending());
        tags.put_batch(&all[..3]);
        assert!(poll(batch.as_mut()).is_pending());
        assert_eq!(tags.free(), 0, "they are given to it");
        tags.put(all[3]);
        let Poll::Ready(Some(four)) = poll(batch.as_mut()) else {
            panic!("{policy:?}: it has four")
        };
        assert_eq!(four.numbers().len(), 4);
        drop(four);
        tags.put_batch(&all[4..]);
        assert_eq!(tags.free(), 6);
    }
}

#[test]
fn a_batch_that_is_dropped_or_too_large_keeps_no_tag() {
    for policy in POLICIES {
        let tags = tags(policy, 8);
        let all = tags.get_batch(6).unwrap().into_numbers();
        let mut dropped = Box::pin(tags.get_batch_async(6));
        assert!(poll(dropped.as_mut()).is_pending());
        let mut next = pin!(tags.get_async());
        assert!(poll(next.as_mut()).is_pending());
        let mut large = pin!(tags.get_batch_async(5));
        assert!(poll(large.as_mut()).is_pending());
        tags.put_batch(&all[..2]);
        drop(dropped);
        let Poll::Ready(tag) = poll(next.as_mut()) else {
            panic!("{policy:?}: it has what the first was given")
        };
        drop(tag);
        tags.resize(4).unwrap();
        assert!(
            matches!(poll(large.as_mut()), Poll::Ready(None)),
            "{policy:?}"
        );
        tags.put_batch(&all[2..]);
        assert_eq!(tags.resize(8), Ok(0));
        assert_eq!(tags.free(), 6, "{policy:?}");
    }
}

#[test]
fn guards_change_their_form() {
    let tags = Arc::new(tags(Policy::Auto, 4));
    let owned = tags.reserved().unwrap().get().into_owned(&tags);
    let number = owned.into_number();
    assert_eq!(Arc::strong_count(&tags), 1);
    assert_eq!(tags.reserved().unwrap().try_get_batch(2).numbers().len(), 1);
    tags.put(number);
    assert_eq!(tags.reserved().unwrap().try_get_batch(2).numbers().len(), 2);
    let error: ResizeError = tags.resize(9).unwrap_err();
    assert_eq!((error.tags(), error.possible()), (9, 3..=4));
}
