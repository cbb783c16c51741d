//! Where processes spend their CPU time: what each CPU runs, many times a second.
//!
//! ```text
//! CPU 0  clock ─► ring ─┐
//! CPU 1  clock ─► ring ─┴─► samples by call chain ─► Profile of some processes     with Symbols for the names
//! ```
//!
//! The clock is the kernel's own (`cpu-clock`, a high-resolution timer), which every machine and guest has. It interrupts the CPU,
//! so what runs with interrupts off shows as the function that lets them on again: a spinlock that is waited for or held
//! with interrupts off as its unlock function. Functions that implement a lock are therefore named with their call site, see
//! [`Symbols::call_site`].

use std::collections::{BTreeSet, HashMap};

use nearfar_machine::{CpuId, CpuSet, Known};
use serde::{Deserialize, Serialize};

use crate::TraceError;
use crate::open::PerfEvent;
use crate::records::{Layout, Record, Ring};
use crate::symbols::Symbols;

/// Bytes of one CPU's ring: at 160 bytes a sample, 16 seconds of 99 samples.
const RING: usize = 256 << 10;

/// A sampling of some CPUs. Dropping it closes its clocks, which takes some milliseconds for each CPU.
pub struct Sampler {
    cpus: Vec<(CpuId, PerfEvent, Ring)>,
    scratch: Vec<u8>,
    found: FoundSamples,
}

#[derive(Default)]
struct FoundSamples {
    /// Samples of each process and call chain; the chain is empty where a program ran.
    by_chain: HashMap<(i32, Box<[u64]>), u64>,
    lost: u64,
}

/// Samples of some processes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Profile {
    pub samples: u64,
    /// Those of them in the kernel.
    pub in_kernel: u64,
    /// Those in functions that implement a lock or the scheduler; `None` without the kernel's symbols.
    pub in_locks: Option<u64>,
    /// Records that had no room or could not be read, of all processes.
    pub lost: u64,
    /// Why functions have no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_names_reason: Option<String>,
    /// Those of the kernel, the one with most samples first.
    pub functions: Vec<Function>,
}

/// A kernel function that was running.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Function {
    /// Its name, or an address.
    pub function: String,
    /// Of one that implements a lock, the function that takes or gives back the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_site: Option<String>,
    pub samples: u64,
}

impl Sampler {
    /// Opens the clocks of these CPUs, which sample nothing before [`Self::enable`]; CPUs that are offline are left out.
    ///
    /// # Errors
    /// When the kernel does not let this user sample, or has no room for the rings.
    pub fn open(cpus: &CpuSet, hertz: u32) -> Result<Self, TraceError> {
        let layout = Layout { callers: true };
        let size = RING.max(rustix::param::page_size());
        let mut opened = Vec::new();
        for cpu in cpus.iter() {
            let Some(event) = PerfEvent::open_clock(cpu, hertz)? else {
                continue;
            };
            let ring = Ring::map(std::os::fd::AsFd::as_fd(&event), size, layout);
            let ring = ring.map_err(|source| TraceError::Map {
                cpu,
                bytes: size,
                source,
            })?;
            opened.push((cpu, event, ring));
        }
        match opened.is_empty() {
            true => Err(TraceError::NoCpu),
            false => Ok(Self {
                cpus: opened,
                scratch: Vec::new(),
                found: FoundSamples::default(),
            }),
        }
    }

    /// Samples from now on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enable(&self) -> Result<(), TraceError> {
        self.each("enabling the clock", PerfEvent::enable)
    }

    fn each(
        &self,
        step: &'static str,
        f: impl Fn(&PerfEvent) -> std::io::Result<()>,
    ) -> Result<(), TraceError> {
        self.cpus.iter().try_for_each(|(cpu, event, _)| {
            let cpu = *cpu;
            f(event).map_err(|source| TraceError::Step { step, cpu, source })
        })
    }

    /// Takes what the rings hold; to be called several times a minute.
    pub fn drain(&mut self) {
        for (_, _, ring) in &mut self.cpus {
            ring.drain(&mut self.scratch, &mut |record| self.found.take(record));
        }
    }

    /// Samples nothing more, and takes what the rings hold.
    ///
    /// # Errors
    /// When the kernel does not end it.
    pub fn end(&mut self) -> Result<(), TraceError> {
        self.each("disabling the clock", PerfEvent::disable)?;
        self.drain();
        Ok(())
    }

    /// The samples of these processes that were taken from the rings.
    pub fn profile(self, processes: &BTreeSet<i32>, symbols: &Known<Symbols>) -> Profile {
        self.found.profile(processes, symbols)
    }
}

