//! Sizes as people write them: `512M`, `64 GiB`, `1536kB`.

/// Reads a size with an optional unit, in bytes. All units are powers of 1024, as in the kernel and numactl: `K`, `M`,
/// `G`, `T`, `P`, with or without `B` or `iB`, in any case; without a unit the number counts `bare` bytes each. A number
/// with a unit may have up to nine decimals; what is less than a byte is cut. `None` for anything else and for what does
/// not fit into 64 bits.
pub fn parse(text: &str, bare: u64) -> Option<u64> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let unit = unit(suffix.trim(), bare)?;
    let Some((whole, decimals)) = number.split_once('.') else {
        return number.parse::<u64>().ok()?.checked_mul(unit);
    };
    if suffix.is_empty() || !(1..=9).contains(&decimals.len()) {
        return None;
    }
    let number: u128 = format!("{}{decimals}", whole.parse::<u64>().ok()?)
        .parse()
        .ok()?;
    let bytes = number * u128::from(unit) / 10u128.pow(decimals.len() as u32);
    bytes.try_into().ok()
}

pub fn unit(suffix: &str, bare: u64) -> Option<u64> {
    let lower = suffix.to_ascii_lowercase();
    let shift = match lower.as_str() {
        "" => return Some(bare),
        "b" | "byte" | "bytes" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => return None,
    };
    Some(1 << shift)
}

/// Writes a size exactly, in the largest binary unit that divides it: `512M`, `1536K`, `1000`.
pub fn render(bytes: u64) -> String {
    let units = [("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    let fitting = units
        .iter()
        .find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    match fitting {
        Some((letter, shift)) => format!("{}{letter}", bytes >> shift),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_as_they_were_written() {
        for bytes in [
            0,
            1,
            1000,
            1024,
            1536 << 10,
            512 << 20,
            3 << 40,
            u64::MAX,
            1 << 63,
        ] {
            assert_eq!(parse(&render(bytes), 1), Some(bytes), "{}", render(bytes));
        }
        assert_eq!(render(1536 << 10), "1536K");
        assert_eq!(render(512 << 20), "512M");
    }

    #[test]
    fn units_as_people_write_them() {
        assert_eq!(parse("64 GiB", 1), Some(64 << 30));
        assert_eq!(parse("63379", 1 << 20), Some(63379 << 20));
        assert_eq!(parse("1.5G", 1), Some(3 << 29));
        assert_eq!(parse("0.25 MiB", 1), Some(256 << 10));
        assert_eq!(parse("1.000000001K", 1), Some(1024));
        for bad in [
            "",
            "G",
            "-1G",
            "1.5",
            "1.G",
            ".5G",
            "1.5.5G",
            "1.0000000001G",
            "18446744073709551615.9P",
            "1X",
            "99999999999999999999",
            "18446744073709551615K",
        ] {
            assert_eq!(parse(bad, 1), None, "{bad}");
        }
    }
}
