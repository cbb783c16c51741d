//! Events of perf that are counted in the command while it runs: --count.

use std::io;

use nearfar_trace::TraceError;
use nearfar_trace::counters::{CountableEvent, CountedFrom, ProcessCount, ProcessCounter};

/// The events, and a counter of each for one run.
pub(super) struct Events {
    wanted: Vec<CountableEvent>,
    counters: Vec<ProcessCounter>,
}

impl Events {
    /// Those of a list, each of which can be counted here.
    ///
    /// # Errors
    /// Which is none, or not countable, and why.
    pub(super) fn of(list: Option<&str>) -> Result<Self, String> {
        let mut wanted: Vec<CountableEvent> = Vec::new();
        for name in list.into_iter().flat_map(|it| it.split(',')).map(str::trim) {
            let event: CountableEvent = name.parse().map_err(|it| format!("{name}: {it}"))?;
            if wanted.iter().any(|it| it.is(&event)) {
                return Err(format!("{name}: named twice"));
            }
            wanted.push(event);
        }
        let mut events = Self {
            wanted,
            counters: Vec::new(),
        };
        let opened = events.open(0, CountedFrom::Begin);
        opened.map_err(|error| error.to_string())?;
        events.counters.clear();
        Ok(events)
    }

    /// For a run of this process.
    pub(super) fn open(&mut self, pid: i32, from: CountedFrom) -> Result<(), TraceError> {
        let counter = |event| ProcessCounter::open(event, pid, from);
        self.counters = self.wanted.iter().map(counter).collect::<Result<_, _>>()?;
        Ok(())
    }

    pub(super) fn begin(&self) -> io::Result<()> {
        self.counters.iter().try_for_each(ProcessCounter::begin)
    }

    /// With `:u` behind the name where that is of user space alone.
    pub(super) fn counts(&self) -> io::Result<Counts> {
        let counters = self.wanted.iter().zip(&self.counters);
        let count = |(event, counter): (&CountableEvent, &ProcessCounter)| {
            let name = match counter.is_of_user_space() {
                true => format!("{event}:u"),
                false => event.to_string(),
            };
            Ok((name, counter.counted()?))
        };
        counters.map(count).collect::<Result<_, _>>().map(Counts)
    }
}

/// What was counted of each event; `None` of one that had no turn on the CPU's counters.
pub(super) struct Counts(Vec<(String, Option<ProcessCount>)>);

impl Counts {
    pub(super) fn known(&self) -> Vec<(String, f64)> {
        let known = self.0.iter();
        let known = known.filter_map(|(event, it)| Some((event.clone(), (*it)?.count)));
        known.collect()
    }

    /// Where events had to share the CPU's counters.
    pub(super) fn warning(&self) -> Option<String> {
        let shares = self.0.iter().map(|(_, it)| it.map_or(0.0, |it| it.share));
        let least = shares.fold(1.0, f64::min);
        (least < 0.99).then(|| {
            format!(
                "events were counted in turns, for {:.0} % of the time at least, and extrapolated; those without a turn are left out: \
                 name fewer, or a longer command",
                100.0 * least
            )
        })
    }
}
