//! (being written)
use crate::error::TextError;
/// (being written)
///
/// # Errors
/// Always.
pub fn parse(_text: &str, place: &str) -> Result<nearfar_machine::Machine, TextError> {
    Err(TextError::new(place, None, "this kind is not read yet", "wait"))
}
