//! From what a user asks for to what a guest is made of. Every open choice is made here.
//!
//! ```text
//!  GuestRequest: machine, limits, arch?, kernel?, delay? ──► find QEMU, kernel, busybox ──► Design ──► PreparedGuest
//!                                                            probe KVM, plugin
//! ```

use std::path::PathBuf;
use std::time::Duration;

use nearfar_machine::{Acceleration, Machine, NodeLimits};

use crate::arch::Arch;
use crate::cache::Cache;
use crate::delay::{self, DelaySpec, TimeSpec};
use crate::design::Design;
use crate::error::LabError;
use crate::guest::{PreparedGuest, Root};
use crate::kernels::{self, Kernel, Series};
use crate::qemu::{self, Qemu};
use crate::{foreign, scale};

/// A guest as a user asks for it.
#[derive(Clone, Debug)]
pub struct GuestRequest {
    /// The machine to emulate.
    pub machine: Machine,
    /// What the user called it, for labels.
    pub name: String,
    /// What its nodes are cut down to.
    pub limits: NodeLimits,
    /// The guest's architecture; `None` for the machine's own, or the host's where the machine names none.
    pub arch: Option<Arch>,
    /// The kernel, as [`kernels::find_in`] takes it; `None` for the series that the machine names, where it is cached.
    pub kernel: Option<String>,
    /// Words for the kernel's command line, after all others.
    pub append: Vec<String>,
    /// Delays of far memory.
    pub delay: DelaySpec,
    /// The time that its clocks follow while a command runs.
    pub time: TimeSpec,
    /// How the CPUs run; `None` for KVM where a probe found that it works.
    pub acceleration: Option<Acceleration>,
    /// How the guest sees the host's files.
    pub root: Root,
    /// The folder the guest may write to.
    pub results: Option<PathBuf>,
    /// Whether the kernel's console is shown on standard error. Such a guest boots: a start from a saved guest has no boot to
    /// show.
    pub console: bool,
    /// Whether the guest boots, and is not saved, where it could start from a saved one.
    pub cold: bool,
    /// How long the guest may take to come up.
    pub boot_timeout: Duration,
    /// How long each command may take; `None` for no limit.
    pub command_timeout: Option<Duration>,
}

impl GuestRequest {
    /// A request with every choice left open.
    pub fn new(machine: Machine, name: impl Into<String>) -> Self {
        Self {
            machine,
            name: name.into(),
            limits: NodeLimits::default(),
            arch: None,
            kernel: None,
            append: Vec::new(),
            delay: DelaySpec::Off,
            time: TimeSpec::Host,
            acceleration: None,
            root: Root::Overlay,
            results: None,
            console: false,
            cold: false,
            boot_timeout: Duration::from_secs(600),
            command_timeout: None,
        }
    }

    /// Makes the choices that were left open and finds what is needed.
    ///
    /// # Errors
    /// When QEMU, a kernel or the delay plugin is missing (the error says which command brings it), or when the machine
    /// cannot be built from QEMU's parts.
    pub fn prepare(&self, cache: &Cache) -> Result<PreparedGuest, LabError> {
        let arch = self.architecture()?;
        self.check_results()?;
        let qemu = Qemu::find(arch)?;
        let kernel = self.find_kernel(cache, arch)?;
        let machine = scale::scaled(&self.machine, self.limits)?;
        let design = match Series::of_release(&kernel.release) {
            Some(series) => Design::under(&machine, arch, series)?,
            None => Design::new(&machine, arch)?,
        };
        let acceleration = self.accelerate(&qemu, cache, &kernel)?;
        let time = self.time.on(&qemu, arch, acceleration)?;
        let delay = match (&self.delay, time) {
            (DelaySpec::Off, None) => None,
            (asked, time) => {
                let plugin = delay::find_plugin(&qemu)?;
                Some(delay::setup(&design, asked, time, &plugin)?)
            }
        };
        let busybox = foreign::busybox(cache, arch)?;
        let is_foreign = Some(arch) != Arch::host();
        let foreign = is_foreign.then(|| foreign::get(cache, arch)).transpose()?;
        tracing::info!(
            machine = self.name,
            arch = %arch,
            kernel = kernel.release,
            qemu = %qemu.program.display(),
            acceleration = ?acceleration,
            "guest chosen"
        );
        for note in &design.notes {
            tracing::warn!(reason = note, "not reproduced");
        }
        Ok(PreparedGuest {
            request: self.clone(),
            design,
            kernel,
            qemu,
            acceleration,
            delay,
            foreign,
            busybox,
            drmgr: foreign::cached_drmgr(cache).filter(|_| arch == Arch::Powerpc64le),
        })
    }

