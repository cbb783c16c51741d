use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::queue::{Granted, Place};
use crate::{OwnedTag, Tag, Tags};

/// What [`Tags::get_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Get<'a> {
    tags: &'a Tags,
    place: Option<Place>,
}

/// What [`Tags::get_owned_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct GetOwned {
    tags: Arc<Tags>,
    place: Option<Place>,
}

impl<'a> Get<'a> {
    pub(crate) fn new(tags: &'a Tags) -> Self {
        Self { tags, place: None }
    }
}

impl GetOwned {
    pub(crate) fn new(tags: Arc<Tags>) -> Self {
        Self { tags, place: None }
    }
}

impl<'a> Future for Get<'a> {
    type Output = Tag<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Tag<'a>> {
        let tags = self.tags;
        poll(tags, &mut self.place, context).map(|tag| Tag::new(tags, tag))
    }
}

impl Future for GetOwned {
    type Output = OwnedTag;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<OwnedTag> {
        let this = &mut *self;
        let tag = poll(&this.tags, &mut this.place, context);
        tag.map(|tag| OwnedTag::new(this.tags.clone(), tag))
    }
}

fn poll(tags: &Tags, place: &mut Option<Place>, context: &Context<'_>) -> Poll<u32> {
    tags.process().assert();
    let (waiters, pool) = (&tags.supply().waiters, &tags.supply().pool);
    let joined = match place.as_ref() {
        Some(joined) => joined,
        None => {
            if let Some(tag) = tags.try_take() {
                return Poll::Ready(tag);
            }
            place.insert(waiters.join(1, Some(context.waker().clone()), pool))
        }
    };
    match waiters.poll(joined, context.waker(), pool) {
        None => Poll::Pending,
        Some(Granted::Tag(tag)) => {
            *place = None;
            Poll::Ready(tag)
        }
        Some(Granted::Batch(_)) => unreachable!("one tag is wanted"),
    }
}

fn leave(tags: &Tags, place: &mut Option<Place>) {
    if let Some(place) = place.take()
        && !tags.process().has_forked()
    {
        tags.supply().leave(&place);
    }
}

impl Drop for Get<'_> {
    fn drop(&mut self) {
        leave(self.tags, &mut self.place);
    }
}

impl Drop for GetOwned {
    fn drop(&mut self) {
        leave(&self.tags, &mut self.place);
    }
}
