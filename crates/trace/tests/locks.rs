//! Lock contention from recorded bytes, and on the running kernel.

use std::collections::BTreeSet;

use nearfar_machine::{CpuId, Known};
use nearfar_trace::locks::{Decoder, Formats, LockKind, LockWaits, WaitedLocks, Waits};
use nearfar_trace::records::{Layout, Record, Sample, walk};
use nearfar_trace::symbols::Symbols;

const HEAD: &str = "format:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:void * lock_addr;\toffset:8;\tsize:8;\tsigned:0;\n";
const SYMBOLS: &str = "ffffffff82000000 T __sched_text_start\nffffffff82000000 T mutex_lock\nffffffff82001000 T __sched_text_end\n\
    ffffffff82002000 T __lock_text_start\nffffffff82002000 T _raw_spin_lock\nffffffff82002100 T native_queued_spin_lock_slowpath\n\
    ffffffff82003000 T __lock_text_end\nffffffff81000000 T folio_lruvec_lock\nffffffff81000800 T release_pages\n\
    ffffffff81002000 t __traceiter_contention_begin\nffffffffc0000000 t nvme_queue_rq\t[nvme]\nffffffff83000000 D data\n";
const SLOWPATH: u64 = 0xffff_ffff_8200_2180;
const MUTEX: u64 = 0xffff_ffff_8200_0010;
const LRU: u64 = 0xffff_ffff_8100_0010;
const RELEASE: u64 = 0xffff_ffff_8100_0810;
const TRACER: u64 = 0xffff_ffff_8100_2010;
const SPIN: u32 = 1;
const MUTEX_FLAG: u32 = 32;

fn decoder() -> Decoder {
    let begin = format!(
        "name: contention_begin\nID: 408\n{HEAD}\tfield:unsigned int flags;\toffset:16;\tsize:4;\tsigned:0;\n\nprint fmt: \"\"\n"
    );
    let end = format!(
        "name: contention_end\nID: 407\n{HEAD}\tfield:int ret;\toffset:16;\tsize:4;\tsigned:1;\n\nprint fmt: \"\"\n"
    );
    Decoder::new(&Formats::parse(&begin, &end).unwrap()).unwrap()
}

/// A record as the kernel writes it: process, task, time, call chain with its marker, the event.
fn record(tid: u32, time_ns: u64, id: u16, lock: u64, last: u32, callers: &[u64]) -> Vec<u8> {
    let mut event = id.to_ne_bytes().to_vec();
    event.resize(8, 0);
    // As addresses of kernel memory are.
    event.extend((0xffff_8880_0000_0000 + lock).to_ne_bytes());
    event.extend(last.to_ne_bytes());
    let mut body = [tid.to_ne_bytes(), tid.to_ne_bytes()].concat();
    body.extend(time_ns.to_ne_bytes());
    body.extend((callers.len() as u64 + 1).to_ne_bytes());
    body.extend((-128_i64).to_ne_bytes());
    callers.iter().for_each(|it| body.extend(it.to_ne_bytes()));
    body.extend(u32::try_from(event.len()).unwrap().to_ne_bytes());
    body.extend(event);
    let mut record = 9_u32.to_ne_bytes().to_vec();
    record.extend([0, 0]);
    record.extend(u16::try_from(body.len() + 8).unwrap().to_ne_bytes());
    record.extend(body);
    record
}

fn begin(tid: u32, time_ns: u64, lock: u64, flags: u32, callers: &[u64]) -> Vec<u8> {
    record(tid, time_ns, 408, lock, flags, callers)
}

fn end(tid: u32, time_ns: u64, lock: u64) -> Vec<u8> {
    record(tid, time_ns, 407, lock, 0, &[SLOWPATH])
}

/// The answer to the events of each CPU.
fn answer(cpus: &[Vec<Vec<u8>>]) -> LockWaits {
    waits_of(cpus).finish(&Known::Yes(Symbols::parse(SYMBOLS)), None, "")
}

