//! The CPUs of this machine, by number.

/// The CPU that runs this thread; it may run on another one when this returns.
#[inline]
pub(crate) fn current() -> usize {
    // Miri has no CPUs: each thread is on one of its own.
    if cfg!(miri) {
        return crate::sync::thread_number();
    }
    // SAFETY: sched_getcpu has no arguments and writes no memory.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// CPUs that may come online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Possible {
    /// How many there are.
    pub(crate) count: usize,
    /// The highest number + 1: some machines leave numbers out.
    pub(crate) numbers: usize,
}

impl Possible {
    /// As the kernel lists them (/sys/devices/system/cpu/possible); without that, as many as the C library counts, 1 where the system
    /// does not say.
    pub(crate) fn read() -> Self {
        let list = match cfg!(miri) {
            true => None,
            false => std::fs::read_to_string("/sys/devices/system/cpu/possible").ok(),
        };
        list.and_then(|list| Self::parse(&list)).unwrap_or_else(|| {
            let count = configured(libc::_SC_NPROCESSORS_CONF);
            Self {
                count,
                numbers: count,
            }
        })
    }

    /// `None` of what is no list as "0-3,64-67".
    fn parse(list: &str) -> Option<Self> {
        let (mut count, mut numbers) = (0, 0);
        for range in list.trim().split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            count += (last + 1).checked_sub(first)?;
            numbers = numbers.max(last + 1);
        }
        Some(Self { count, numbers })
    }
}

/// CPUs that are online, 1 where the system does not say.
pub(crate) fn online() -> usize {
    configured(libc::_SC_NPROCESSORS_ONLN)
}

fn configured(name: libc::c_int) -> usize {
    // SAFETY: sysconf takes any name; an unknown one returns -1.
    let count = unsafe { libc::sysconf(name) };
    usize::try_from(count).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::Possible;

    #[test]
    fn numbers_that_are_left_out_are_not_counted() {
        let parsed = |list| Possible::parse(list).map(|it| (it.count, it.numbers));
        assert_eq!(parsed("0-3,64-67\n"), Some((8, 68)));
        assert_eq!(parsed("0\n"), Some((1, 1)));
        assert_eq!(parsed("2,5-6"), Some((3, 7)));
        assert_eq!(parsed("\n"), None);
        assert_eq!(parsed("3-1"), None);
    }
}
