//! What fio answers (`--output-format=json+`, HOWTO of fio, "JSON+ output").

use std::collections::BTreeMap;

use nearfar_runs::Histogram;
use serde::{Deserialize, Serialize};

/// Bins of one histogram: fio has at most 29 groups of 64.
const MAX_BINS: usize = 29 * 64;

/// Why an output of fio has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("fio printed no JSON{}", first_line(.0))]
    NoJson(String),
    #[error("cannot read the JSON of fio: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot read the JSON of fio: \"jobs\" has {0} entries instead of one")]
    Jobs(usize),
    #[error("fio reports error {0} for its job")]
    Job(i64),
    #[error("cannot read the JSON of fio: field \"bins\": {0:?} is not a time in nanoseconds")]
    Bin(String),
    #[error("cannot read the JSON of fio: field \"bins\": {0} entries are more than fio has")]
    Bins(usize),
    #[error("fio completed no I/O in the measured time")]
    NoIo,
    #[error("cannot read the JSON of fio: field \"{0}\" is not a number from 0 on")]
    Number(&'static str),
}

fn first_line(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty());
    line.map_or_else(String::new, |line| format!(": {}", line.trim()))
}

/// The figures of one job, or of several that fio reports as a group; reads and writes together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    pub fio_version: String,
    /// I/Os in the measured time.
    pub ios: u64,
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Completion latency.
    pub latency_mean_ns: f64,
    /// By the upper bounds of fio's bins, which are 1 to 2 % wide.
    pub latency_ns: Histogram,
    /// CPU time of fio's jobs in programs, in seconds.
    pub user_s: f64,
    /// The same in the kernel.
    pub system_s: f64,
    pub context_switches: u64,
    /// What its jobs took, all together, in seconds.
    pub jobs_s: f64,
}

#[derive(Deserialize)]
struct Output {
    #[serde(rename = "fio version")]
    version: String,
    jobs: Vec<JobOutput>,
}

#[derive(Deserialize)]
struct JobOutput {
    error: i64,
    read: Direction,
    write: Direction,
    /// Milliseconds.
    job_runtime: u64,
    /// Percent of `job_runtime`.
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
}

