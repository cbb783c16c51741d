//! Users by name.

use std::ffi::CString;

/// Names and numbers of one user fit; getpwnam_r(3) suggests 1024.
const BUFFER_BYTES: usize = 16 << 10;

/// The number of a user, from the same places as id(1) has it; `None` when there is no such user.
pub fn id_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: an entry of zeros is valid: it has no pointers that are followed.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with NUL; entry, buffer and result live until after the call, and the length is the buffer's.
    let error = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            &raw mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        )
    };
    (error == 0 && !found.is_null()).then_some(entry.pw_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_0_and_no_user_has_a_colon() {
        assert_eq!(id_of("root"), Some(0));
        assert_eq!(id_of("a:b"), None);
        assert_eq!(id_of("a\0b"), None);
    }
}
