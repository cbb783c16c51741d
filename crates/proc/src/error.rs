//! Errors of the system in its own words.

use std::fmt::Display;

/// The text of an error, or a message with one in it, without Rust's `(os error 28)`.
pub fn error_text(error: &impl Display) -> String {
    let text = error.to_string();
    let mut parts = text.split(" (os error ");
    let mut without = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((code, rest)) if code.parse::<i32>().is_ok() => without += rest,
            _ => without = without + " (os error " + part,
        }
    }
    without
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_number_of_an_error_is_left_out() {
        let gone = io::Error::from_raw_os_error(libc::ESRCH);
        assert_eq!(error_text(&gone), "No such process");
        for (said, text) in [
            ("a (os error 13): b (os error 13)", "a: b"),
            ("x: nothing (os error 2); y", "x: nothing; y"),
            ("a (os error x)", "a (os error x)"),
            ("a (os error )", "a (os error )"),
            ("a (os error 3", "a (os error 3"),
        ] {
            assert_eq!(error_text(&said), text);
        }
    }
}
