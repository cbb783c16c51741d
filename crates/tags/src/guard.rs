//! What a caller holds: tags under guards, and futures that end with such a guard.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::Tags;
use crate::waiters::{Place, Shared, Supply};

/// A tag that is held; free again when this is dropped.
#[derive(Debug)]
#[must_use = "it is free again when this is dropped"]
pub struct Tag<'a> {
    tags: &'a Tags,
    number: u32,
}

impl<'a> Tag<'a> {
    pub(crate) fn new(tags: &'a Tags, number: u32) -> Self {
        Self { tags, number }
    }

    /// The tag, below the allocator's size when it was handed out.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The tag without its guard: [`Tags::put`] makes it free.
    pub fn into_number(self) -> u32 {
        ManuallyDrop::new(self).number
    }

    /// The tag with a guard that keeps its allocator alive.
    ///
    /// # Panics
    /// If `tags` is another allocator.
    pub fn into_owned(self, tags: &Arc<Tags>) -> OwnedTag {
        let is_own = std::ptr::eq(self.tags, Arc::as_ptr(tags));
        assert!(is_own, "tag {} is of another allocator", self.number);
        OwnedTag::new(tags.clone(), self.into_number())
    }
}

impl Drop for Tag<'_> {
    fn drop(&mut self) {
        self.tags.put(self.number);
    }
}

/// As [`Tag`]; keeps the allocator alive.
#[derive(Debug)]
#[must_use = "it is free again when this is dropped"]
pub struct OwnedTag {
    tags: Arc<Tags>,
    number: u32,
}

impl OwnedTag {
    pub(crate) fn new(tags: Arc<Tags>, number: u32) -> Self {
        Self { tags, number }
    }

    /// The tag, below the allocator's size when it was handed out.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The tag without its guard: [`Tags::put`] makes it free.
    pub fn into_number(self) -> u32 {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the field is dropped once: what `this` holds is never dropped.
        unsafe { std::ptr::drop_in_place(&mut this.tags) };
        this.number
    }

    /// The allocator.
    pub fn tags(&self) -> &Arc<Tags> {
        &self.tags
    }
}

impl Drop for OwnedTag {
    fn drop(&mut self) {
        self.tags.put(self.number);
    }
}

/// Several tags that are held; all are free again when this is dropped.
#[derive(Debug)]
#[must_use = "they are free again when this is dropped"]
pub struct Batch<'a> {
    tags: &'a Tags,
    numbers: Vec<u32>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(tags: &'a Tags, numbers: Vec<u32>) -> Self {
        Self { tags, numbers }
    }

    /// The tags.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The tags without a guard: [`Tags::put_batch`] makes them free.
    pub fn into_numbers(mut self) -> Vec<u32> {
        std::mem::take(&mut self.numbers)
    }

    /// Each tag under a guard of its own.
    pub fn into_tags(self) -> impl Iterator<Item = Tag<'a>> {
        let tags = self.tags;
        // Guards at once: an iterator that is dropped half way loses none.
        let guards: Vec<_> = self
            .into_numbers()
            .into_iter()
            .map(|tag| Tag::new(tags, tag))
            .collect();
        guards.into_iter()
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.tags.put_batch(&self.numbers);
    }
}

/// Which tags a caller wants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Ordinary,
    Reserved,
}

/// What [`Tags::get_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Get<'a>(pub(crate) Wait<&'a Tags>);

/// What [`Tags::get_owned_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct GetOwned(pub(crate) Wait<Arc<Tags>>);

/// What [`Tags::get_batch_async`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct GetBatch<'a> {
    pub(crate) wait: Wait<&'a Tags>,
    pub(crate) wanted: usize,
}

/// A caller of an allocator, and its place in the queue once it has one.
#[derive(Debug)]
pub(crate) struct Wait<T: Deref<Target = Tags>> {
    tags: T,
    kind: Kind,
    place: Option<Place>,
}

impl<'a> Future for Get<'a> {
    type Output = Tag<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Tag<'a>> {
        let tags = self.0.tags;
        self.0.poll(context).map(|tag| Tag::new(tags, tag))
    }
}

impl Future for GetOwned {
    type Output = OwnedTag;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<OwnedTag> {
        let tag = self.0.poll(context);
        tag.map(|tag| OwnedTag::new(self.0.tags.clone(), tag))
    }
}

impl<'a> Future for GetBatch<'a> {
    type Output = Option<Batch<'a>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Batch<'a>>> {
        let (tags, wanted) = (self.wait.tags, self.wanted);
        let numbers = self.wait.poll_batch(wanted, context);
        numbers.map(|numbers| Some(Batch::new(tags, numbers?)))
    }
}

impl<T: Deref<Target = Tags>> Wait<T> {
    pub(crate) fn new(tags: T, kind: Kind) -> Self {
        let place = None;
        Self { tags, kind, place }
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<u32> {
        let tags = &*self.tags;
        tags.process.assert();
        let place = &mut self.place;
        match self.kind {
            Kind::Ordinary => poll(&tags.supply, || tags.try_take(), place, context),
            Kind::Reserved => poll(&tags.reserved, || tags.reserved.take(), place, context),
        }
    }

    fn poll_batch(&mut self, wanted: usize, context: &Context<'_>) -> Poll<Option<Vec<u32>>> {
        let tags = &*self.tags;
        tags.process.assert();
        let usable = || tags.usable(self.kind);
        let place = &mut self.place;
        match self.kind {
            Kind::Ordinary => poll_batch(&tags.supply, wanted, usable, place, context),
            Kind::Reserved => poll_batch(&tags.reserved, wanted, usable, place, context),
        }
    }
}

impl<T: Deref<Target = Tags>> Drop for Wait<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take()
            && !self.tags.process.has_forked()
        {
            match self.kind {
                Kind::Ordinary => self.tags.supply.give_up(&place),
                Kind::Reserved => self.tags.reserved.give_up(&place),
            }
        }
    }
}

fn poll<P: Shared>(
    supply: &Supply<P>,
    try_take: impl Fn() -> Option<u32>,
    place: &mut Option<Place>,
    context: &Context<'_>,
) -> Poll<u32> {
    let joined = match place.as_ref() {
        Some(joined) => joined,
        None => {
            if let Some(tag) = try_take() {
                return Poll::Ready(tag);
            }
            place.insert(supply.join(1, Some(context.waker().clone())))
        }
    };
    let Some(granted) = supply.poll(joined, context.waker()) else {
        return Poll::Pending;
    };
    *place = None;
    Poll::Ready(granted.into_tag())
}

fn poll_batch<P: Shared>(
    supply: &Supply<P>,
    wanted: usize,
    usable: impl Fn() -> usize,
    place: &mut Option<Place>,
    context: &Context<'_>,
) -> Poll<Option<Vec<u32>>> {
    let joined = match place.as_ref() {
        Some(joined) => joined,
        None => {
            let waker = Some(context.waker().clone());
            match supply.take_all_or_join(wanted, usable, waker) {
                Ok(tags) => return Poll::Ready(tags),
                Err(joined) => place.insert(joined),
            }
        }
    };
    let granted = supply.poll(joined, context.waker());
    if granted.is_none() {
        return Poll::Pending;
    }
    *place = None;
    Poll::Ready(supply.all_or_none(granted, wanted))
}
