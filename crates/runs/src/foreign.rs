//! Results of other programs as runs, so that they are compared as nearfar's own are.
//!
//! ```text
//! hyperfine --export-json     {"results": [{"command", "times", "parameters"}]}       a cell a command, a sample a time
//! fio --output-format=json    {"fio version", "jobs": [{"jobname", "read", "write"}]} a cell a job, one sample
//! perf stat -j                {"counter-value", "unit", "event", "interval"} a line   one cell, a sample an interval
//! mlc                         matrices of latency and bandwidth by node      a run each, as of `bench latency` and
//!                                                                            `bench bandwidth`: a cell a pair, one sample
//! ```
//!
//! None of them says on which machine it was. Their samples were not taken in rounds, so each has a round of its own and they are
//! compared unpaired.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use nearfar_machine::{Machine, Origin, SourceKind};
use nearfar_sources::text::mlc_figures;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::cell::{Cell, Factor, Level};
use crate::export::SCHEMA;
use crate::metric::{Better, Metric, MetricValue, Values, metric_name};

/// What is wrong with the results of a program.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    #[error("results of {program}: {error}")]
    Json {
        program: &'static str,
        #[source]
        error: serde_json::Error,
    },
    #[error("results of {program} without {what}")]
    Missing {
        program: &'static str,
        what: &'static str,
    },
}

/// The results of a program.
struct Results {
    program: &'static str,
    /// The name of the run's experiment: runs of one are compared.
    experiment: &'static str,
    metrics: Vec<Metric>,
    /// In the order of the file: values, or why there are none.
    samples: Vec<(Cell, Result<Values, String>)>,
    /// What may be wrong with all of them, in sentences.
    warnings: Vec<String>,
    /// Seconds since 1970 when they were measured, where they say it.
    at_s: Option<f64>,
}

/// What only one program's results have.
const MARKS: [(&str, &str); 3] = [
    ("perf-stat", "\"counter-value\""),
    ("fio", "\"fio version\""),
    ("hyperfine", "\"times\""),
];
/// It stands in so many bytes.
const MARKED_BYTES: usize = 4096;

/// The keys by which results are told apart, of which nothing is kept.
#[derive(Deserialize)]
struct Keys {
    #[serde(rename = "counter-value")]
    counter: Option<IgnoredAny>,
    #[serde(rename = "fio version")]
    fio: Option<IgnoredAny>,
    results: Option<Vec<IgnoredAny>>,
}

/// An export with the results of another program as a run; `None` where the text is none of these programs'.
///
/// # Errors
/// Results that cannot be read, or without any.
pub(crate) fn export_of(text: &[u8]) -> Result<Option<Vec<u8>>, ForeignError> {
    let json = without_comments(text);
    let mut values = serde_json::Deserializer::from_slice(&json).into_iter::<Keys>();
    let found = match values.next() {
        Some(Ok(Keys {
            counter: Some(_), ..
        })) => vec![perf_stat(&json)?],
        Some(Ok(Keys { fio: Some(_), .. })) => vec![fio(&json)?],
        Some(Ok(Keys {
            results: Some(_), ..
        })) => vec![hyperfine(&json)?],
        other => {
            let start = String::from_utf8_lossy(&json[..json.len().min(MARKED_BYTES)]);
            let mark = MARKS.iter().find(|(_, mark)| start.contains(mark));
            match (other, mark) {
                (Some(Err(_)), _) if is_export(&json) => return Ok(None),
                (Some(Err(error)), Some(&(program, _))) => {
                    return Err(ForeignError::Json { program, error });
                }
                _ => mlc(&String::from_utf8_lossy(text))?,
            }
        }
    };
    let runs = (1..).zip(found).map(|(number, it)| it.run(number, text));
    let runs: Vec<Value> = runs.collect();
    let export = || json!({"schema": SCHEMA, "runs": runs}).to_string();
    Ok((!runs.is_empty()).then(|| export().into_bytes()))
}

/// Whether the text, which may be cut, is one of nearfar's own.
pub(crate) fn is_export(text: &[u8]) -> bool {
    let start = &text[..text.len().min(MARKED_BYTES)];
    String::from_utf8_lossy(start).contains("\"schema\"")
}

