use crate::{Tag, Tags};

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