fn waits_of(cpus: &[Vec<Vec<u8>>]) -> Waits {
    let mut waits = Waits::new(decoder());
    for (cpu, records) in (0..).zip(cpus) {
        each(records, |sample| waits.take(CpuId(cpu), sample));
    }
    waits
}

fn each(records: &[Vec<u8>], mut take: impl FnMut(&Sample<'_>)) {
    walk(
        [&records.concat(), &[]],
        Layout { callers: true },
        &mut Vec::new(),
        &mut |record| match record {
            Record::Sample(sample) => take(&sample),
            other => panic!("{other:?}"),
        },
    );
}

#[test]
fn a_lock_has_the_call_sites_that_wait_for_it_most_often_first() {
    let lru = [TRACER, SLOWPATH, LRU, RELEASE];
    let release = [SLOWPATH, RELEASE];
    let records = [
        begin(1, 100, 7, SPIN, &release),
        end(1, 150, 7),
        begin(1, 200, 7, SPIN, &lru),
        begin(2, 210, 7, SPIN, &lru),
        begin(3, 220, 0x80, MUTEX_FLAG, &[MUTEX, RELEASE]),
    ];
    let mut locks = WaitedLocks::new(decoder());
    each(&records, |sample| locks.take(CpuId(0), sample));
    let base = 0xffff_8880_0000_0000;
    let site = |name: &str, kind| (name.to_owned(), kind);
    assert_eq!(
        Vec::from_iter(locks.call_sites(&Symbols::parse(SYMBOLS))),
        [
            (
                base + 7,
                vec![
                    site("folio_lruvec_lock", LockKind::Spinlock),
                    site("release_pages", LockKind::Spinlock)
                ]
            ),
            (base + 0x80, vec![site("release_pages", LockKind::Mutex)])
        ]
    );
}

fn sites(waits: &LockWaits) -> Vec<(&str, LockKind, u64, u64)> {
    let of = |site: &nearfar_trace::locks::Site| (site.waits, (site.wait_s * 1e9).round() as u64);
    let with = waits.sites.iter().map(|it| (it, of(it)));
    with.map(|(it, (waits, ns))| (&*it.call_site, it.kind, waits, ns))
        .collect()
}

#[test]
fn waits_are_summed_by_the_function_that_takes_the_lock() {
    let lru = [TRACER, SLOWPATH, LRU, RELEASE];
    let found = answer(&[
        vec![
            begin(1, 100, 7, SPIN, &lru),
            end(1, 150, 7),
            begin(1, 200, 7, SPIN, &lru),
            end(1, 500, 7),
        ],
        vec![begin(2, 110, 7, SPIN, &[SLOWPATH, RELEASE]), end(2, 120, 7)],
    ]);
    assert_eq!(
        sites(&found),
        [
            ("folio_lruvec_lock", LockKind::Spinlock, 2, 350),
            ("release_pages", LockKind::Spinlock, 1, 10)
        ]
    );
    assert_eq!((found.waits, found.incomplete, found.unreadable), (3, 0, 0));
    assert!((found.sites[0].longest_s - 300e-9).abs() < 1e-15);
    assert_eq!(found.spin_s, found.wait_s);
}

#[test]
fn a_mutex_is_one_wait_without_the_waits_within_it_and_ends_on_another_cpu() {
    let found = answer(&[
        vec![
            begin(1, 100, 7, MUTEX_FLAG | SPIN, &[MUTEX, RELEASE]),
            begin(1, 150, 8, SPIN, &[SLOWPATH, MUTEX, RELEASE]),
            end(1, 170, 8),
            begin(1, 180, 7, MUTEX_FLAG, &[MUTEX, RELEASE]),
        ],
        vec![end(1, 300, 7)],
    ]);
    assert_eq!(
        sites(&found),
        [
            ("release_pages", LockKind::Mutex, 1, 180),
            ("release_pages", LockKind::Spinlock, 1, 20)
        ]
    );
    assert_eq!(found.incomplete, 0);
}

#[test]
fn idle_tasks_of_two_cpus_are_two_waiters() {
    let found = answer(&[
        vec![begin(0, 100, 7, SPIN, &[LRU]), end(0, 400, 7)],
        vec![begin(0, 200, 7, SPIN, &[LRU]), end(0, 300, 7)],
    ]);
    assert_eq!(
        sites(&found),
        [("folio_lruvec_lock", LockKind::Spinlock, 2, 400)]
    );
}

#[test]
fn halves_of_waits_and_broken_events_are_counted() {
    let found = answer(&[vec![end(1, 100, 7), begin(1, 200, 7, SPIN, &[LRU])]]);
    assert_eq!((found.waits, found.incomplete), (0, 2));
    let mut waits = Waits::new(decoder());
    waits.take(CpuId(0), &Sample::new(1, 1, 1, &[0; 4]));
    assert_eq!(waits.finish(&Known::no("hidden"), None, "").unreadable, 1);
}

#[test]
fn no_wait_for_a_spinlock_is_no_finding_under_a_hypervisor() {
    let host = "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n";
    let reason = |waits: Waits, cpuinfo: &str| {
        let only = BTreeSet::from([2]);
        let found = waits.finish(&Known::no("hidden"), Some(&only), cpuinfo);
        found.no_spin_reason
    };
    let none = || Waits::new(decoder());
    let found = reason(none(), host).unwrap();
    assert!(found.contains("clearcpuid=hypervisor"), "{found}");
    assert_eq!(reason(none(), "flags\t\t: fpu vme lahf_lm\n"), None);
    assert_eq!(reason(none(), "Features\t: fp asimd\n"), None);
    let others = waits_of(&[vec![begin(1, 100, 7, SPIN, &[LRU]), end(1, 150, 7)]]);
    assert_eq!(reason(others, host), None, "they are traced");
}

#[test]
fn waits_of_other_processes_are_left_out() {
    let events = vec![
        begin(1, 100, 7, SPIN, &[LRU]),
        begin(2, 110, 8, SPIN, &[LRU]),
        end(1, 150, 7),
        end(2, 210, 8),
    ];
    let symbols = Known::Yes(Symbols::parse(SYMBOLS));
    let all = waits_of(std::slice::from_ref(&events)).finish(&symbols, None, "");
    let pids: Vec<i32> = all.processes.iter().map(|it| it.pid).collect();
    assert_eq!((all.waits, pids), (2, vec![2, 1]));
    let only = waits_of(&[events]).finish(&symbols, Some(&BTreeSet::from([1])), "");
    assert_eq!((only.waits, only.sites[0].waits), (1, 1));
    assert!((only.wait_s - 50e-9).abs() < 1e-15 && only.spin_s == only.wait_s);
    assert_eq!(only.processes.len(), 1);
}

#[test]
fn names_come_from_kallsyms_unless_it_hides_the_addresses() {
    let symbols = Symbols::parse(SYMBOLS);
    assert_eq!(
        symbols.name(0xffff_ffff_c000_0100),
        Some("nvme_queue_rq [nvme]")
    );
    assert_eq!(symbols.name(0x1000), None);
    assert_eq!(
        symbols.call_site(&[SLOWPATH, MUTEX]),
        Some("mutex_lock"),
        "the outermost one"
    );
    let hidden = Symbols::parse("0000000000000000 T mutex_lock\nnonsense\n");
    assert_eq!(hidden, Symbols::default());
    let mut waits = Waits::new(decoder());
    let bytes = [begin(1, 100, 7, SPIN, &[LRU]), end(1, 150, 7)].concat();
    walk(
        [&bytes, &[]],
        Layout { callers: true },
        &mut Vec::new(),
        &mut |record| {
            if let Record::Sample(sample) = record {
                waits.take(CpuId(0), &sample);
            }
        },
    );
    let found = waits.finish(&Known::no("hidden"), None, "");
    assert_eq!(found.sites[0].call_site, "0xffffffff81000010");
    assert_eq!(found.no_names_reason.as_deref(), Some("hidden"));
}
