//! Simulated time of a guest, which passes while samples are taken: to start a command, to read the machine and to print cost nothing
//! of it, and would take the host long.

use nearfar_machine::Machine;

use crate::lab::{AskError, LabHost};

/// The time of the guest that this runs in; of no effect elsewhere, and in a guest of the host's time.
#[derive(Debug)]
pub(crate) struct GuestTime(Option<LabHost>);

impl GuestTime {
    /// Stops it, until this is dropped.
    ///
    /// # Errors
    /// When the host does not stop it.
    pub(crate) fn stopped(machine: &Machine) -> Result<Self, AskError> {
        let emulation = machine.origin.emulation.as_ref();
        let guest = emulation.and_then(|emulation| emulation.guest());
        let is_simulated = guest.is_some_and(|guest| guest.simulated_time.is_some());
        let time = Self(is_simulated.then(LabHost::default));
        time.set("host")?;
        Ok(time)
    }

    /// Lets it pass while this is done.
    ///
    /// # Errors
    /// When the host does not begin or end it.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> Result<T, AskError> {
        self.set("simulated")?;
        let done = work();
        self.set("host")?;
        Ok(done)
    }

    fn set(&self, time: &str) -> Result<(), AskError> {
        let host = self.0.as_ref();
        host.map_or(Ok(()), |host| host.ask(&format!("time {time}")).map(drop))
    }
}

impl Drop for GuestTime {
    fn drop(&mut self) {
        // What runs after this asks for it itself.
        drop(self.set("simulated"));
    }
}
