/// On cache lines of its own, so that a write to it does not take a neighbour's line from another CPU.
#[repr(align(64))]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Apart<T>(pub T);
