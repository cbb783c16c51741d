//! What may be wrong with a whole run, looked at before the first sample.

use std::fs;
use std::path::Path;

use nearfar_experiment::Change;
use nearfar_machine::CpuId;

/// Idle states that take longer to leave count.
const MAX_EXIT_LATENCY_US: u32 = 10;

/// Sentences about idle states and the interrupts of the device.
pub(super) fn of_machine(planned: &[Change], cpu: Option<CpuId>) -> Vec<String> {
    let idle = cpu.and_then(|cpu| {
        idle_states(Path::new(&format!(
            "/sys/devices/system/cpu/cpu{cpu}/cpuidle"
        )))
    });
    idle.into_iter().chain(interrupts(planned)).collect()
}

/// A warning about the deepest idle state that is enabled, where leaving it takes long.
fn idle_states(directory: &Path) -> Option<String> {
    let states = fs::read_dir(directory).ok()?.filter_map(|state| {
        let state = state.ok()?.path();
        let text = |name: &str| Some(fs::read_to_string(state.join(name)).ok()?.trim().to_owned());
        let latency_us: u32 = text("latency")?.parse().ok()?;
        (text("disable")? == "0").then_some((latency_us, text("name")?))
    });
    let (latency_us, name) = states.max()?;
    (latency_us > MAX_EXIT_LATENCY_US).then(|| {
        format!(
            "CPUs may enter idle state {name}, which takes {latency_us} us to leave: latency at low depth includes \
             that; cpupower idle-set -D {MAX_EXIT_LATENCY_US} disables it"
        )
    })
}

/// A warning when the plan for the device moves its interrupts.
fn interrupts(planned: &[Change]) -> Option<String> {
    let is_interrupt = |change: &&Change| matches!(change, Change::InterruptAffinity { .. });
    let far = planned.iter().filter(is_interrupt).count();
    (far > 0).then(|| {
        format!(
            "{far} interrupts of the device are not on the CPUs nearest to it: nearfar audit lists them, plan=after \
             measures with them moved"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_enabled_idle_state_is_named() {
        let place = tempfile::tempdir().unwrap();
        let state = |number: u32, name: &str, latency: &str, disable: &str| {
            let directory = place.path().join(format!("state{number}"));
            fs::create_dir(&directory).unwrap();
            for (file, value) in [("name", name), ("latency", latency), ("disable", disable)] {
                fs::write(directory.join(file), format!("{value}\n")).unwrap();
            }
        };
        state(0, "POLL", "0", "0");
        assert_eq!(idle_states(place.path()), None);
        state(1, "C6", "133", "0");
        state(2, "C10", "890", "1");
        let warning = idle_states(place.path()).unwrap();
        assert!(warning.contains("C6, which takes 133 us"), "{warning}");
    }
}
