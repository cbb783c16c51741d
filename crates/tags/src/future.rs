use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::queue::{Granted, Place, Shared};
use crate::supply::Supply;
use crate::{Batch, OwnedTag, Tag, Tags};

/// Which tags a caller wants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Ordinary,
    Reserved,
}

/// What [`Tags::get_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Get<'a> {
    tags: &'a Tags,
    kind: Kind,
    place: Option<Place>,
}

/// What [`Tags::get_owned_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct GetOwned {
    tags: Arc<Tags>,
    place: Option<Place>,
}

/// What [`Tags::get_batch_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct GetBatch<'a> {
    tags: &'a Tags,
    kind: Kind,
    wanted: usize,
    place: Option<Place>,
}

impl<'a> Get<'a> {
    pub(crate) fn new(tags: &'a Tags, kind: Kind) -> Self {
        let place = None;
        Self { tags, kind, place }
    }
}

impl GetOwned {
    pub(crate) fn new(tags: Arc<Tags>) -> Self {
        Self { tags, place: None }
    }
}

impl<'a> GetBatch<'a> {
    pub(crate) fn new(tags: &'a Tags, kind: Kind, wanted: usize) -> Self {
        Self {
            tags,
            kind,
            wanted,
            place: None,
        }
    }
}

impl<'a> Future for Get<'a> {
    type Output = Tag<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Tag<'a>> {
        let tags = self.tags;
        poll(tags, self.kind, &mut self.place, context).map(|tag| Tag::new(tags, tag))
    }
}

impl Future for GetOwned {
    type Output = OwnedTag;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<OwnedTag> {
        let this = &mut *self;
        let tag = poll(&this.tags, Kind::Ordinary, &mut this.place, context);
        tag.map(|tag| OwnedTag::new(this.tags.clone(), tag))
    }
}

impl<'a> Future for GetBatch<'a> {
    type Output = Option<Batch<'a>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Batch<'a>>> {
        let this = &mut *self;
        let tags = this.tags;
        tags.process().assert();
        let numbers = match this.kind {
            Kind::Ordinary => this.poll_of(tags.supply(), || tags.usable(), context),
            Kind::Reserved => {
                let supply = tags.reserved_supply();
                this.poll_of(supply, || supply.pool.tags() as usize, context)
            }
        };
        numbers.map(|numbers| Some(Batch::new(tags, numbers?)))
    }
}

impl GetBatch<'_> {
    fn poll_of<P: Shared>(
        &mut self,
        supply: &Supply<P>,
        usable: impl Fn() -> usize,
        context: &Context<'_>,
    ) -> Poll<Option<Vec<u32>>> {
        if self.place.is_none() {
            let waker = Some(context.waker().clone());
            match supply.take_all_or_join(self.wanted, usable, waker) {
                Ok(tags) => return Poll::Ready(tags),
                Err(place) => self.place = Some(place),
            }
        }
        let granted = (self.place.as_ref())
            .and_then(|place| supply.waiters.poll(place, context.waker(), &supply.pool));
        if granted.is_none() {
            return Poll::Pending;
        }
        self.place = None;
        Poll::Ready(supply.all_or_none(granted, self.wanted))
    }
}

fn poll(tags: &Tags, kind: Kind, place: &mut Option<Place>, context: &Context<'_>) -> Poll<u32> {
    tags.process().assert();
    match kind {
        Kind::Ordinary => poll_of(tags.supply(), || tags.try_take(), place, context),
        Kind::Reserved => {
            let supply = tags.reserved_supply();
            poll_of(supply, || supply.take(), place, context)
        }
    }
}

fn poll_of<P: Shared>(
    supply: &Supply<P>,
    try_take: impl Fn() -> Option<u32>,
    place: &mut Option<Place>,
    context: &Context<'_>,
) -> Poll<u32> {
    let (waiters, pool) = (&supply.waiters, &supply.pool);
    let joined = match place.as_ref() {
        Some(joined) => joined,
        None => {
            if let Some(tag) = try_take() {
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

fn leave(tags: &Tags, kind: Kind, place: &mut Option<Place>) {
    if let Some(place) = place.take()
        && !tags.process().has_forked()
    {
        match kind {
            Kind::Ordinary => tags.supply().leave(&place),
            Kind::Reserved => tags.reserved_supply().leave(&place),
        }
    }
}

impl Drop for Get<'_> {
    fn drop(&mut self) {
        leave(self.tags, self.kind, &mut self.place);
    }
}

impl Drop for GetOwned {
    fn drop(&mut self) {
        leave(&self.tags, Kind::Ordinary, &mut self.place);
    }
}

impl Drop for GetBatch<'_> {
    fn drop(&mut self) {
        leave(self.tags, self.kind, &mut self.place);
    }
}
