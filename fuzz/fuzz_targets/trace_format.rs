//! Descriptions of tracepoints, and events read by them.
#![no_main]
use libfuzzer_sys::fuzz_target;
use nearfar_trace::format::Format;

fuzz_target!(|input: (&str, &[u8])| {
    let (text, event) = input;
    let Ok(format) = Format::parse(text) else { return };
    for field in ["common_type", "pid", "ctrl_id", "qid", "opcode", "orig_cpu", "dest_cpu"] {
        let _ = format.number(field).map(|number| number.read(event));
    }
    for field in ["disk", "comm"] {
        let read = format.text(field).ok().and_then(|text| text.read(event));
        assert!(read.is_none_or(|text| text.len() <= event.len() && !text.contains(&0)));
    }
});
