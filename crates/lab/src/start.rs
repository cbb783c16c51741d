//! The three ways in which a QEMU process is started for a guest.

/// How a guest starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// It boots and is not saved.
    Boot,
    /// It boots, is saved and ends. A guest that is up after [`Start::Save`] was then started from what was saved.
    Save,
    /// It starts from a guest that was saved before: QEMU waits for the monitor's `migrate-incoming`.
    Load,
}
