use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::waiters::{Entry, Wake};
use crate::{Tag, Tags};

/// What [`Tags::get_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Get<'a> {
    tags: &'a Tags,
    entry: Option<Arc<Entry>>,
}

impl<'a> Get<'a> {
    pub(crate) fn new(tags: &'a Tags) -> Self {
        Self { tags, entry: None }
    }
}

impl<'a> Future for Get<'a> {
    type Output = Tag<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Tag<'a>> {
        let tags = self.tags;
        let waiters = tags.waiters();
        let wake = Wake::Task(context.waker().clone());
        if self.entry.is_none() {
            if let Some(tag) = tags.try_get() {
                return Poll::Ready(tag);
            }
            self.entry = Some(waiters.enqueue(wake.clone()));
            tags.after_enqueue();
        }
        let Some(entry) = &self.entry else {
            return Poll::Pending;
        };
        let Some(tag) = waiters.poll(entry, wake) else {
            return Poll::Pending;
        };
        self.entry = None;
        Poll::Ready(Tag::new(tags, tag))
    }
}

impl Drop for Get<'_> {
    fn drop(&mut self) {
        let given = self
            .entry
            .take()
            .and_then(|entry| self.tags.waiters().leave(&entry));
        if let Some(tag) = given {
            self.tags.put(tag);
        }
    }
}
