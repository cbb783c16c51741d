//! Errors of the system in its own words.

use std::io;

/// The text of an error without Rust's `(os error 28)`, for messages.
pub fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let suffix = error
        .raw_os_error()
        .map(|code| format!(" (os error {code})"));
    match suffix.and_then(|suffix| text.strip_suffix(&suffix)) {
        Some(text) => text.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_error_is_left_out() {
        let gone = io::Error::from_raw_os_error(libc::ESRCH);
        assert_eq!(error_text(&gone), "No such process");
        assert_eq!(
            error_text(&io::Error::other("a (os error 3)")),
            "a (os error 3)"
        );
    }
}
