//! An emulation in JSON: the label, and the guest's fields where they are known.
//!
//! ```text
//! {"label": "two-node as a guest: ...", "machine": "two-node", "kernel": "6.12.9", ...}
//! {"label": "two-node as a guest: ..."}        only the label is known
//! "two-node as a guest: ..."                   read, not written: what an older nearfar wrote
//! ```
//!
//! The label of a guest is for readers of the JSON; it is not read back.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Acceleration, Delays, EmulatedGuest, Emulation, NodeLimits, SimulatedTime};

/// The keys of the object. All but the label are those of [`EmulatedGuest`].
#[derive(Deserialize)]
struct Fields {
    label: Option<String>,
    machine: Option<String>,
    #[serde(default)]
    node_limits: NodeLimits,
    kernel: Option<String>,
    #[serde(default)]
    kernel_arguments: Vec<String>,
    architecture: Option<String>,
    acceleration: Option<Acceleration>,
    qemu: Option<String>,
    delays: Option<Delays>,
    simulated_time: Option<SimulatedTime>,
}

impl Serialize for Emulation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            label: String,
            #[serde(flatten)]
            guest: Option<&'a EmulatedGuest>,
        }
        Written {
            label: self.to_string(),
            guest: self.guest(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Emulation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrObject)
    }
}

struct TextOrObject;

impl<'de> Visitor<'de> for TextOrObject {
    type Value = Emulation;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an emulated machine's label or description")
    }

    fn visit_str<E: Error>(self, label: &str) -> Result<Emulation, E> {
        Ok(Emulation::Label(label.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Emulation, A::Error> {
        Fields::deserialize(MapAccessDeserializer::new(map))?.emulation()
    }
}

impl Fields {
    fn emulation<E: Error>(self) -> Result<Emulation, E> {
        if let (Some(label), None) = (&self.label, &self.machine) {
            return Ok(Emulation::Label(label.clone()));
        }
        let missing = E::missing_field;
        Ok(Emulation::from(EmulatedGuest {
            machine: self.machine.ok_or_else(|| missing("machine"))?,
            node_limits: self.node_limits,
            kernel: self.kernel.ok_or_else(|| missing("kernel"))?,
            kernel_arguments: self.kernel_arguments,
            architecture: self.architecture.ok_or_else(|| missing("architecture"))?,
            acceleration: self.acceleration.ok_or_else(|| missing("acceleration"))?,
            qemu: self.qemu,
            delays: self.delays,
            simulated_time: self.simulated_time,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn read(text: &str) -> serde_json::Result<Emulation> {
        serde_json::from_str(text)
    }

    #[test]
    fn an_emulation_reads_back_as_it_was_written() {
        let label = Emulation::Label("two-node as a guest".to_owned());
        for emulation in [Emulation::from(samples::guest()), label] {
            let text = serde_json::to_string(&emulation).unwrap();
            assert_eq!(read(&text).unwrap(), emulation, "{text}");
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["label"], emulation.to_string());
        }
    }

    #[test]
    fn a_string_is_a_label() {
        let label = Emulation::Label("x, 10: 400 ns".to_owned());
        assert_eq!(read("\"x, 10: 400 ns\"").unwrap(), label);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (text, part) in [
            (r#"{"machine": "m"}"#, "missing field `kernel`"),
            (r#"{}"#, "missing field `machine`"),
            (
                r#"{"machine": 1}"#,
                "invalid type: integer `1`, expected a string",
            ),
            (
                r#"{"machine": "m", "acceleration": "xen"}"#,
                "unknown variant `xen`",
            ),
            ("7", "expected an emulated machine's label or description"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
