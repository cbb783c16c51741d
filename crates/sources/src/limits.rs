//! What no machine has more of, as a length of lists.

/// The most nodes a kernel can have.
pub(crate) const MOST_NODES: usize = nearfar_machine::MOST_NODES as usize;
