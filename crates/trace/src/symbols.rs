//! Names of the kernel's addresses (`/proc/kallsyms`, proc(5)), and which functions implement locks.

use std::ops::Range;

use nearfar_machine::Known;

const FILE: &str = "/proc/kallsyms";

/// What runs between a lock function and the tracepoint's handler.
const TRACING: [&str; 5] = [
    "trace_contention",
    "__traceiter_",
    "__bpf_trace_",
    "perf_",
    "__probestub_",
];

/// Functions that spin for a lock outside of the sections of lock functions: tasks that watch a sleeping lock's owner
/// (kernel/locking/mutex.c, rwsem.c, rtmutex.c, osq_lock.c), and queued locks, which are in the sections since Linux 5.19.
const SPINNING: [&str; 12] = [
    "__pv_queued_spin_lock_slowpath",
    "mutex_can_spin_on_owner",
    "mutex_spin_on_owner",
    "native_queued_spin_lock_slowpath",
    "osq_lock",
    "queued_read_lock_slowpath",
    "queued_spin_lock_slowpath",
    "queued_write_lock_slowpath",
    "rtmutex_spin_on_owner",
    "rwsem_can_spin_on_owner",
    "rwsem_optimistic_spin",
    "rwsem_spin_on_owner",
];

/// Functions and variables of the kernel, by address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Symbols {
    /// Ascending.
    functions: Vec<(u64, String)>,
    /// The same of variables.
    variables: Vec<(u64, String)>,
    /// Where the functions are that implement locks, or spin for one.
    locks: Vec<Range<u64>>,
}

impl Symbols {
    /// Those of the running kernel; unknown where it hides their addresses from this user.
    pub fn read() -> Known<Self> {
        match std::fs::read(FILE) {
            Err(error) => Known::no(format!("{FILE}: {error}")),
            Ok(text) => {
                let symbols = Self::parse(&String::from_utf8_lossy(&text));
                match symbols.functions.is_empty() {
                    true => Known::no(format!(
                        "{FILE} has no addresses: kernel.kptr_restrict hides them"
                    )),
                    false => Known::Yes(symbols),
                }
            }
        }
    }

    /// Lines of `ADDRESS TYPE NAME [MODULE]`; others, and those without address, are skipped.
    pub fn parse(text: &str) -> Self {
        let of_kinds = |kinds: &str| {
            let symbols = text.lines().filter_map(|line| symbol(line, kinds));
            let mut symbols = Vec::from_iter(symbols);
            // Stable: of several names of one address the first stays first, as the kernel lists them.
            symbols.sort_by_key(|(address, _)| *address);
            symbols
        };
        let mut functions = of_kinds("tTwW");
        let address = |name: &str| functions.iter().find(|it| it.1 == name).map(|it| it.0);
        let section = |name: &str| {
            Some(address(&format!("__{name}_text_start"))?..address(&format!("__{name}_text_end"))?)
        };
        let sections = ["lock", "sched"].into_iter().filter_map(section);
        let mut locks: Vec<Range<u64>> = sections.collect();
        functions
            .retain(|(_, name)| !name.ends_with("_text_start") && !name.ends_with("_text_end"));
        locks.extend(spinning(&functions));
        let variables = of_kinds("bBdDrR");
        Self {
            functions,
            variables,
            locks,
        }
    }

    /// Variables with a first byte in these addresses, and before them the one that the first address is in, as `name+0xOFFSET`.
    pub fn variables(&self, addresses: Range<u64>) -> Vec<String> {
        // Sizes are not listed: what is so far behind a variable, or behind the last one, is memory of another kind.
        const LARGEST: u64 = 1 << 20;
        const ENDS: [&str; 4] = ["_end", "__bss_stop", "_edata", "__init_end"];
        let after = |limit| self.variables.partition_point(|(start, _)| *start < limit);
        let (first, end) = (after(addresses.start), after(addresses.end));
        let around = first.checked_sub(1).and_then(|it| self.variables.get(it));
        let around = around.filter(|(start, name)| {
            let is_at_start = self
                .variables
                .get(first)
                .is_some_and(|it| it.0 == addresses.start);
            let is_near = addresses.start - start < LARGEST && first < self.variables.len();
            is_near && !is_at_start && !ENDS.contains(&name.as_str())
        });
        let around = around.map(|(start, name)| format!("{name}+{:#x}", addresses.start - start));
        let within = self.variables[first..end]
            .iter()
            .map(|(_, name)| name.clone());
        around.into_iter().chain(within).collect()
    }

    /// The function that an address is in; `None` below the first one.
    pub fn name(&self, address: u64) -> Option<&str> {
        let after = self
            .functions
            .partition_point(|(start, _)| *start <= address);
        let (_, name) = self.functions.get(after.checked_sub(1)?)?;
        Some(name)
    }

    /// The first function of a call chain, innermost first, that implements no lock; else the outermost one.
    pub fn call_site(&self, callers: &[u64]) -> Option<&str> {
        let is_tracing = |address: u64| {
            let name = self.name(address).unwrap_or_default();
            TRACING.iter().any(|prefix| name.starts_with(prefix))
        };
        let found = callers
            .iter()
            .find(|address| !self.is_lock(**address) && !is_tracing(**address));
        self.name(*found.or(callers.last())?)
    }

    /// Whether an address is in a function that implements a lock or the scheduler.
    pub fn is_lock(&self, address: u64) -> bool {
        self.locks.iter().any(|it| it.contains(&address))
    }
}

/// Where the functions are that spin: each up to the next function.
fn spinning(functions: &[(u64, String)]) -> impl Iterator<Item = Range<u64>> {
    functions
        .iter()
        .enumerate()
        .filter_map(|(at, (start, name))| {
            // The compiler's copies of a function: osq_lock.part.0.
            let name = name.split('.').next().unwrap_or(name);
            let after = functions[at..].iter().find(|(next, _)| next > start);
            let end = after.map_or(u64::MAX, |(next, _)| *next);
            SPINNING.contains(&name).then_some(*start..end)
        })
}

/// The symbol of a line if it is of one of these kinds (nm(1)).
fn symbol(line: &str, kinds: &str) -> Option<(u64, String)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    let name = words.next()?;
    let is_wanted = kinds.contains(kind) && address != 0;
    let name = match words.next() {
        Some(module) => format!("{name} {module}"),
        None => name.to_owned(),
    };
    is_wanted.then_some((address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_spins_outside_of_the_sections_is_a_lock_function_too() {
        let symbols = Symbols::parse(
            "ffffffff81000000 t rwsem_spin_on_owner\nffffffff81000100 t osq_lock.part.0\nffffffff81000200 T osq_lock_stats\n\
             ffffffff82000000 T __lock_text_start\nffffffff82000000 T _raw_spin_lock\nffffffff82001000 T __lock_text_end\n",
        );
        let is_lock = |offset: u64| symbols.is_lock(0xffff_ffff_8100_0000 + offset);
        assert!(is_lock(0x10) && is_lock(0x110) && is_lock(0x100_0010));
        assert!(!is_lock(0x210));
    }
}
