//! In place of the sequences where there are none: another architecture or C library, or an interpreter that runs no assembly.

use std::ptr::null;

pub(crate) fn symbols() -> (*const isize, *const u32) {
    (null(), null())
}

/// # Safety
/// None is needed.
pub(crate) unsafe fn cpu(_offset: isize) -> u32 {
    super::NONE
}

/// # Safety
/// None is needed.
pub(crate) unsafe fn pop(_: isize, _: *const u64) -> u32 {
    super::NONE
}

/// # Safety
/// None is needed.
pub(crate) unsafe fn push(_: isize, _: *const u64, _tag: u32) -> bool {
    false
}

/// # Safety
/// None is needed.
pub(crate) unsafe fn sight(_: isize, _: *const u64) -> Option<(u32, u64)> {
    None
}

/// # Safety
/// None is needed.
pub(crate) unsafe fn pop_some(_: isize, _: *const u64, _: *mut u32, _: u32) -> u32 {
    0
}

/// # Safety
/// None is needed.
pub(crate) unsafe fn push_some(_: isize, _: *const u64, _: *const u32, _: u32) -> u32 {
    0
}
