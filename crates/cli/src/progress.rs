//! How far a run of an experiment is, on standard error: a bar on a terminal, a line every tenth of the way otherwise.

use std::io::{IsTerminal as _, Write};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nearfar_change::{MoveProgress, ProgressSink};
use nearfar_experiment::RunId;
use nearfar_experiment::progress::{Begun, Progress, Step};
use nearfar_report::count;

/// What suits standard error: a bar where it is a terminal, else lines.
pub fn on_standard_error() -> Box<dyn Progress> {
    let error = std::io::stderr();
    if error.is_terminal() {
        Box::new(Bar::default())
    } else {
        Box::new(Lines::new(error))
    }
}

/// A bar of the memory that is moved, where standard error is a terminal.
pub fn of_memory() -> Option<ProgressSink> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = bar(
        None,
        "moving memory [{bar:30}] {bytes}/{total_bytes}  {bytes_per_sec}",
    );
    Some(ProgressSink(Arc::new(move |progress: MoveProgress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        if progress.done_bytes >= progress.total_bytes {
            bar.finish_and_clear();
        }
    })))
}

/// A bar on standard error with this much to do, in the words of a template of indicatif.
pub fn bar(total: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> "))
}

/// A bar on standard error.
#[derive(Debug, Default)]
pub struct Bar(Option<ProgressBar>);

impl Progress for Bar {
    fn begin(&mut self, begun: &Begun) {
        let bar = bar(Some(begun.total), "{prefix} [{bar:30}] {pos}/{len}  {msg}");
        bar.set_prefix(name(begun.run));
        bar.set_position(begun.already);
        self.0 = Some(bar);
    }

    fn step(&mut self, step: &Step<'_>) {
        let Some(bar) = &self.0 else { return };
        let mut message = step
            .left
            .map_or_else(String::new, |left| format!("{}  ", remaining(left)));
        if step.failed > 0 {
            message += &format!("{} failed  ", step.failed);
        }
        message += &step.next.map_or_else(String::new, ToString::to_string);
        bar.set_message(message);
        bar.set_position(step.done);
    }

    fn end(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

/// A line at the beginning and at every tenth of the way.
#[derive(Debug)]
pub struct Lines<W> {
    out: W,
    run: Option<Begun>,
    tenths: u64,
}

impl<W: Write> Lines<W> {
    /// Lines to this.
    pub fn new(out: W) -> Self {
        Self {
            out,
            run: None,
            tenths: 0,
        }
    }

    /// Progress is not worth a failure: who has closed standard error does not want to know.
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{text}");
    }
}

impl<W: Write> Progress for Lines<W> {
    fn begin(&mut self, begun: &Begun) {
        let already = match begun.already {
            0 => String::new(),
            already => format!(", {already} of them taken before it was interrupted"),
        };
        self.line(&format!(
            "{}: {}: {}{already}",
            name(begun.run),
            begun.title,
            count(begun.total as usize, "sample")
        ));
        self.tenths = tenths(begun.already, begun.total);
        self.run = Some(begun.clone());
    }

    fn step(&mut self, step: &Step<'_>) {
        let Some(begun) = &self.run else { return };
        let reached = tenths(step.done, begun.total);
        if reached <= self.tenths {
            return;
        }
        self.tenths = reached;
        let failed = if step.failed > 0 {
            format!(", {} failed", step.failed)
        } else {
            String::new()
        };
        let left = step
            .left
            .filter(|_| step.next.is_some())
            .map(|left| format!(", {}", remaining(left)));
        let text = format!(
            "{}: {} of {} samples ({} %){failed}{}",
            name(begun.run),
            step.done,
            begun.total,
            100 * step.done / begun.total.max(1),
            left.unwrap_or_default()
        );
        self.line(&text);
    }

    fn end(&mut self) {
        self.run = None;
    }
}

/// `run 7`; a run that is not stored has no number.
fn name(run: Option<RunId>) -> String {
    run.map_or_else(|| "not stored".to_owned(), |run| format!("run {run}"))
}

fn tenths(done: u64, total: u64) -> u64 {
    10 * done / total.max(1)
}

/// A time that is only an estimate, with as many digits as it deserves.
fn remaining(left: Duration) -> String {
    let seconds = left.as_secs_f64().ceil() as u64;
    match seconds {
        0..100 => format!("about {seconds} s left"),
        100..6000 => format!("about {} min left", seconds.div_ceil(60)),
        _ => format!(
            "about {} h {} min left",
            seconds / 3600,
            seconds % 3600 / 60
        ),
    }
}

#[cfg(test)]
mod tests {
    use nearfar_experiment::Cell;

    use super::*;

    #[test]
    fn lines_come_every_tenth_of_the_way_with_the_rest_once_it_can_be_told() {
        let mut lines = Lines::new(Vec::new());
        lines.begin(&Begun {
            run: Some(RunId(7)),
            title: "probe".into(),
            total: 40,
            already: 0,
        });
        let cell = Cell::new();
        for done in 0..=40 {
            let left = (done >= 2).then(|| Duration::from_secs(60 * (40 - done)));
            lines.step(&Step {
                done,
                failed: u64::from(done > 30),
                left,
                next: (done < 40).then_some(&cell),
            });
        }
        lines.end();
        let text = String::from_utf8(lines.out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 11, "{text}");
        assert_eq!(lines[0], "run 7: probe: 40 samples");
        assert_eq!(lines[1], "run 7: 4 of 40 samples (10 %), about 36 min left");
        assert_eq!(lines[10], "run 7: 40 of 40 samples (100 %), 1 failed");
    }

    #[test]
    fn estimates_have_few_digits() {
        let of = |seconds: f64| remaining(Duration::from_secs_f64(seconds));
        assert_eq!(of(0.2), "about 1 s left");
        assert_eq!(of(99.0), "about 99 s left");
        assert_eq!(of(100.0), "about 2 min left");
        assert_eq!(of(7260.0), "about 2 h 1 min left");
    }
}