impl FoundSamples {
    fn take(&mut self, record: Record<'_>) {
        match record {
            Record::Sample(sample) => {
                let chain = sample.callers().collect();
                *self.by_chain.entry((sample.pid, chain)).or_default() += 1;
            }
            Record::Lost(count) => self.lost += count,
            Record::Damaged => self.lost += 1,
            Record::Named { .. } | Record::Mapped(_) | Record::Throttled | Record::Other => {}
        }
    }

    fn profile(self, processes: &BTreeSet<i32>, symbols: &Known<Symbols>) -> Profile {
        let (mut samples, mut in_kernel, mut in_locks) = (0, 0, 0);
        let mut by_name: HashMap<(String, Option<String>), u64> = HashMap::new();
        let of_these = self.by_chain.into_iter();
        for ((_, chain), count) in of_these.filter(|((pid, _), _)| processes.contains(pid)) {
            samples += count;
            let Some(&address) = chain.first() else {
                continue;
            };
            in_kernel += count;
            let known = symbols.get();
            let is_lock = known.is_some_and(|it| it.is_lock(address));
            if is_lock {
                in_locks += count;
            }
            let name = known.and_then(|it| it.name(address)).map(str::to_owned);
            let call_site = known
                .filter(|_| is_lock)
                .and_then(|it| it.call_site(&chain));
            let name = name.unwrap_or_else(|| format!("{address:#x}"));
            *by_name
                .entry((name, call_site.map(str::to_owned)))
                .or_default() += count;
        }
        let mut functions: Vec<Function> = by_name
            .into_iter()
            .map(|((function, call_site), samples)| Function {
                function,
                call_site,
                samples,
            })
            .collect();
        functions.sort_by(|a, b| (b.samples, &a.function).cmp(&(a.samples, &b.function)));
        Profile {
            samples,
            in_kernel,
            in_locks: symbols.get().map(|_| in_locks),
            lost: self.lost,
            no_names_reason: symbols.unknown_reason().map(|it| it.to_string()),
            functions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &str = "100 T mlock_folio_batch\n200 T do_mlock\n\
        1000 T __lock_text_start\n1000 T _raw_spin_unlock_irqrestore\n1100 T native_queued_spin_lock_slowpath\n\
        1200 T __lock_text_end\n1300 T clear_page\n";

    #[test]
    fn samples_are_counted_by_function_and_locks_by_their_call_site() {
        let mut found = FoundSamples::default();
        let mut add = |pid, chain: &[u64], count| {
            found.by_chain.insert((pid, chain.into()), count);
        };
        add(7, &[], 10);
        add(7, &[0x1104, 0x110, 0x210], 5);
        add(7, &[0x1108, 0x120, 0x210], 2);
        add(8, &[0x1310, 0x210], 4);
        add(9, &[0x1310], 100);
        let symbols = Known::Yes(Symbols::parse(SYMBOLS));
        let profile = found.profile(&[7, 8].into(), &symbols);
        assert_eq!(
            (profile.samples, profile.in_kernel, profile.in_locks),
            (21, 11, Some(7)),
            "process 9 is another one"
        );
        let functions: Vec<_> = profile
            .functions
            .iter()
            .map(|it| (it.function.as_str(), it.call_site.as_deref(), it.samples))
            .collect();
        assert_eq!(
            functions,
            [
                (
                    "native_queued_spin_lock_slowpath",
                    Some("mlock_folio_batch"),
                    7
                ),
                ("clear_page", None, 4)
            ]
        );
    }

    #[test]
    fn without_symbols_the_share_of_locks_is_unknown() {
        let mut found = FoundSamples::default();
        found.by_chain.insert((7, Box::from([0x1104])), 5);
        let profile = found.profile(&[7].into(), &Known::no("hidden"));
        assert_eq!((profile.in_locks, profile.in_kernel), (None, 5));
        assert_eq!(profile.no_names_reason.as_deref(), Some("hidden"));
        assert_eq!(profile.functions[0].function, "0x1104");
    }
}
