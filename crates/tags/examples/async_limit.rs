//! At most four requests at a time, under an executor of ten lines: any executor will do.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use nearfar_tags::{BuildError, Tags};

const LIMIT: u32 = 4;
const REQUESTS: u32 = 32;

fn main() -> Result<(), BuildError> {
    let tags = Arc::new(Tags::new(LIMIT)?);
    let running = AtomicU32::new(0);
    let most = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..REQUESTS {
            scope.spawn(|| run(request(tags.clone(), &running, &most)));
        }
    });
    println!(
        "{REQUESTS} requests, at most {} at a time",
        most.into_inner()
    );
    println!("{} waited", tags.statistics().waits);
    Ok(())
}

async fn request(tags: Arc<Tags>, running: &AtomicU32, most: &AtomicU32) {
    let _tag = tags.get_owned_async().await;
    most.fetch_max(
        running.fetch_add(1, Ordering::Relaxed) + 1,
        Ordering::Relaxed,
    );
    thread::sleep(Duration::from_millis(2));
    running.fetch_sub(1, Ordering::Relaxed);
}

/// Polls a future until it is ready.
fn run<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
