//! What the keeper of a control group did.

use nearfar_machine::Emulation;
use nearfar_prefer::cgroup::GroupReport;

use super::times;
use crate::document::Document;
use crate::style::Role::Warning;

/// How a group was kept through its cpuset, how often it was released, what that cost.
pub fn document(
    group: &str,
    how: &str,
    near: Option<&str>,
    report: &GroupReport,
    emulation: Option<&Emulation>,
) -> Document {
    let remark = format!("CPUs {}; {:.1} s", report.cpus, report.seconds);
    let mut out = Document::titled(format!("Control group {group}"), remark);
    near.into_iter()
        .for_each(|near| out.paragraph(format!("near: {near}")));
    out.paragraph(format!("kept {how}"));
    out.paragraph(match report.widened {
        0 => "it never had to be released".to_owned(),
        often => {
            let (times, seconds) = (times(often), report.wide_s);
            format!("released {times} while the node was full, for {seconds:.1} s")
        }
    });
    let percent = 100.0 * report.cpu_s / report.seconds.max(1e-9);
    out.remark(format!("the keeper took {percent:.2} % of a CPU"));
    if let Some(ended) = &report.ended {
        out.paragraph(Warning.text(format!("ended early: {ended}")));
    }
    emulation
        .into_iter()
        .for_each(|it| out.paragraph(Warning.text(it)));
    out
}
