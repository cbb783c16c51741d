//! Futures under an executor made by hand: cancelled in any state, they lose neither a tag nor a wake-up.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use nearfar_tags::{OwnedTag, Policy, Tags};

/// Wakes the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_future_is_ready_once_a_tag_is_put() {
    let tags = Arc::new(Tags::new(1).unwrap());
    let held = block_on(tags.get_async());
    let waiter = thread::spawn({
        let tags = tags.clone();
        move || block_on(tags.get_owned_async()).number()
    });
    while tags.statistics().waits == 0 {
        thread::yield_now();
    }
    drop(held);
    assert_eq!(waiter.join().unwrap(), 0);
    assert_eq!(tags.free(), 1);
}

/// Each put is for the first future in the queue, polled or not; no other caller sees the tag.
#[test]
fn futures_have_tags_in_the_order_of_their_first_poll() {
    let tags = Tags::new(1).unwrap();
    let mut held = tags.get();
    let mut futures: VecDeque<_> = (0..4).map(|_| tags.get_async()).collect();
    for future in &mut futures {
        assert!(poll_once(future).is_pending());
    }
    while let Some(mut first) = futures.pop_front() {
        drop(held);
        assert!(tags.try_get().is_none());
        assert!(
            futures
                .iter_mut()
                .all(|future| poll_once(future).is_pending())
        );
        let Poll::Ready(tag) = poll_once(&mut first) else {
            panic!("the tag was put");
        };
        held = tag;
    }
}

#[test]
fn a_future_that_is_dropped_gives_its_tag_to_the_next() {
    let tags = Tags::new(1).unwrap();
    let held = tags.get();
    let (mut first, mut second) = (tags.get_async(), tags.get_async());
    assert!(poll_once(&mut first).is_pending());
    assert!(poll_once(&mut second).is_pending());
    drop(held);
    drop(first);
    assert!(poll_once(&mut second).is_ready());
    assert_eq!(tags.free(), 1);
}

/// An executor: tasks that were woken, and the threads that poll them.
struct Executor {
    ready: Mutex<VecDeque<Arc<Task>>>,
    unfinished: AtomicUsize,
}

struct Task {
    executor: Arc<Executor>,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let executor = self.executor.clone();
        executor.ready.lock().unwrap().push_back(self);
    }
}

impl Executor {
    fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        self.unfinished.fetch_add(1, Ordering::SeqCst);
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
        let task = Task {
            executor: self.clone(),
            future: Mutex::new(Some(future)),
        };
        Arc::new(task).wake();
    }

    fn run(&self) {
        while self.unfinished.load(Ordering::SeqCst) != 0 {
            let Some(task) = self.ready.lock().unwrap().pop_front() else {
                thread::yield_now();
                continue;
            };
            let waker = Waker::from(task.clone());
            let mut slot = task.future.lock().unwrap();
            let Some(future) = slot.as_mut() else {
                continue;
            };
            if future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
            {
                *slot = None;
                self.unfinished.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// Gets a tag, unless it has been pending for some polls: dropped then, woken or not.
struct Impatient<F> {
    inner: Option<F>,
    polls: u32,
}

impl<F: Future<Output = OwnedTag> + Unpin> Future for Impatient<F> {
    type Output = Option<OwnedTag>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(tag) = Pin::new(inner).poll(context) {
            return Poll::Ready(Some(tag));
        }
        if self.polls == 0 {
            self.inner = None;
            return Poll::Ready(None);
        }
        self.polls -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Pending once.
#[derive(Default)]
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

const TAGS: u32 = 3;
const TASKS: u64 = 12;
const ROUNDS: u32 = 4000;

/// Tasks that wait, give up, hold a tag over polls, on two threads, with two more threads that wait with a deadline.
#[test]
fn futures_dropped_at_random_lose_nothing() {
    for policy in [Policy::Auto, Policy::Limit, Policy::Bitmap] {
        let tags = Arc::new(Tags::builder(TAGS).policy(policy).build().unwrap());
        let owned: Arc<[AtomicBool]> = (0..TAGS).map(|_| AtomicBool::new(false)).collect();
        let executor = Arc::new(Executor {
            ready: Mutex::default(),
            unfinished: AtomicUsize::new(0),
        });
        for seed in 0..TASKS {
            executor.spawn(one_task(seed, tags.clone(), owned.clone()));
        }
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| executor.run());
                scope.spawn(|| {
                    while executor.unfinished.load(Ordering::SeqCst) != 0 {
                        let tag = tags.get_owned_timeout(Duration::from_micros(50));
                        tag.into_iter().for_each(|tag| own(&owned, &tag, || {}));
                    }
                });
            }
        });
        assert_eq!(tags.free(), TAGS, "{policy:?}");
    }
}

async fn one_task(seed: u64, tags: Arc<Tags>, owned: Arc<[AtomicBool]>) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..ROUNDS {
        let get = Impatient {
            inner: Some(tags.get_owned_async()),
            polls: random.u32(0..6),
        };
        let tag = match random.bool() {
            true => get.await,
            false => Some(tags.get_owned_async().await),
        };
        let Some(tag) = tag else { continue };
        assert!(
            !owned[tag.number() as usize].swap(true, Ordering::Relaxed),
            "two owners"
        );
        if random.bool() {
            Yield::default().await;
        }
        owned[tag.number() as usize].store(false, Ordering::Relaxed);
    }
}

fn own(owned: &[AtomicBool], tag: &OwnedTag, run: impl FnOnce()) {
    assert!(
        !owned[tag.number() as usize].swap(true, Ordering::Relaxed),
        "two owners"
    );
    run();
    owned[tag.number() as usize].store(false, Ordering::Relaxed);
}
