//! `nearfar top`: what the running system does, look by look.
//!
//! ```text
//! LiveMachine ──look──► Look, Tasks ──► report::top ──┬─► screen (state: view, order, filter, selection)
//!                                                      └─► --batch: a document or a JSON line a look
//! ```

mod keys;
mod order;
mod screen;
mod state;
mod table;
mod terminal;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use nearfar_live::{LiveMachine, Look, Options};
use nearfar_machine::Machine;
use nearfar_placement::tasks::{self, Filter, NodePair, TaskPlacement, Tasks, UnknownMemory};
use nearfar_report::top::View;
use rustix::stdio::stdout;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::args::{Colour, Format, FormatArgs, seconds};
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::signals;
use crate::task_filter::TaskFilterArgs;
use order::Order;

const SCHEMA: &str = "top/1";
/// Between two looks at the flags of signals and the keys.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// Watch tasks, nodes and interrupts live
///
/// Reads, and changes nothing. Looking takes at most 1.5 % of a CPU: on large machines looks become rarer than asked for.
#[derive(Args)]
#[command(
    after_long_help = "Examples:\n  nearfar top\n  nearfar top --name postgres --sort memory\n  \
                             nearfar top --batch --count 2\n  nearfar top --batch --format json --seconds 5"
)]
pub struct Top {
    #[command(flatten)]
    filter: TaskFilterArgs,
    /// Look again after this long
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: f64,
    /// Put tasks in this order
    #[arg(long, value_enum, value_name = "KEY", default_value_t = Order::Cost)]
    sort: Order,
    /// Print each look instead of drawing it: for logs and pipes
    #[arg(long)]
    batch: bool,
    /// End after this many looks
    #[arg(long, value_name = "LOOKS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print at most this many tasks of each look; 0 for all
    #[arg(long, value_name = "ROWS", default_value_t = 20, requires = "batch")]
    limit: usize,
    #[command(flatten)]
    format: FormatArgs,
}

/// One look as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    look: &'a Look,
    node_pairs: Vec<NodePair>,
    min_bytes: u64,
    tasks: &'a [TaskPlacement],
    unknown: &'a [UnknownMemory],
}

/// One look with its tasks.
struct Shown {
    look: Look,
    tasks: Tasks,
}

impl Shown {
    fn view<'a>(&'a self, machine: &'a Machine) -> View<'a> {
        View {
            machine,
            look: &self.look,
            tasks: &self.tasks,
        }
    }
}

impl Top {
    /// Draws or prints look after look, until it is ended.
    pub fn run(self, colour: Colour) -> Outcome {
        if !self.batch && self.format.format == Format::Json {
            return Err(Failure::input(anyhow::anyhow!(
                "--format json needs --batch: a screen has no format"
            )));
        }
        if !self.batch && !rustix::termios::isatty(stdout()) {
            return Err(Failure::input(anyhow::anyhow!(
                "standard output is not a terminal; --batch prints each look"
            )));
        }
        // Only this name says that a terminal cannot place text (terminfo(5)); crossterm asks for no more.
        if !self.batch && std::env::var_os("TERM").is_some_and(|name| name == "dumb") {
            return Err(Failure::input(anyhow::anyhow!(
                "cannot draw on a terminal of type dumb (TERM); --batch prints each look"
            )));
        }
        let ended = signals::flag_of(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]);
        let options = Options {
            min_bytes: self.filter.min_bytes(),
            pids: self.filter.pid.clone(),
            migrations: true,
        };
        let mut live = LiveMachine::new(options).map_err(Failure::input)?;
        let filter = self.filter.filter(live.machine(), true)?;
        match self.batch {
            true => self.print(&mut live, &filter, &ended, colour),
            false => screen::run(&self, &mut live, filter, &ended, colour),
        }
    }

    fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Looks, and leaves the tasks that were asked for in their order.
    fn look(
        &self,
        live: &mut LiveMachine,
        filter: &Filter,
        order: Order,
    ) -> Result<Shown, Failure> {
        let look = live.look().map_err(Failure::input)?;
        let tasks = self.tasks(live, &look, filter, order);
        Ok(Shown { look, tasks })
    }

    /// The tasks of a look that were asked for, in their order.
    fn tasks(&self, live: &LiveMachine, look: &Look, filter: &Filter, order: Order) -> Tasks {
        let mut tasks = live.tasks(look, filter);
        if !self.filter.pid.is_empty() {
            tasks
                .tasks
                .retain(|task| self.filter.pid.contains(&task.pid));
        }
        order.sort(&mut tasks.tasks);
        tasks
    }

    fn print(
        &self,
        live: &mut LiveMachine,
        filter: &Filter,
        ended: &AtomicBool,
        colour: Colour,
    ) -> Outcome {
        // The first look only says where counters stand.
        self.look(live, filter, self.sort)?;
        self.check(live)?;
        let mut printed = 0;
        while self.count.is_none_or(|count| printed < count) {
            if !rest(live.rest(self.interval()), ended) {
                break;
            }
            let shown = self.look(live, filter, self.sort)?;
            output::print(&self.text(&shown, live.machine(), colour)?)?;
            printed += 1;
        }
        Ok(())
    }

    fn text(&self, shown: &Shown, machine: &Machine, colour: Colour) -> Result<String, Failure> {
        if self.format.format == Format::Json {
            let answer = Answer {
                look: &shown.look,
                node_pairs: tasks::by_node_pair(&shown.tasks),
                min_bytes: shown.tasks.min_bytes,
                tasks: &shown.tasks.tasks,
                unknown: &shown.tasks.unknown,
            };
            return output::json_line(SCHEMA, Some(&machine.origin), &answer);
        }
        let rows = match self.limit {
            0 => usize::MAX,
            rows => rows,
        };
        let document = shown.view(machine).document(rows);
        Ok(format!("{}\n", document.to_text(&output::style(colour))))
    }

    /// A process or group that is not there is a target that does not exist.
    fn check(&self, live: &LiveMachine) -> Outcome {
        let machine = live.machine();
        let known = machine.tasks.get().into_iter().flatten();
        let known: Vec<i32> = known.map(|task| task.pid).collect();
        if let Some(missing) = self.filter.pid.iter().find(|pid| !known.contains(pid)) {
            return Err(Failure::input(anyhow::anyhow!(
                "there is no process {missing}, or none that this user can see (ps -e lists those)"
            )));
        }
        self.filter.check_group(machine)
    }
}

/// Waits; returns whether the time passed without a signal.
fn rest(time: Duration, ended: &AtomicBool) -> bool {
    let until = Instant::now() + time;
    while !ended.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(MAX_WAIT));
    }
    false
}