    /// Whether the folder that the guest may write to is there.
    ///
    /// # Errors
    /// [`LabError::Content`] with why it cannot be read.
    pub fn check_results(&self) -> Result<(), LabError> {
        let read = self.results.as_ref().map(std::fs::read_dir).transpose();
        read.map_err(|error| LabError::Content {
            path: self.results.clone().unwrap_or_default(),
            problem: error.to_string(),
        })?;
        Ok(())
    }

    /// Makes the choices of guests that are compared. Where their time is left open, it is simulated in all of them or in none.
    ///
    /// # Errors
    /// As [`Self::prepare`], with the place of the guest.
    pub fn prepare_alike(
        requests: &[Self],
        cache: &Cache,
    ) -> Result<Vec<PreparedGuest>, (usize, LabError)> {
        let prepare = |at: usize, request: &Self| {
            let prepared = request.prepare(cache);
            prepared.map_err(|error| (at, error))
        };
        let each = requests.iter().enumerate();
        let guests = each.clone().map(|(at, request)| prepare(at, request));
        let mut guests: Vec<PreparedGuest> = guests.collect::<Result<_, _>>()?;
        if !guests.iter().all(PreparedGuest::is_simulated) {
            for (at, request) in each.filter(|(_, request)| request.time == TimeSpec::Auto) {
                if guests[at].is_simulated() {
                    let in_host_time = Self {
                        time: TimeSpec::Host,
                        ..request.clone()
                    };
                    guests[at] = prepare(at, &in_host_time)?;
                }
            }
        }
        Ok(guests)
    }

    /// The one that was asked for, or the machine's, or this host's.
    ///
    /// # Errors
    /// When the machine names one that no guest can have.
    pub fn architecture(&self) -> Result<Arch, LabError> {
        let named = self.machine.origin.architecture.get();
        match (self.arch, named) {
            (Some(arch), _) => Ok(arch),
            (None, Some(name)) => name.parse().map_err(|problem: String| {
                LabError::Design(format!("{problem}; choose one with --arch"))
            }),
            (None, None) => Ok(Arch::host().unwrap_or(Arch::X86_64)),
        }
    }

    /// The kernel that was asked for, or one of the series that the machine ran, or the newest.
    fn find_kernel(&self, cache: &Cache, arch: Arch) -> Result<Kernel, LabError> {
        let ran = self.machine.origin.kernel.get();
        let ran = ran.and_then(|release| Series::of_release(release));
        let find = |spec: Option<&str>| kernels::find_in(cache, spec, arch);
        let kernel = match (&self.kernel, ran) {
            (Some(spec), _) => find(Some(spec)),
            (None, Some(series)) => find(Some(&series.to_string())).or_else(|_| find(None)),
            (None, None) => find(None),
        };
        kernel.inspect(|kernel| kernels::mark_used(cache, kernel))
    }

    /// The plugin needs software emulation: under KVM it sees neither accesses nor instructions. `lab doctor` says why it is not KVM.
    fn accelerate(
        &self,
        qemu: &Qemu,
        cache: &Cache,
        kernel: &Kernel,
    ) -> Result<Acceleration, LabError> {
        let is_simulated = matches!(self.time, TimeSpec::Simulated(_));
        let is_plugged = self.delay != DelaySpec::Off || is_simulated;
        match (is_plugged, self.acceleration) {
            (true, Some(Acceleration::Kvm)) => Err(LabError::PluginUnderKvm),
            (true, _) => Ok(Acceleration::Tcg),
            (false, Some(asked)) => Ok(asked),
            (false, None) => Ok(qemu::acceleration(cache, qemu, Some(kernel)).acceleration),
        }
    }
}
