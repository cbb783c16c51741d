//! The caller's handle on a probe.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::result::{ProbeResult, Ready};
use super::spec::ProbeSpec;
use crate::child::{Child, ChildError, DoneLine, ReadyLine};

/// A probe that is prepared and waits. Dropping it ends it. It stays on the thread that prepared it, with which it ends.
pub struct Probe {
    child: Child,
    ready: Ready,
}

impl Probe {
    /// Starts the child and waits until its memory is where it should be.
    ///
    /// `program` is one that answers `bench child probe`: `/proc/self/exe` from within nearfar.
    ///
    /// # Errors
    /// When the program cannot be started, the spec is impossible, or the system refuses memory or CPUs.
    pub fn prepare(program: &Path, spec: &ProbeSpec) -> Result<Self, ChildError> {
        Self::prepare_under(program, spec, |_| ())
    }

    /// The same, with something done to the child's pid before it touches any memory: attaching a keeper, say.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_under(
        program: &Path,
        spec: &ProbeSpec,
        before: impl FnOnce(i32),
    ) -> Result<Self, ChildError> {
        let mut child = Child::untold(program, "probe")?;
        before(child.pid());
        child.tell(spec)?;
        let ReadyLine { ready } = child.listen(&AtomicBool::new(false))?;
        Ok(Self { child, ready })
    }

    /// The process that will do the work, on its only thread.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// What it got.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Lets it run once, and waits for the result. The child then sleeps until it is dropped, so that what the kernel counted for
    /// it can still be asked for.
    ///
    /// # Errors
    /// When the child is killed, or `cancel` becomes true meanwhile.
    pub fn run(&mut self, cancel: &AtomicBool) -> Result<ProbeResult, ChildError> {
        self.child.say("go")?;
        let DoneLine { done } = self.child.listen(cancel)?;
        Ok(done)
    }
}
