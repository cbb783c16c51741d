//! `nearfar bench probe --once`: one run of one cell, nothing set, nothing stored.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nearfar_bench::matrix::{self, Matrix, MatrixCell, Policy, Sample};
use nearfar_bench::probe::{ChildError, Where};
use nearfar_machine::{Emulation, Machine};
use serde::Serialize;

use super::{PROGRAM, Probe, refusal};
use crate::args::{Colour, Format};
use crate::failure::{Failure, Outcome};
use crate::output;

/// The answer.
#[derive(Serialize)]
struct Once<'a> {
    #[serde(flatten)]
    cell: MatrixCell,
    #[serde(flatten)]
    sample: &'a Sample,
    emulation: Option<&'a Emulation>,
}

impl Probe {
    pub(super) fn once(&self, machine: &Machine, cancel: &AtomicBool, colour: Colour) -> Outcome {
        let place = |asked: &[Where], option: &str| match asked {
            [] => Ok(Where::Floating),
            [place] => Ok(*place),
            _ => Err(Failure::Input(anyhow::anyhow!(
                "--once takes one place for {option}, not {}",
                asked.len()
            ))),
        };
        let memory = place(&self.cells.memory, "--memory")?;
        let cpus = place(&self.cells.cpus, "--cpus")?;
        let numa_balancing = matrix::is_balancing(machine).known() == Some(true);
        let cell = MatrixCell {
            policy: Policy {
                preferred_node: None,
                numa_balancing,
            },
            memory_node: memory,
            cpu_node: cpus,
        };
        let (mut parameters, warnings) =
            self.parameters(&matrix::places(machine), machine, vec![cell], Vec::new())?;
        if self.setup.steps.is_none() {
            let found = matrix::calibrate(
                machine,
                Path::new(PROGRAM),
                &parameters,
                self.setup.seconds,
                cancel,
            );
            parameters.steps = found.map_err(refusal)?.steps;
        }
        let mut matrix = Matrix::new(machine, PathBuf::from(PROGRAM), parameters);
        let taken = matrix.once(&cell, cancel);
        let sample = taken.map_err(|error| match error.downcast::<ChildError>() {
            Ok(error) => refusal(*error),
            Err(error) => Failure::Refused(anyhow::Error::from_boxed(error)),
        })?;
        let emulation = machine.origin.emulation.as_ref();
        output::print(&match self.format.format {
            Format::Table => {
                let style = output::style(colour);
                nearfar_report::probe::once(
                    &cell,
                    matrix.parameters(),
                    &sample,
                    &warnings,
                    emulation,
                )
                .to_text(&style)
            }
            Format::Json => output::json(
                "bench-probe-once/1",
                Some(&machine.origin),
                &Once {
                    cell,
                    sample: &sample,
                    emulation,
                },
            )?,
        })
    }
}
