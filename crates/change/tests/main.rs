//! The integration tests of this crate, in one program: each file here is a module.

mod apply;
mod cpuset_memory;
mod exports;
mod full_disk;
mod history;
mod hostile;
mod identity;
mod journals;
mod kernel_files;
mod kill;
mod lease;
mod lease_journal;
mod locking;
mod owner;
mod rollback;
mod stops;
mod support;
mod trusted;
