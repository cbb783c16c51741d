//! `/proc/stat`: how each CPU spent its time since boot (proc_stat(5)).
//!
//! ```text
//! cpu  9 9 9 9 9 ...             all of them, left out here
//! cpu3 4705 356 584 367 12 0 3 0 user nice system idle iowait irq softirq steal
//! intr 1 2 3
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use nearfar_machine::{CpuId, MAX_NUMBER};

use crate::text;

/// Clock ticks of one CPU since boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuTimes {
    /// In programs, also those of low priority. The time of guests is in it.
    pub user: u64,
    /// In the kernel, without interrupts.
    pub system: u64,
    pub interrupt: u64,
    pub softirq: u64,
    /// idle and iowait.
    pub idle: u64,
    /// Time that a hypervisor gave to others; `None` on kernels that do not count it.
    pub stolen: Option<u64>,
}

impl CpuTimes {
    /// All ticks that were not idle or stolen.
    pub fn busy(&self) -> u64 {
        let busy = [self.user, self.system, self.interrupt, self.softirq];
        busy.into_iter().fold(0, u64::saturating_add)
    }

    /// All ticks.
    pub fn all(&self) -> u64 {
        let idle = self.idle.saturating_add(self.stolen.unwrap_or(0));
        self.busy().saturating_add(idle)
    }
}

/// The CPUs of the file, which are those online.
pub fn parse(content: &[u8]) -> impl Iterator<Item = (CpuId, CpuTimes)> {
    text::lines(content)
        .take_while(|line| line.starts_with(b"cpu"))
        .filter_map(cpu)
}

fn cpu(line: &[u8]) -> Option<(CpuId, CpuTimes)> {
    let mut words = text::words(line);
    let cpu: u32 = text::number(words.next()?.strip_prefix(b"cpu")?)?;
    let mut ticks = [None; 8];
    for (slot, word) in ticks.iter_mut().zip(words) {
        *slot = text::number(word);
    }
    let sum = |fields: &[usize]| {
        fields.iter().fold(0u64, |sum, &field| {
            sum.saturating_add(ticks[field].unwrap_or(0))
        })
    };
    ticks[3]?;
    let times = CpuTimes {
        user: sum(&[0, 1]),
        system: sum(&[2]),
        interrupt: sum(&[5]),
        softirq: sum(&[6]),
        idle: sum(&[3, 4]),
        stolen: ticks[7],
    };
    (cpu <= MAX_NUMBER).then_some((CpuId(cpu), times))
}

/// Reads /proc/stat again and again without opening it each time.
#[derive(Debug, Default)]
pub struct StatFile(Option<File>);

impl StatFile {
    /// The lines of the CPUs, which come first, and at most a piece of the counters of interrupts behind them.
    ///
    /// # Errors
    /// When it cannot be opened or read.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let file = match &mut self.0 {
            Some(file) => file,
            closed => closed.insert(File::open("/proc/stat")?),
        };
        let mut content = vec![0; 4096];
        let mut length = 0;
        loop {
            let more = file.read_at(&mut content[length..], length as u64)?;
            length += more;
            let is_whole = content[..length]
                .windows(5)
                .any(|window| window == b"\nintr");
            if more == 0 || is_whole {
                content.truncate(length);
                return Ok(content);
            }
            content.resize(2 * length + 4096, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_summed_by_what_the_cpu_did() {
        let content =
            b"cpu  9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 1 1\ncpu12 1 2 3 60\nintr 1 2 3\ncpu9 1 1 1 1 1\n";
        let found: Vec<_> = parse(content).collect();
        let times = |user, interrupt, softirq, idle, stolen| CpuTimes {
            user,
            system: 3,
            interrupt,
            softirq,
            idle,
            stolen,
        };
        let expected = [
            (CpuId(0), times(3, 6, 7, 45, Some(8))),
            (CpuId(12), times(3, 0, 0, 60, None)),
        ];
        assert_eq!(found[0].1.busy(), 19);
        assert_eq!(found, expected);
        assert_eq!(found[0].1.all(), 72);
    }

    #[test]
    fn this_system_has_a_cpu() {
        let mut file = StatFile::default();
        for _ in 0..2 {
            assert!(parse(&file.read().unwrap()).count() > 0);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line in "cpu[0-9]{0,12}( [0-9]{1,22}){0,12}") {
            parse(&bytes).for_each(drop);
            parse(line.as_bytes()).for_each(drop);
        }
    }
}
