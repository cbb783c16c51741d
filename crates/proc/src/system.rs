//! Which kernel runs and since which boot, its random numbers, its users, its mode of NUMA balancing, and its errors in words.

use std::ffi::CString;
use std::fmt::Display;
use std::io;

use nearfar_machine::NumaBalancing;

use crate::text;

/// `/proc/sys/kernel/random/boot_id`, a new random value for every boot.
///
/// # Errors
/// When it cannot be read.
pub fn boot_id() -> io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// A new random UUID for every reader (version 4: the thirteenth digit is always 4).
pub const RANDOM_UUID: &str = "/proc/sys/kernel/random/uuid";

/// The hexadecimal digits of a [`RANDOM_UUID`], 32 of them.
///
/// # Errors
/// When it cannot be read.
pub fn random_digits() -> io::Result<String> {
    let uuid = std::fs::read_to_string(RANDOM_UUID)?;
    Ok(uuid.chars().filter(char::is_ascii_hexdigit).collect())
}

/// The pid namespace of this process, such as `pid:[4026531836]`, which differs between containers of one boot.
///
/// # Errors
/// When /proc is not mounted.
pub fn pid_namespace() -> io::Result<String> {
    let link = std::fs::read_link("/proc/self/ns/pid")?;
    Ok(link.to_string_lossy().into_owned())
}

/// Release of the running kernel (`uname -r`).
pub fn release() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}

/// Now, in clock ticks since boot; rounded down, as the start of a task is (fs/proc/array.c).
pub fn ticks_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    now.tv_sec.unsigned_abs() * per_second + now.tv_nsec.unsigned_abs() * per_second / 1_000_000_000
}

/// Milliseconds since boot, of `/proc/uptime`: `12345.67 54321.00`. `None` if it has another form.
pub fn uptime_ms(content: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(content).ok()?;
    let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if hundredths.len() != 2 || !is_number(hundredths) || !is_number(seconds) {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    let hundredths: u64 = hundredths.parse().ok()?;
    seconds.checked_mul(1000)?.checked_add(hundredths * 10)
}

/// The first two numbers of a kernel's release.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KernelVersion {
    pub major: u32,
    pub minor: u32,
}

impl KernelVersion {
    /// Of a release such as `6.12.117+deb12-amd64`.
    pub fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.splitn(3, |character: char| !character.is_ascii_digit());
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

/// Names and numbers of one user fit; getpwnam_r(3) suggests 1024.
const BUFFER_BYTES: usize = 16 << 10;

/// The number of a user, from the same places as id(1) has it; `None` when there is no such user.
pub fn user_id(name: &str) -> Option<u32> {
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

/// `kernel.numa_balancing`, a set of bits (Documentation/admin-guide/sysctl/kernel.rst): 1 moves pages between nodes, 2
/// moves them between tiers of memory. A kernel in mode 2 alone does not bring pages near their tasks.
pub const NUMA_BALANCING_FILE: &str = "/proc/sys/kernel/numa_balancing";

/// The mode of the running kernel; off when the kernel was built without NUMA balancing.
///
/// # Errors
/// When the file is there and cannot be read, or holds no number.
pub fn numa_balancing() -> io::Result<NumaBalancing> {
    match std::fs::read(NUMA_BALANCING_FILE) {
        Ok(content) => text::number(&content)
            .map(NumaBalancing)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a number")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(NumaBalancing::OFF),
        Err(error) => Err(error),
    }
}

/// The text of an error, or a message with one in it, without Rust's `(os error 28)`.
pub fn error_text(error: &impl Display) -> String {
    let text = error.to_string();
    let mut parts = text.split(" (os error ");
    let mut without = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((code, rest)) if code.parse::<i32>().is_ok() => without += rest,
            _ => without = without + " (os error " + part,
        }
    }
    without
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        let version = |release| KernelVersion::of_release(release);
        assert!(version("6.12.117+deb12-amd64") > version("6.2"));
        assert_eq!(
            version("10.0-rc1"),
            Some(KernelVersion {
                major: 10,
                minor: 0
            })
        );
        for none in ["linux", "", "6", "6.", "6-rc1", "99999999999.1"] {
            assert_eq!(version(none), None, "{none}");
        }
    }

    #[test]
    fn uptime_is_in_hundredths_of_a_second() {
        assert_eq!(uptime_ms(b"12345.67 54321.00\n"), Some(12_345_670));
        assert_eq!(uptime_ms(b"0.05 0.00"), Some(50));
        for none in [
            "",
            "12",
            "12.3 4",
            "-1.00 2",
            "1.+1",
            "99999999999999999999.00",
            "18446744073709551615.99",
        ] {
            assert_eq!(uptime_ms(none.as_bytes()), None, "{none}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_uptime_panics(bytes: Vec<u8>, text in "[0-9]{0,22}[.]?[0-9]{0,3} ?") {
            let _ = uptime_ms(&bytes);
            let _ = uptime_ms(text.as_bytes());
        }

        #[test]
        fn no_release_panics(release: String) {
            let _ = KernelVersion::of_release(&release);
        }
    }

    #[test]
    fn root_is_0_and_no_user_has_a_colon() {
        assert_eq!(user_id("root"), Some(0));
        assert_eq!(user_id("a:b"), None);
        assert_eq!(user_id("a\0b"), None);
    }

    #[test]
    fn the_number_of_an_error_is_left_out() {
        let gone = io::Error::from_raw_os_error(libc::ESRCH);
        assert_eq!(error_text(&gone), "No such process");
        for (said, text) in [
            ("a (os error 13): b (os error 13)", "a: b"),
            ("x: nothing (os error 2); y", "x: nothing; y"),
            ("a (os error x)", "a (os error x)"),
            ("a (os error )", "a (os error )"),
            ("a (os error 3", "a (os error 3"),
        ] {
            assert_eq!(error_text(&said), text);
        }
    }
}
