//! The files by which DAMON, the kernel's access monitor, is set (Documentation/admin-guide/mm/damon/usage.rst).

use std::io;
use std::time::Duration;

/// The directory of its threads.
pub const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// Writes one of its files once no other access to any of them is in the way: the kernel refuses it meanwhile (mutex_trylock in
/// mm/damon/sysfs.c).
///
/// # Errors
/// Those of `write`; `EBUSY` when that lasts for a second.
pub fn once_free<T>(write: impl Fn() -> io::Result<T>) -> io::Result<T> {
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(50);
    for _ in 1..TRIES {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(PAUSE),
            written => return written,
        }
    }
    write()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_a_busy_file_is_written_again() {
        for (kind, expected) in [
            (io::ErrorKind::ResourceBusy, 3),
            (io::ErrorKind::PermissionDenied, 1),
        ] {
            let tries = Cell::new(0);
            let written = once_free(|| {
                tries.set(tries.get() + 1);
                if tries.get() < 3 {
                    Err(kind.into())
                } else {
                    Ok(())
                }
            });
            assert_eq!((tries.get(), written.is_ok()), (expected, expected == 3));
        }
    }
}
