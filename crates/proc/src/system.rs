//! Which kernel runs and since which boot, and its random numbers.

use std::io;

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
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
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
}
