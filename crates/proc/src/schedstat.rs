//! `/proc/PID/schedstat`: how long a thread ran and waited (Documentation/scheduler/sched-stats.rst).

use crate::text;

/// Time of a thread since it started. Needs CONFIG_SCHED_INFO.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct RunTime {
    /// On a CPU.
    pub run_ns: u64,
    /// Ready to run, without a CPU. A wait counts when it is over.
    pub wait_ns: u64,
}

impl RunTime {
    /// The first two numbers of a schedstat file.
    pub fn parse(content: &[u8]) -> Option<Self> {
        let mut words = content
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        Some(Self {
            run_ns: text::number(words.next()?)?,
            wait_ns: text::number(words.next()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_numbers_are_run_and_wait() {
        let expected = RunTime {
            run_ns: 12,
            wait_ns: 7,
        };
        assert_eq!(RunTime::parse(b"12 7 3\n"), Some(expected));
        for content in [&b"12"[..], b"12 x 3", b"", b"\xff 1", b"-1 2"] {
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
