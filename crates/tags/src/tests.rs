//! Tests of the parts that the public interface hides.

mod caches;
mod memory;
mod waiters_bound;