/// Without a byte order mark and the lines that `perf stat -o` begins a file with.
fn without_comments(text: &[u8]) -> Cow<'_, [u8]> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if !text.starts_with(b"#") {
        return text.into();
    }
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    let lines: Vec<&[u8]> = lines.filter(|line| !line.starts_with(b"#")).collect();
    lines.concat().into()
}

impl Results {
    /// With a name that the same text always gets.
    fn run(self, number: u32, text: &[u8]) -> Value {
        let mut digest = Sha256::new_with_prefix(text);
        if self.experiment != self.program {
            digest.update(self.experiment);
        }
        let uid: String = digest
            .finalize()
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mut counts: BTreeMap<&Cell, usize> = BTreeMap::new();
        let mut cells: Vec<Cell> = Vec::new();
        for (cell, _) in &self.samples {
            let count = counts.entry(cell).or_default();
            *count += 1;
            if *count == 1 {
                cells.push(cell.clone());
            }
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let failed = self
            .samples
            .iter()
            .filter(|(_, values)| values.is_err())
            .count();
        // 0 is unknown.
        let at_s = self.at_s.unwrap_or_default();
        let taken = (1..).zip(&self.samples).map(|(number, (cell, result))| {
            let (values, failed) = match result {
                Ok(values) => (values.clone(), None),
                Err(reason) => (Values::new(), Some(reason)),
            };
            json!({
                "number": number, "round": number, "cell": cell, "started_at_s": at_s, "took_s": 0.0, "values": values,
                "failed": failed, "warnings": [], "detail": null,
            })
        });
        let program = self.program;
        let more = match self.at_s {
            Some(_) => " and with which kernel",
            None => ", with which kernel and when",
        };
        let unknown = format!(
            "the results of {program} do not say on which machine{more} they were measured"
        );
        let origin = Origin::new(SourceKind::Text, format!("results of {program}"));
        let machine = Machine::empty(origin, unknown.clone());
        let warnings = [vec![unknown], self.warnings].concat();
        json!({
            "run": number, "uid": uid, "experiment": self.experiment, "title": format!("results of {program}"), "label": null,
            "state": "complete", "failure": null, "started_at_s": at_s, "finished_at_s": null,
            "samples": self.samples.len(), "with_warnings": 0, "failed": failed, "cells": cells.len(), "samples_per_cell": most,
            "host": "unknown", "kernel": "unknown", "emulation": null, "nearfar": "", "fingerprint": "unknown",
            "owner": {"pid": 0, "started_ticks": 0, "boot": "", "pid_namespace": ""},
            "parameters": {}, "factors": Factor::of_cells(&cells), "plan": cells, "metrics": self.metrics, "seed": 0,
            "warnings": warnings, "kernel_version": "", "kernel_command_line": "", "machine": machine,
            "taken": taken.collect::<Vec<Value>>(),
        })
    }
}

fn read<'a, T: Deserialize<'a>>(program: &'static str, text: &'a [u8]) -> Result<T, ForeignError> {
    serde_json::from_slice(text).map_err(|error| ForeignError::Json { program, error })
}

fn hyperfine(text: &[u8]) -> Result<Results, ForeignError> {
    const PROGRAM: &str = "hyperfine";
    #[derive(Deserialize)]
    struct HyperfineFile {
        results: Vec<Measured>,
    }
    #[derive(Deserialize)]
    struct Measured {
        command: String,
        times: Option<Vec<f64>>,
        #[serde(default)]
        exit_codes: Vec<Option<i32>>,
        #[serde(default)]
        parameters: BTreeMap<String, String>,
    }
    let file: HyperfineFile = read(PROGRAM, text)?;
    // With --parameter-list a cell is its parameters, unless several commands have the same; without it its command.
    let sets = file.results.iter().map(|it| &it.parameters);
    let sets: BTreeSet<&BTreeMap<String, String>> = sets.collect();
    let is_by_command = sets.len() < file.results.len() || sets.iter().any(|it| it.is_empty());
    let mut samples = Vec::new();
    let mut seen: BTreeMap<Cell, i64> = BTreeMap::new();
    for result in &file.results {
        let mut cell = Cell::new();
        if is_by_command {
            cell = cell.with("command", result.command.as_str());
        }
        for (name, value) in &result.parameters {
            let number = value.parse().ok().map(Level::Number);
            cell = cell.with(name, number.unwrap_or_else(|| value.as_str().into()));
        }
        let again = seen.entry(cell.clone()).or_default();
        *again += 1;
        if *again > 1 {
            cell = cell.with("again", *again);
        }
        let times = result.times.as_ref().ok_or(ForeignError::Missing {
            program: PROGRAM,
            what: "\"times\": an export of --export-json has the time of each run",
        })?;
        for (index, &time) in times.iter().enumerate() {
            // `null` where a signal ended it.
            let code = result.exit_codes.get(index).copied().unwrap_or(Some(0));
            let taken = match code {
                Some(0) if time > 0.0 => Ok(Values::from([("elapsed_s".to_owned(), time.into())])),
                Some(0) => Err(format!("its time is {time} s")),
                Some(code) => Err(format!("its exit code was {code}")),
                None => Err("it was ended by a signal".to_owned()),
            };
            samples.push((cell.clone(), taken));
        }
    }
    let metrics = vec![Metric::elapsed().primary()];
    with_samples(PROGRAM, metrics, samples, Vec::new())
}

fn fio(text: &[u8]) -> Result<Results, ForeignError> {
    const PROGRAM: &str = "fio";
    #[derive(Deserialize)]
    struct FioFile {
        jobs: Vec<Job>,
        timestamp: Option<f64>,
    }
    #[derive(Deserialize)]
    struct Job {
        jobname: String,
        #[serde(default)]
        error: i64,
        read: Option<Direction>,
        write: Option<Direction>,
    }
    #[derive(Deserialize)]
    struct Direction {
        iops: f64,
        #[serde(default)]
        bw_bytes: f64,
        #[serde(default)]
        clat_ns: Latency,
    }
    #[derive(Deserialize, Default)]
    struct Latency {
        mean: Option<f64>,
        #[serde(default)]
        percentile: BTreeMap<String, f64>,
    }
    let file: FioFile = read(PROGRAM, text)?;
    let mut samples = Vec::new();
    // Clones of a job (--numjobs without --group_reporting) have one name: each is a cell.
    let mut clones: BTreeMap<String, i64> = BTreeMap::new();
    for job in file.jobs {
        let clone = clones.entry(job.jobname.clone()).or_default();
        *clone += 1;
        let directions = [("read", &job.read), ("write", &job.write)];
        let used = directions
            .iter()
            .filter_map(|(name, it)| Some((*name, it.as_ref()?)));
        for (name, direction) in used.filter(|(_, it)| it.iops > 0.0) {
            let cell = Cell::new().with("job", job.jobname.as_str());
            let cell = cell.with("direction", name).with("clone", *clone);
            let mut values = Values::from([
                ("iops".to_owned(), direction.iops.into()),
                ("bytes_per_s".to_owned(), direction.bw_bytes.into()),
            ]);
            let latency = &direction.clat_ns;
            let p99 = latency.percentile.get("99.000000").copied();
            for (name, value) in [("latency_mean_ns", latency.mean), ("latency_p99_ns", p99)] {
                values.extend(value.map(|value| (name.to_owned(), MetricValue::from(value))));
            }
            let taken = match job.error {
                0 => Ok(values),
                error => Err(format!("fio says error {error}")),
            };
            samples.push((cell, taken));
        }
    }
    let metrics = vec![
        Metric::real("iops", "1/s", Better::Higher).primary(),
        Metric::real("bytes_per_s", "B/s", Better::Higher),
        Metric::real("latency_mean_ns", "ns", Better::Lower),
        Metric::real("latency_p99_ns", "ns", Better::Lower),
    ];
    let results = with_samples(PROGRAM, metrics, samples, Vec::new())?;
    Ok(Results {
        at_s: file.timestamp.filter(|at_s| (1.0..1e11).contains(at_s)),
        ..results
    })
}

fn perf_stat(text: &[u8]) -> Result<Results, ForeignError> {
    const PROGRAM: &str = "perf-stat";
    #[derive(Deserialize)]
    struct Counter {
        interval: Option<f64>,
        #[serde(rename = "counter-value")]
        value: Option<String>,
        #[serde(default)]
        unit: String,
        event: Option<String>,
        variance: Option<f64>,
        /// With -A, --per-socket and others: of which part of the machine.
        #[serde(flatten)]
        others: Map<String, Value>,
    }
    const PARTS: [&str; 7] = ["cpu", "core", "die", "socket", "node", "thread", "cgroup"];
    type Key = (Option<u64>, Cell);
    let mut metrics: Vec<Metric> = Vec::new();
    let mut order: Vec<Key> = Vec::new();
    let mut taken: BTreeMap<Key, Values> = BTreeMap::new();
    let mut is_mean = false;
    for counter in serde_json::Deserializer::from_slice(text).into_iter::<Counter>() {
        let counter = counter.map_err(|error| ForeignError::Json {
            program: PROGRAM,
            error,
        })?;
        is_mean |= counter.variance.is_some();
        // "<not counted>" and "<not supported>" are no numbers; lines of derived metrics have no event.
        let number = counter.value.and_then(|it| it.parse::<f64>().ok());
        let number = number.filter(|it| it.is_finite());
        let (Some(number), Some(event)) = (number, counter.event) else {
            continue;
        };
        let name = metric_name(&event);
        if metrics.iter().all(|it| it.name != name) {
            // A count of an event, or a time: less of it is better.
            let metric = Metric::real(name.as_str(), counter.unit, Better::Lower);
            metrics.push(match metrics.is_empty() {
                true => metric.primary(),
                false => metric,
            });
        }
        let mut cell = Cell::new();
        for part in PARTS {
            if let Some(value) = counter.others.get(part) {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                cell = cell.with(part, text);
            }
        }
        let key = (counter.interval.map(f64::to_bits), cell);
        let values = taken.entry(key.clone()).or_insert_with(|| {
            order.push(key);
            Values::new()
        });
        values.insert(name, number.into());
    }
    // An interval without the first counter says nothing by which it is compared.
    let primary = metrics
        .first()
        .map(|it| it.name.clone())
        .unwrap_or_default();
    let samples = order.into_iter().filter_map(|key| {
        let values = taken.remove(&key).filter(|it| it.contains_key(&primary))?;
        Some((key.1, Ok(values)))
    });
    let mean =
        "each sample is the mean of several repetitions (perf stat -r), whose spread is not kept";
    let warnings = Vec::from_iter(is_mean.then(|| mean.to_owned()));
    with_samples(PROGRAM, metrics, samples.collect(), warnings)
}

/// None where no line of the text is mlc's.
fn mlc(text: &str) -> Result<Vec<Results>, ForeignError> {
    const PROGRAM: &str = "mlc";
    let Some(read) = mlc_figures(text) else {
        return Ok(Vec::new());
    };
    // As `bench latency` and `bench bandwidth` declare them.
    let latency = Metric::real("latency_ns", "ns", Better::Lower);
    let bandwidth = Metric::real("read_bytes_per_s", "B/s", Better::Higher);
    let matrices = [
        ("latency", latency, read.latency_ns),
        ("bandwidth", bandwidth, read.read_bytes_per_s),
    ];
    let measured = matrices.into_iter().filter(|it| !it.2.is_empty());
    let results = measured.map(|(experiment, metric, figures)| Results {
        program: PROGRAM,
        experiment,
        samples: figures
            .into_iter()
            .map(|((cpu_node, memory_node), figure)| {
                let cell = Cell::new().with("cpu_node", cpu_node.0);
                let values = Values::from([(metric.name.clone(), figure.into())]);
                (cell.with("memory_node", memory_node.0), Ok(values))
            })
            .collect(),
        metrics: vec![metric.clone().primary()],
        warnings: read.left_out.clone(),
        at_s: None,
    });
    let results: Vec<Results> = results.collect();
    match results.is_empty() {
        true => Err(ForeignError::Missing {
            program: PROGRAM,
            what: "a matrix of latencies, or of bandwidths of reads, by node below its heading",
        }),
        false => Ok(results),
    }
}

fn with_samples(
    program: &'static str,
    metrics: Vec<Metric>,
    samples: Vec<(Cell, Result<Values, String>)>,
    warnings: Vec<String>,
) -> Result<Results, ForeignError> {
    match samples.is_empty() {
        true => Err(ForeignError::Missing {
            program,
            what: "a figure",
        }),
        false => Ok(Results {
            program,
            experiment: program,
            metrics,
            samples,
            warnings,
            at_s: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    fn imported(text: &str) -> (crate::run::Run, crate::run::Detail, Vec<crate::run::Sample>) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
        let first = store.import(text.as_bytes()).unwrap();
        let again = store.import(text.as_bytes()).unwrap();
        assert_eq!((first.runs.len(), again.already), (1, first.runs.clone()));
        let run = first.runs[0];
        (
            store.run(run).unwrap(),
            store.detail(run).unwrap(),
            store.samples(run).unwrap(),
        )
    }

    #[test]
    fn times_of_hyperfine_are_samples_of_its_commands_or_parameters() {
        let (run, detail, samples) = imported(
            r#"{"results": [
                {"command": "sleep 0.1", "mean": 0.1, "times": [0.101, 0.102], "exit_codes": [0, 0]},
                {"command": "sleep 0.2", "mean": 0.2, "times": [0.201]}]}"#,
        );
        assert_eq!(
            (
                run.experiment.as_str(),
                run.samples,
                run.cells,
                run.samples_per_cell
            ),
            ("hyperfine", 3, 2, 2)
        );
        assert_eq!(samples[1].number("elapsed_s"), Some(0.102));
        assert_eq!(samples[2].cell.text("command"), "sleep 0.2");
        assert!(detail.warnings[0].contains("which machine"));
        // They were not taken in rounds.
        let rounds: Vec<u32> = samples.iter().map(|it| it.round).collect();
        assert_eq!(rounds, [1, 2, 3]);
        let (_, detail, samples) = imported(
            r#"{"results": [{"command": "./job 4", "times": [1.5], "parameters": {"threads": "4", "mode": "fast"}}]}"#,
        );
        assert_eq!(samples[0].cell.level("threads"), Some(&Level::Number(4)));
        assert_eq!(detail.factors.len(), 2);
        // Two commands with the same parameters, one of them twice; a run that failed.
        let (run, detail, samples) = imported(
            r#"{"results": [
                {"command": "./a 1", "times": [1.0], "parameters": {"threads": "1"}},
                {"command": "./b 1", "times": [9.0, 2.0], "exit_codes": [0, 3], "parameters": {"threads": "1"}},
                {"command": "./b 1", "times": [8.0], "parameters": {"threads": "1"}}]}"#,
        );
        assert_eq!((run.cells, run.failed, detail.plan.len()), (3, 1, 3));
        assert_eq!(samples[2].failed.as_deref(), Some("its exit code was 3"));
    }

    #[test]
    fn jobs_of_fio_are_cells_by_direction() {
        let (run, _, samples) = imported(
            r#"{"fio version": "fio-3.33", "timestamp": 1796125789, "jobs": [{"jobname": "a",
                "read": {"iops": 1000.5, "bw_bytes": 4098048, "clat_ns": {"mean": 900.0, "percentile": {"99.000000": 2000}}},
                "write": {"iops": 0.0, "bw_bytes": 0}}]}"#,
        );
        assert_eq!((run.experiment.as_str(), samples.len()), ("fio", 1));
        assert_eq!(run.started_at_s, 1_796_125_789.0);
        assert_eq!(samples[0].cell.text("direction"), "read");
        let number = |name| samples[0].number(name);
        assert_eq!(
            (number("iops"), number("latency_p99_ns")),
            (Some(1000.5), Some(2000.0))
        );
    }

    #[test]
    fn counters_of_perf_are_metrics_and_intervals_samples() {
        let (run, detail, samples) = imported(
            r#"{"interval" : 1.001, "counter-value" : "1001.2", "unit" : "msec", "event" : "task-clock", "metric-value" : "1.0"}
               {"interval" : 1.001, "counter-value" : "12.0", "unit" : "", "event" : "context-switches"}
               {"metric-value" : "3.1", "metric-unit" : "insn per cycle"}
               {"interval" : 2.002, "counter-value" : "1003.0", "unit" : "msec", "event" : "task-clock"}
               {"interval" : 2.002, "counter-value" : "<not counted>", "unit" : "", "event" : "context-switches"}"#,
        );
        assert_eq!((run.experiment.as_str(), samples.len()), ("perf-stat", 2));
        assert_eq!(detail.metrics[0].name, "task_clock");
        assert_eq!(samples[0].number("context_switches"), Some(12.0));
        assert_eq!(
            samples[1].number("context_switches"),
            None,
            "not counted is not 0"
        );
        let (run, detail, _) = imported(
            "# started on Sat Nov 28\n\n{\"cpu\": \"0\", \"counter-value\": \"1.0\", \"event\": \"cycles\", \"variance\": 2.0}\n\
             {\"cpu\": \"1\", \"counter-value\": \"2.0\", \"event\": \"cycles\"}",
        );
        assert_eq!((run.cells, run.samples, detail.warnings.len()), (2, 2, 2));
    }

    #[test]
    fn matrices_of_mlc_are_runs_as_of_bench_latency_and_bandwidth() {
        const TEXT: &str = "Intel(R) Memory Latency Checker - v3.9a\n\
            Measuring idle latencies (in ns)...\n\t\tNuma node\nNuma node\t     0\t     1\n       0\t  81.5\t 139.6\n       1\t 139.4\t     -\n\n\
            Measuring Memory Bandwidths between nodes within system\nUsing Read-only traffic type\n\t\tNuma node\n\
            Numa node\t     0\t     1\n       0\t112000.5\t34000.0\n       1\t34001.0\t111000.0\n";
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
        let mut runs = |text: &str| {
            let runs = store.import(text.as_bytes()).unwrap().runs;
            let whole = runs.into_iter().map(|run| {
                let (of_run, detail) = (store.run(run).unwrap(), store.detail(run).unwrap());
                (
                    of_run.experiment,
                    detail.warnings.len(),
                    store.samples(run).unwrap(),
                )
            });
            whole.collect::<Vec<_>>()
        };
        let found = runs(TEXT);
        let names: Vec<_> = found
            .iter()
            .map(|it| (it.0.as_str(), it.1, it.2.len()))
            .collect();
        assert_eq!(names, [("latency", 1, 3), ("bandwidth", 1, 4)]);
        let pair = &found[0].2[1];
        assert_eq!(pair.number("latency_ns"), Some(139.6));
        assert_eq!(pair.cell.level("memory_node"), Some(&Level::Number(1)));
        assert_eq!(found[1].2[3].number("read_bytes_per_s"), Some(111_000e6));
        // Traffic that is not named is not of reads alone; of two outputs the first counts.
        let found = runs(&format!(
            "{}{TEXT}",
            TEXT.replace("Using Read-only traffic type\n", "")
        ));
        assert_eq!((found.len(), found[0].1), (1, 3));
        let headless = TEXT.split_once("Read-only").unwrap().1;
        let error = store.import(headless.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("results of mlc without a matrix"), "{error}");
    }

    #[test]
    fn what_is_no_result_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(&folder.path().join("runs.db")).unwrap();
        let utf_16 = store.import(b"\xff\xfe{\0").unwrap_err().to_string();
        assert!(utf_16.contains("UTF-16"), "{utf_16}");
        let mut error = |text: &str| store.import(text.as_bytes()).unwrap_err().to_string();
        assert!(error(r#"{"results": [{"command": "x", "mean": 1.0}]}"#).contains("\"times\""));
        assert!(error(r#"{"results": []}"#).contains("without a figure"));
        assert!(error(r#"{"results": [{"command": 7}]}"#).contains("results of hyperfine"));
        assert!(
            error(r#"{"counter-value": "<not supported>", "event": "cycles"}"#)
                .contains("without a figure")
        );
        assert!(error(r#"{"x": 1}"#).contains("no schema"));
        assert!(error("nothing").contains("neither exported runs"));
        assert!(error(r#"{"schema": "runs-export/2", "runs": ["#).contains("cannot read"));
        let cut = r#"{"results": [{"command": "x", "times": [1.0, NaN]}]}"#;
        assert!(error(cut).contains("results of hyperfine"));
    }
}
