//! What threads did with an allocator, and when.

/// What was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `try_take` or `take_timeout`, and the tag it returned.
    Take(Option<u32>),
    Put(u32),
    Resize(u32),
}

/// A call with the times at which it was invoked and at which it returned: values of one counter, so no two are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    pub call: Call,
    pub invoked: u64,
    pub returned: u64,
}

/// The operations of each thread in the order of its calls.
pub type History = Vec<Vec<Operation>>;
