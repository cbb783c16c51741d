//! `nvme list-subsys` of nvme-cli, as text and as JSON (`-o json`).
//!
//! ```text
//! nvme-subsys0 - NQN=nqn.2014.08.org.nvmexpress:1344
//!                hostnqn=nqn.2014-08.org.nvmexpress:uuid:...
//!                iopolicy=numa                                   since version 2.5
//! \
//!  +- nvme0 pcie 0000:21:00.0 live optimized                     ANA state where a namespace was named
//!  +- nvme1 tcp traddr=10.0.0.1,trsvcid=4420 live
//! ```

use nearfar_machine::{
    IoPolicy, Known, Machine, NvmeController, NvmeSubsystem, Origin, SourceKind,
};
use serde_json::Value;

use super::lines::Line;
use super::{Kind, Reading, Start, first_line, json, only};
use crate::error::TextError;

pub(super) const KIND: Kind = Kind {
    name: "nvme list-subsys",
    has: "NVMe subsystems and their controllers",
    starts: &[
        Start::new(&["nvme-subsys"], r"(?:^|\W)(nvme-subsys\d+\s+-\s+NQN=)"),
        Start::new(&["+- nvme"], r"(\+- nvme\d+\s)"),
    ],
    goes_on: r"^\s*(?:\\|hostnqn=|iopolicy=|type=|model=|serial=|firmware=)",
    read,
};

fn read(lines: &[Line], reading: &mut Reading) -> Result<(), String> {
    let reason = reading.reason.clone();
    let mut subsystems: Vec<NvmeSubsystem> = Vec::new();
    for line in lines {
        let text = line.text.trim();
        if let Some((name, nqn)) = text.split_once(" - NQN=") {
            if reading.is_second(name.trim(), line.number) {
                break;
            }
            subsystems.push(subsystem(name.trim(), nqn, Known::no(reason.clone())));
            continue;
        }
        let Some(subsystem) = subsystems.last_mut() else {
            continue;
        };
        if let Some(policy) = text.strip_prefix("iopolicy=") {
            subsystem.iopolicy = Known::Yes(IoPolicy::from(policy));
        } else if let Some(model) = text.strip_prefix("model=") {
            subsystem.model = Some(model.trim().to_owned());
        } else if let Some(path) = text.strip_prefix("+- ") {
            let words: Vec<&str> = path.split_whitespace().collect();
            // `nvme show-topology` has lines of namespaces too: "+- ns id 4".
            if let [name, transport, address, ref rest @ ..] = words[..]
                && name.starts_with("nvme")
            {
                // Older versions print the parts of a fabric's address as words.
                let state = rest.iter().find(|word| !word.contains('='));
                let state = state.map(|state| (*state).to_owned());
                let controller = controller(name, transport, address, state, &reason);
                subsystem.controllers.push(controller);
            }
        }
    }
    if subsystems.is_empty() {
        return Err("no line of a subsystem (\"nvme-subsys0 - NQN=...\") in it".to_owned());
    }
    reading.machine.nvme = Known::Yes(in_order(subsystems));
    Ok(())
}

fn subsystem(name: &str, nqn: &str, iopolicy: Known<IoPolicy>) -> NvmeSubsystem {
    NvmeSubsystem {
        name: name.to_owned(),
        nqn: Some(nqn.trim().to_owned()).filter(|nqn| !nqn.is_empty()),
        model: None,
        iopolicy,
        controllers: Vec::new(),
        namespaces: Vec::new(),
    }
}

fn controller(
    name: &str,
    transport: &str,
    address: &str,
    state: Option<String>,
    reason: &str,
) -> NvmeController {
    let address = address.strip_prefix("address=").unwrap_or(address);
    let device = address.parse().ok();
    NvmeController {
        name: name.to_owned(),
        state: Known::from_option(state, || reason.to_owned()),
        transport: Known::Yes(transport.to_owned()),
        device: device.filter(|_| transport == "pcie"),
        node: Known::no(reason.to_owned()),
        queues: Known::no(reason.to_owned()),
    }
}

/// By name, each once.
fn in_order(mut subsystems: Vec<NvmeSubsystem>) -> Vec<NvmeSubsystem> {
    subsystems.sort_by(|a, b| a.name.cmp(&b.name));
    subsystems.dedup_by(|a, b| a.name == b.name);
    for subsystem in &mut subsystems {
        subsystem.controllers.sort_by(|a, b| a.name.cmp(&b.name));
        subsystem.controllers.dedup_by(|a, b| a.name == b.name);
    }
    subsystems
}

/// Reads the JSON of any version: subsystems with their paths, or (before 2.0) the paths in an object behind each.
///
/// # Errors
/// When it is no JSON, or names no subsystem.
pub(super) fn parse(text: &str, place: &str) -> Result<Machine, TextError> {
    const NEXT: &str = "write it again: nvme list-subsys -o json";
    let value = json(text, place, NEXT)?;
    let reason = std::borrow::Cow::from(only(&KIND));
    let mut subsystems: Vec<NvmeSubsystem> = Vec::new();
    let text_of =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    for item in value["Subsystems"].as_array().into_iter().flatten() {
        if let Some(name) = text_of(item, "Name") {
            let policy = text_of(item, "IOPolicy").map(|policy| IoPolicy::from(policy.as_str()));
            let policy = Known::from_option(policy, || reason.clone());
            let nqn = text_of(item, "NQN").unwrap_or_default();
            subsystems.push(subsystem(&name, &nqn, policy));
        }
        let Some(last) = subsystems.last_mut() else {
            continue;
        };
        for path in item["Paths"].as_array().into_iter().flatten() {
            let Some(name) = text_of(path, "Name") else {
                continue;
            };
            let transport = text_of(path, "Transport").unwrap_or_default();
            let address = text_of(path, "Address").unwrap_or_default();
            let (address, state) = (address.trim(), text_of(path, "State"));
            let controller = controller(&name, &transport, address, state, &reason);
            last.controllers.push(controller);
        }
    }
    if subsystems.is_empty() {
        let line = Some(first_line(text));
        return Err(TextError::new(place, line, "no subsystem in it", NEXT));
    }
    let mut machine = Machine::empty(Origin::new(SourceKind::Text, place), reason);
    machine.nvme = Known::Yes(in_order(subsystems));
    Ok(machine)
}
