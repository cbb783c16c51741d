//! `/proc/PID/schedstat`: how long a thread ran and waited (Documentation/scheduler/sched-stats.rst).

use crate::text;

/// Time of a thread since it started. Needs CONFIG_SCHED_INFO.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct RunTime {
    /// On a CPU.
    pub run_ns: u64,
    /// Ready to run, without a CPU. A wait counts when it is over.
    pub wait_ns: u64,
    /// How often it began to run; 0 for a thread that runs where the kernel does not count.
    pub starts: u64,
}

impl RunTime {
    /// The three numbers of a schedstat file.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let mut words = content
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        Some(Self {
            run_ns: text::number(words.next()?)?,
            wait_ns: text::number(words.next()?)?,
            starts: text::number(words.next()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_run_wait_and_starts() {
        let expected = RunTime {
            run_ns: 12,
            wait_ns: 7,
            starts: 3,
        };
        assert_eq!(RunTime::parse(b"12 7 3\n"), Some(expected));
        for content in [&b"12 7"[..], b"12 x 3", b"", b"\xff 1 2", b"-1 2 3"] {
            assert_eq!(RunTime::parse(content), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = RunTime::parse(&bytes);
        }
    }
}
