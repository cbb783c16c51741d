//! Measures nothing, to test the command with: two metrics, a slow and a failing cell, a setting, files, a server.

use std::{
    path::PathBuf, process::Command, sync::atomic::AtomicBool, thread::sleep, time::Duration,
};

use clap::Args as _;
use nearfar_experiment::{Better, BoxError, Cell, Change, Column, Experiment, Metric};
use nearfar_experiment::{Process, Resources, RunPlan};
use serde::Serialize;

use crate::registry::{Arguments, Declaration, Entry, RunError, Varied};

pub(crate) const DECLARATION: Declaration = Declaration {
    name: "mock",
    about: "Measure nothing, to test the frame of experiments",
    examples: &["--samples 20 --label quiet", "--resume"],
    is_hidden: true,
    is_of_machine: false,
    needs_devices: false,
    is_simulated: false,
    samples: 10,
    factors: &[
        Varied::new("speed", &["fast", "slow", "failing"], &["fast", "slow"]),
        Varied::new("zone_reclaim", &["keep", "0", "1"], &["keep"]),
    ],
    options: Parameters::augment_args,
};

pub(crate) const ENTRY: Entry = Entry {
    declaration: DECLARATION,
    carry_out: |request| request.carry_out(|given, _| Ok(Mock::new(given)?.into())),
};

#[derive(Clone, clap::Args, Serialize)]
struct Parameters {
    /// A slow sample's time
    #[arg(long, value_name = "N", default_value = "5")]
    slow_ms: u32,
}

pub(crate) struct Mock {
    plan: RunPlan,
    parameters: Parameters,
    server: Option<Process>,
    /// Of the cell.
    directory: PathBuf,
}

impl Mock {
    pub(crate) fn new(arguments: &Arguments) -> Result<Self, RunError> {
        let parameters: Parameters = arguments.parameters()?;
        Ok(Self {
            plan: arguments.plan(&parameters),
            parameters,
            server: None,
            directory: PathBuf::new(),
        })
    }
}

impl Experiment for Mock {
    /// Latency in microseconds, and how many nodes the server sees.
    type Sample = (f64, i64);

    fn name(&self) -> &str {
        DECLARATION.name
    }

    fn plan(&self) -> RunPlan {
        self.plan.clone()
    }

    fn columns() -> Vec<Column<Self::Sample>> {
        let latency = Metric::real("latency_us", "us", Better::Lower).primary();
        let nodes = Metric::integer("nodes", "", Better::Higher);
        vec![
            Column::new(latency, |&(latency, _)| Some(latency)),
            Column::new(nodes, |&(_, nodes)| Some(nodes)),
        ]
    }

    fn settings(&self, cell: &Cell) -> Vec<Change> {
        let value = cell.text("zone_reclaim");
        let change = Change::sysctl("vm.zone_reclaim_mode", &value);
        Vec::from_iter((value != "keep").then_some(change))
    }

    fn setup(&mut self, resources: &mut Resources) -> Result<(), BoxError> {
        let mut count = Command::new("sh");
        count.args(["-c", "while read files; do set -- $files; echo $#; done"]);
        self.server = Some(resources.start_with_pipes(count)?);
        Ok(())
    }

    fn setup_cell(&mut self, _: &Cell, resources: &mut Resources) -> Result<(), BoxError> {
        self.directory = resources.temporary_directory()?;
        Ok(std::fs::write(self.directory.join("file"), "of the cell")?)
    }

    fn run(&mut self, cell: &Cell, cancel: &AtomicBool) -> Result<Self::Sample, BoxError> {
        let server = self.server.as_mut().ok_or("no server")?;
        let answer = server.ask("/sys/devices/system/node/node[0-9]*", cancel)?;
        match cell.text("speed").as_str() {
            "failing" => return Err("this cell always fails".into()),
            "slow" => {
                std::fs::write(self.directory.join("sample"), "has begun")?;
                sleep(Duration::from_millis(self.parameters.slow_ms.into()));
            }
            _ => return Ok((1.5, answer.parse()?)),
        }
        Ok((1e3 * f64::from(self.parameters.slow_ms), answer.parse()?))
    }
}
