use crate::Tags;

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
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|&tag| self.tags.put(tag));
    }
}