#[derive(Deserialize)]
struct Direction {
    /// Bytes a second.
    bw_bytes: f64,
    iops: f64,
    total_ios: u64,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    #[serde(rename = "N")]
    count: u64,
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

impl Answer {
    /// Reads what fio printed. Notices before and after the JSON are skipped.
    ///
    /// # Errors
    /// When there is no JSON, a field is missing or of another type, or the job failed or made no I/O.
    pub fn parse(content: &[u8]) -> Result<Self, AnswerError> {
        let text = String::from_utf8_lossy(content);
        let no_json = || AnswerError::NoJson(text.chars().take(200).collect());
        let mut starts = text.match_indices('{').filter(|&(at, _)| {
            // A notice may have a brace; fio's JSON begins a line.
            at == 0 || text.as_bytes()[at - 1] == b'\n'
        });
        let (start, _) = starts.next().ok_or_else(no_json)?;
        let output = serde_json::Deserializer::from_str(&text[start..])
            .into_iter::<Output>()
            .next()
            .ok_or_else(no_json)??;
        let [job] = output.jobs.as_slice() else {
            return Err(AnswerError::Jobs(output.jobs.len()));
        };
        job.answer(output.version)
    }
}

impl JobOutput {
    fn answer(&self, fio_version: String) -> Result<Answer, AnswerError> {
        if self.error != 0 {
            return Err(AnswerError::Job(self.error));
        }
        let both = [&self.read, &self.write];
        let ios = both
            .iter()
            .fold(0, |sum: u64, it| sum.saturating_add(it.total_ios));
        let mut latency_ns = Histogram::new();
        both.iter()
            .try_for_each(|it| it.clat_ns.record_in(&mut latency_ns))?;
        let timed = both.iter().map(|it| it.clat_ns.count as f64).sum::<f64>();
        let sum_ns = both
            .iter()
            .map(|it| it.clat_ns.mean * it.clat_ns.count as f64);
        let jobs_s = self.job_runtime as f64 / 1e3;
        let answer = Answer {
            fio_version,
            ios,
            iops: number("iops", self.read.iops + self.write.iops)?,
            bytes_per_s: number("bw_bytes", self.read.bw_bytes + self.write.bw_bytes)?,
            latency_mean_ns: number("mean", sum_ns.sum::<f64>() / timed.max(1.0))?,
            latency_ns,
            user_s: number("usr_cpu", self.usr_cpu / 100.0 * jobs_s)?,
            system_s: number("sys_cpu", self.sys_cpu / 100.0 * jobs_s)?,
            context_switches: self.ctx,
            jobs_s,
        };
        match ios > 0 && answer.iops > 0.0 {
            true => Ok(answer),
            false => Err(AnswerError::NoIo),
        }
    }
}

impl Latency {
    fn record_in(&self, histogram: &mut Histogram) -> Result<(), AnswerError> {
        if self.bins.len() > MAX_BINS {
            return Err(AnswerError::Bins(self.bins.len()));
        }
        for (bin, count) in &self.bins {
            let value = bin.parse().map_err(|_| AnswerError::Bin(bin.clone()))?;
            histogram.record_many(value, *count);
        }
        Ok(())
    }
}

fn number(field: &'static str, value: f64) -> Result<f64, AnswerError> {
    let is_good = value.is_finite() && value >= 0.0;
    is_good.then_some(value).ok_or(AnswerError::Number(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: &[u8] = include_bytes!("answer/fio-3.33-randread.json");
    const MIXED: &[u8] = include_bytes!("answer/fio-3.33-randrw-notices.txt");

    #[test]
    fn the_figures_are_those_of_fio() {
        let read = Answer::parse(READ).unwrap();
        assert_eq!(read.fio_version, "fio-3.33");
        assert_eq!(read.ios, read.latency_ns.count());
        let quantiles = read.latency_ns.quantiles().unwrap();
        // What fio itself has in "percentile", within a bin.
        let percentile = |name: &str| -> f64 {
            let all: serde_json::Value = serde_json::from_slice(READ).unwrap();
            all["jobs"][0]["read"]["clat_ns"]["percentile"][name]
                .as_f64()
                .unwrap()
        };
        for (ours, name) in [(quantiles.p50, "50.000000"), (quantiles.p99, "99.000000")] {
            let theirs = percentile(name);
            assert!(
                (ours as f64 - theirs).abs() < 0.02 * theirs,
                "{ours} {theirs}"
            );
        }
    }

    #[test]
    fn notices_around_the_json_are_skipped_and_both_directions_count() {
        assert!(MIXED.starts_with(b"fio: "));
        let mixed = Answer::parse(MIXED).unwrap();
        assert_eq!(mixed.ios, mixed.latency_ns.count());
        assert!(mixed.system_s > 0.0 && mixed.iops > 0.0);
    }

    #[test]
    fn what_has_no_answer_says_why() {
        let error = |text: &str| Answer::parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error(""), "fio printed no JSON");
        assert_eq!(
            error("fio: no such file\n"),
            "fio printed no JSON: fio: no such file"
        );
        assert!(error("{\"fio version\": \"x\"}").contains("missing field `jobs`"));
        let failed = String::from_utf8_lossy(READ).replace("\"error\" : 0", "\"error\" : 5");
        assert_eq!(error(&failed), "fio reports error 5 for its job");
        let half = &String::from_utf8_lossy(READ)[..READ.len() / 2];
        assert!(error(half).contains("EOF"), "{}", error(half));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text: String, at in 0..READ.len(), byte: u8) {
            let _ = Answer::parse(text.as_bytes());
            let mut changed = READ.to_vec();
            changed[at] = byte;
            let _ = Answer::parse(&changed);
        }
    }
}
