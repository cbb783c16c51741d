//! `/proc/interrupts`: names, counts, and the CPUs that are online. Where an interrupt may go is in other files.

use nearfar_machine::{Cpu, CpuId, CpuSet, Interrupt, Irq, Known, queue_of};

use super::lines::Line;
use super::{Kind, Reading, Start, ends_in_digit};
use crate::sysfs::interrupts::{self, InterruptLine, Table, immovable_reason};
use crate::value;

pub(super) const KIND: Kind = Kind {
    name: "/proc/interrupts",
    has: "interrupts and online CPUs",
    starts: &[Start::before(
        &["CPU"],
        r"(?:^|\W)(CPU\d+(?:\s+CPU\d+)*)\s*$",
        r"^\s*(?:CPU\d+(?:\s+CPU\d+)*\s*$|\w+:\s+\d+(?:\s|$))",
    )
    .if_likely(ends_in_digit)],
    goes_on: r"^\s*\w+:\s+\d+(?:\s|$)",
    read,
};

/// What the line with the CPUs begins with.
const HEADING: &str = "CPU";

fn read(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let is_head = |line: &&Line| line.text.trim_start().starts_with(HEADING);
    let Some(head) = lines.first().filter(is_head) else {
        return Err("the line with the CPUs is missing".to_owned());
    };
    let mut heads = String::new();
    let rows = lines.iter().position(|line| !is_head(&line));
    let rows = rows.unwrap_or(lines.len());
    for line in &lines[..rows] {
        heads.push_str(&line.text);
        heads.push(' ');
    }
    let is_folded = rows > 1;
    if is_folded {
        let message = "the line with the CPUs is folded: the counts of interrupts are unknown";
        reading.warnings.note_line(head.number, message);
    }
    let mut text = format!("{heads}\n");
    reading.is_second(HEADING, head.number);
    for line in &lines[rows..] {
        if is_head(&line) && reading.is_second(HEADING, line.number) {
            break;
        }
        text.push_str(&line.text);
        text.push('\n');
    }
    let table = Table::parse(text.as_bytes()).map_err(|error| error.to_string())?;
    let cpus = heads.split_whitespace();
    let cpus: CpuSet = cpus
        .filter_map(|word| value::id::<CpuId>(word.strip_prefix("CPU")?))
        .collect();
    reading.machine.cpus = cpus.iter().map(|cpu| Cpu::new(cpu, None)).collect();
    let device_of = |line: &InterruptLine| interrupts::by_source(&line.source, &[]);
    let device_unknown_reason = |line: &InterruptLine| {
        let chip = &line.source.chip;
        let is_unknown = interrupts::is_pci_message(chip) && device_of(line).is_none();
        is_unknown.then(|| format!("{chip} does not name the PCI function"))
    };
    let interrupt = |(number, line): (u32, &InterruptLine)| Interrupt {
        device: device_of(line),
        device_unknown_reason: device_unknown_reason(line),
        immovable_reason: immovable_reason(Some(&line.name), Some(&line.source), false),
        queue: queue_of(&line.name),
        count: match is_folded {
            true => Known::no("the rows of the table are folded"),
            false => Known::Yes(line.count),
        },
        name: line.name.clone(),
        ..Interrupt::unknown(Irq(number), reading.reason.clone())
    };
    let mut interrupts: Vec<_> = table.iter().map(interrupt).collect();
    interrupts.sort_by_key(|interrupt| interrupt.irq);
    reading.machine.interrupts = Known::Yes(interrupts);
    Ok(())
}
