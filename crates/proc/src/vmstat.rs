//! `/proc/vmstat`: a line for each count, since boot (mm/vmstat.c).

use crate::text;

/// A count, such as `pgmigrate_success`; `None` where this kernel does not have it.
pub fn count(content: &[u8], name: &str) -> Option<u64> {
    let value = text::lines(content)
        .find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b" "))?;
    text::number(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_by_its_whole_name() {
        let content = b"numa_hint_faults_local 7\nnuma_hint_faults 12\nnuma_other x\n";
        assert_eq!(count(content, "numa_hint_faults"), Some(12));
        assert_eq!(count(content, "numa_hint_faults_local"), Some(7));
        assert_eq!(count(content, "numa_other"), None);
        assert_eq!(count(content, "numa"), None);
    }
}
