// SPDX-License-Identifier: GPL-2.0-or-later
//! What QEMU calls: loading, translation of guest code, loads and stores.
//!
//! ```text
//!  install ──► closed: code is translated as without the plugin
//!                │ ▲      translation, idle and resume callbacks look at the gate
//!       gate opens │ gate closes      ──► reset: QEMU throws its translated code away, at a moment when no vCPU runs
//!                ▼ │
//!              open: every load and store calls back
//! ```
//!
//! Some instructions of the guest are told apart. After some, a virtual address may stand for other memory. The filter of
//! [`crate::vcpu`] goes by virtual addresses, so it must be emptied when the guest's kernel switches to another process or takes a
//! page away. On x86-64 every CPU does both with instructions of its own. On arm64 and Power pages are taken away on all CPUs at once
//! by one of them; there, a line of the filter may outlive its page until the next process switch.

use std::cell::{OnceCell, UnsafeCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::Write as _;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

use thiserror::Error;

use crate::config::{Config, ConfigError};
use crate::model::Model;
use crate::model::lines::LinesError;
use crate::qemu::{
    ADD, AT_LEAST, Array, Block, Functions, Id, Info, Instruction, InstructionData, LOADS,
    MissingFunction, NO_REGISTERS, READS_REGISTERS, Register, RegisterDescriptor, STORES,
    TimeFunctions, Words,
};
use crate::region::{Region, RegionError, State};
use crate::time::{self, Time};
use crate::vcpu::{Access, Charged, Clock as _, HostClock, Registers, Vcpu};

/// The interface the plugin speaks, read by QEMU before it installs it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // QEMU's header chose the name.
pub static qemu_plugin_version: c_int = 2;

static PLUGIN: AtomicPtr<Plugin> = AtomicPtr::new(ptr::null_mut());
/// QEMU's number for the plugin, for callbacks that it does not tell.
static ID: AtomicU64 = AtomicU64::new(0);

/// Why the plugin is not installed.
#[derive(Debug, Error)]
enum PluginError {
    #[error("only whole machines have memory nodes; this QEMU runs a single program")]
    NoMachine,
    #[error("expected one argument, region=FD, got {0:?}")]
    Arguments(Vec<String>),
    #[error("the region's counters are for another machine than its configuration")]
    Counters,
    #[error(transparent)]
    Function(#[from] MissingFunction),
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Lines(#[from] LinesError),
    #[error("simulated time: {0}")]
    Time(#[from] std::io::Error),
    #[error("simulated time: this file is not preloaded, so QEMU's clocks do not follow it")]
    NotPreloaded,
}

/// QEMU's counters of simulated time.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    qemu: TimeFunctions,
    words: Words,
    region: Region,
}

// SAFETY: the scoreboard is QEMU's, whose functions look up a vCPU's own word in it.
unsafe impl Send for Clocks {}
// SAFETY: as above.
unsafe impl Sync for Clocks {}

impl Clocks {
    fn new(region: Region) -> Result<Self, MissingFunction> {
        let qemu = TimeFunctions::find()?;
        // SAFETY: called while the plugin is installed.
        let scoreboard = unsafe { (qemu.scoreboard)(size_of::<u64>()) };
        let words = Words {
            scoreboard,
            offset: 0,
        };
        Ok(Self {
            qemu,
            words,
            region,
        })
    }
}

thread_local! {
    /// The registers of the vCPU that this thread runs, and an array for what they hold.
    static REGISTERS: OnceCell<(Vec<*mut Register>, *mut Array<u8>)> = const { OnceCell::new() };
}

impl Clocks {
    /// What the general registers of the vCPU hold that this thread runs; `None` where they are not known.
    ///
    /// # Safety
    /// Only inside a callback that was registered with [`READS_REGISTERS`].
    unsafe fn registers(&self, instructions: InstructionSet) -> Option<Registers> {
        REGISTERS.with(|found| {
            let (registers, bytes) = found.get_or_init(|| {
                // SAFETY: this thread runs a vCPU; the array is never freed, nor are the names.
                unsafe {
                    let all = &*(self.qemu.registers)();
                    let all = std::slice::from_raw_parts(all.data, all.length as usize);
                    let of = |name: &&str| {
                        let is_it = |it: &&RegisterDescriptor| {
                            CStr::from_ptr(it.name).to_bytes() == name.as_bytes()
                        };
                        all.iter().find(is_it).map(|it| it.register)
                    };
                    (
                        instructions
                            .general_registers()
                            .iter()
                            .filter_map(of)
                            .collect(),
                        (self.qemu.byte_array)(),
                    )
                }
            });
            let mut all = Registers::default();
            let registers: &[_; size_of::<Registers>() / 8] = registers.first_chunk()?;
            for (register, value) in registers.iter().zip(&mut all) {
                // SAFETY: the caller is inside such a callback; QEMU appends to the array, which is this thread's.
                let read = unsafe {
                    (self.qemu.set_length)(*bytes, 0);
                    (self.qemu.read_register)(*register, *bytes)
                };
                // SAFETY: the array has as many bytes as were read.
                *value = (read == 8)
                    .then(|| unsafe { (**bytes).data.cast::<u64>().read_unaligned() })?;
            }
            Some(all)
        })
    }
}

impl time::PsCounters for Clocks {
    fn get(&self, vcpu: usize) -> u64 {
        // SAFETY: QEMU has a word for each vCPU that has run.
        unsafe { (self.qemu.get)(self.words, vcpu as c_uint) }
    }

    fn set(&self, vcpu: usize, ps: u64) {
        // SAFETY: as above.
        unsafe { (self.qemu.set)(self.words, vcpu as c_uint, ps) };
    }

    fn passed(&self, ns: u64) {
        self.region.set_simulated_ns(ns);
    }
}

struct Plugin {
    qemu: Functions,
    instruction_data: InstructionData,
    region: Region,
    clock: HostClock,
    clocks: Option<Clocks>,
    time: Option<Time<Clocks>>,
    instructions: InstructionSet,
    vcpus: Box<[UnsafeCell<Vcpu<'static>>]>,
    /// Whether code is instrumented; changes only while no vCPU runs.
    open: AtomicBool,
    /// A reset was asked for and has not come yet.
    changing: AtomicBool,
}

// SAFETY: a vCPU's cell is used by the thread that runs this vCPU only; everything else is constant or atomic.
unsafe impl Sync for Plugin {}

/// Called by QEMU when it loads the plugin (`-plugin FILE,region=FD`). Returns 0, or -1 after an error on stderr.
///
/// # Safety
/// For QEMU only, with the arguments that its header describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes a valid structure, and `argc` strings.
    let (info, arguments) = unsafe {
        let argument = |number: usize| {
            CStr::from_ptr(*argv.add(number))
                .to_string_lossy()
                .into_owned()
        };
        (
            &*info,
            (0..usize::try_from(argc).unwrap_or(0))
                .map(argument)
                .collect::<Vec<_>>(),
        )
    };
    match Plugin::new(info, &arguments) {
        Ok(plugin) => {
            plugin.region.set_state(State::Closed);
            // Never freed: QEMU may call back until its process ends.
            ID.store(id, Relaxed);
            PLUGIN.store(Box::into_raw(Box::new(plugin)), Relaxed);
            register(id);
            0
        }
        Err(problem) => {
            // `eprintln!` panics when stderr is closed, and a panic cannot leave this function.
            let _ = writeln!(std::io::stderr(), "nearfar-lab-delay: {problem}");
            -1
        }
    }
}

impl Plugin {
    fn new(info: &Info, arguments: &[String]) -> Result<Self, PluginError> {
        if !info.system_emulation {
            return Err(PluginError::NoMachine);
        }
        let qemu = Functions::find()?;
        let [argument] = arguments else {
            return Err(PluginError::Arguments(arguments.to_vec()));
        };
        let fd = argument
            .strip_prefix("region=")
            .and_then(|fd| fd.parse().ok());
        let region = Region::map(fd.ok_or_else(|| PluginError::Arguments(arguments.to_vec()))?)?;
        let config: Config = region.config()?.parse()?;
        let model = config
            .has_memory()
            .then(|| Model::new(&config))
            .transpose()?;
        let model: Option<&'static Model> = model.map(|model| &*Box::leak(Box::new(model)));
        let nodes = model.map_or(0, |model| model.nodes().len());
        if region.vcpus() != config.cpus.len() || region.nodes() != nodes {
            return Err(PluginError::Counters);
        }
        if config.time.is_some() && !time::preload::is_effective() {
            return Err(PluginError::NotPreloaded);
        }
        let clocks = config.time.map(|_| Clocks::new(region)).transpose()?;
        let with_clocks = config.time.zip(clocks);
        let time = with_clocks.map(|(time, clocks)| Time::new(time, config.cpus.len(), clocks));
        let time = time.transpose()?;
        // SAFETY: QEMU's name of the target is a string that lives as long as the call.
        let target = unsafe { CStr::from_ptr(info.target_name) }.to_string_lossy();
        let vcpu = |model, (number, &place)| {
            let counters = region.counters(number);
            let (doorbells, transfers) = (region.doorbells(), region.transfers());
            UnsafeCell::new(Vcpu::new(model, place, counters, doorbells, transfers))
        };
        let vcpus = |model: &'static Model| {
            let places = model.places().iter().enumerate();
            places.map(|place| vcpu(model, place)).collect()
        };
        Ok(Self {
            qemu,
            instruction_data: InstructionData::find(info.version_cur)?,
            clock: HostClock::calibrated(),
            clocks,
            time,
            instructions: InstructionSet::of(&target),
            vcpus: model.map_or_else(Box::default, vcpus),
            region,
            open: AtomicBool::new(false),
            changing: AtomicBool::new(false),
        })
    }

    /// Asks for a reset where the gate is not as the code is.
    fn watch(&self, id: Id) {
        if self.region.gate() != self.open.load(Relaxed) && !self.changing.swap(true, Relaxed) {
            time::preload::keep_memory(true);
            // SAFETY: QEMU allows a reset from any callback of a vCPU.
            unsafe { (self.qemu.reset)(id, on_reset) };
        }
    }

    /// # Safety
    /// Only inside the translation callback that `block` was passed to.
    unsafe fn instrument(&self, block: *mut Block) {
        // SAFETY: the block is valid during the callback, and so are its instructions.
        unsafe {
            let instructions = (self.qemu.instructions)(block);
            let mut pauses = 0;
            for number in 0..instructions {
                let instruction: *mut Instruction = (self.qemu.instruction)(block, number);
                let (bytes, size) = self.qemu.bytes(self.instruction_data, instruction);
                let bytes = &bytes[..size];
                let is_pause = self.instructions.is_pause(bytes);
                pauses += u64::from(is_pause);
                if self.vcpus.is_empty() {
                    continue;
                }
                let address = (self.qemu.instruction_address)(instruction) as usize as *mut c_void;
                if is_pause && self.time.is_some() {
                    (self.qemu.on_instruction)(instruction, on_pause, READS_REGISTERS, address);
                }
                (self.qemu.on_memory)(instruction, on_load, NO_REGISTERS, LOADS, address);
                (self.qemu.on_memory)(instruction, on_store, NO_REGISTERS, STORES, address);
                if self.instructions.switches(bytes) {
                    (self.qemu.on_instruction)(
                        instruction,
                        on_switch,
                        NO_REGISTERS,
                        ptr::null_mut(),
                    );
                }
            }
            if let (Some(Clocks { qemu, words, .. }), Some(time)) = (self.clocks, &self.time) {
                let ps = instructions as u64 * time.ps_per_instruction() + pauses * PAUSE_PS;
                let (limit, nothing) = (time::LIMIT_PS, ptr::null_mut());
                (qemu.on_block_if)(
                    block,
                    on_limit,
                    NO_REGISTERS,
                    AT_LEAST,
                    words,
                    limit,
                    nothing,
                );
                (qemu.on_block_add)(block, ADD, words, ps);
            }
        }
    }

    /// # Safety
    /// Only inside a memory callback, with its arguments.
    #[cold]
    #[inline(never)]
    unsafe fn look(&self, vcpu: &mut Vcpu<'static>, info: u32, access: Access) {
        // SAFETY: promised by the caller.
        let target = || unsafe { self.qemu.target(info, access.address) };
        match &self.time {
            None => {
                vcpu.look(access, &self.clock, target);
            }
            Some(time) => {
                let charged = Charged::from(time.local_ps(vcpu.number()));
                let before = charged.now();
                let has_passed = vcpu.look(access, &charged, target);
                time.charge(vcpu.number(), charged.now() - before);
                if has_passed {
                    time.line_passes(charged.now());
                }
            }
        }
    }

    /// # Safety
    /// Only on the thread that runs the vCPU, and not while another such borrow lives.
    #[allow(clippy::mut_from_ref)] // The cell is the thread's own.
    unsafe fn vcpu(&self, number: c_uint) -> Option<&mut Vcpu<'static>> {
        // SAFETY: promised by the caller.
        self.vcpus
            .get(number as usize)
            .map(|cell| unsafe { &mut *cell.get() })
    }
}

/// The plugin; there is one from before the first callback on.
fn plugin() -> &'static Plugin {
    // SAFETY: stored before any callback is registered, and never freed.
    unsafe { &*PLUGIN.load(Relaxed) }
}

/// Simulated time, in a QEMU that has it.
pub fn time() -> Option<&'static Time<Clocks>> {
    // SAFETY: null before it is stored, and never freed.
    unsafe { PLUGIN.load(Relaxed).as_ref() }.and_then(|plugin| plugin.time.as_ref())
}

fn register(id: Id) {
    let qemu = &plugin().qemu;
    // SAFETY: called while the plugin is installed or reset, when QEMU allows to register.
    unsafe {
        (qemu.on_translation)(id, on_translation);
        (qemu.on_idle)(id, on_idle);
        (qemu.on_resume)(id, on_resume);
    }
}

unsafe extern "C" fn on_reset(id: Id) {
    let plugin = plugin();
    let open = plugin.region.gate();
    for cell in &plugin.vcpus {
        // Process switches were not seen while the gate was closed.
        // SAFETY: no vCPU runs during a reset.
        unsafe { &mut *cell.get() }.forget();
    }
    if let Some(time) = plugin.time.as_ref().filter(|time| time.is_on() != open) {
        match open {
            true => time.begin(),
            false => time.end(),
        }
    }
    plugin.open.store(open, Relaxed);
    plugin
        .region
        .set_state(if open { State::Open } else { State::Closed });
    time::preload::keep_memory(false);
    plugin.changing.store(false, Relaxed);
    register(id);
}

unsafe extern "C" fn on_idle(id: Id, vcpu: c_uint) {
    let plugin = plugin();
    if let Some(time) = &plugin.time {
        time.idle(vcpu as usize);
    }
    plugin.watch(id);
}

unsafe extern "C" fn on_resume(id: Id, vcpu: c_uint) {
    let plugin = plugin();
    if let Some(time) = &plugin.time {
        time.resume(vcpu as usize);
    }
    plugin.watch(id);
}

unsafe extern "C" fn on_limit(vcpu: c_uint, _: *mut c_void) {
    let plugin = plugin();
    if let Some(time) = &plugin.time {
        time.ask(vcpu as usize);
    }
    plugin.watch(ID.load(Relaxed));
}

unsafe extern "C" fn on_translation(id: Id, block: *mut Block) {
    let plugin = plugin();
    plugin.watch(id);
    if plugin.open.load(Relaxed) {
        // SAFETY: the block was passed to this very callback.
        unsafe { plugin.instrument(block) };
    }
}

unsafe extern "C" fn on_switch(vcpu: c_uint, _: *mut c_void) {
    // SAFETY: QEMU calls on the vCPU's thread, one callback at a time.
    if let Some(vcpu) = unsafe { plugin().vcpu(vcpu) } {
        vcpu.forget();
    }
}

unsafe extern "C" fn on_pause(number: c_uint, instruction: *mut c_void) {
    let plugin = plugin();
    // SAFETY: QEMU calls on the vCPU's thread, one callback at a time.
    let vcpu = unsafe { plugin.vcpu(number) };
    if let (Some(vcpu), Some(time), Some(clocks)) = (vcpu, &plugin.time, &plugin.clocks) {
        // SAFETY: inside a callback that may read registers.
        let registers = || unsafe { clocks.registers(plugin.instructions) };
        if let Some(polled) = vcpu.polls(instruction as usize, registers) {
            time.poll(vcpu.number(), polled);
            plugin.watch(ID.load(Relaxed));
        }
    }
}

unsafe extern "C" fn on_load(vcpu: c_uint, info: u32, address: u64, instruction: *mut c_void) {
    // SAFETY: the arguments are those of a memory callback.
    unsafe { on_access::<false>(vcpu, info, address, instruction) }
}

unsafe extern "C" fn on_store(vcpu: c_uint, info: u32, address: u64, instruction: *mut c_void) {
    // SAFETY: the arguments are those of a memory callback.
    unsafe { on_access::<true>(vcpu, info, address, instruction) }
}

/// # Safety
/// Only inside a memory callback, with its arguments.
#[inline(always)]
unsafe fn on_access<const WRITE: bool>(
    vcpu: c_uint,
    info: u32,
    address: u64,
    instruction: *mut c_void,
) {
    let plugin = plugin();
    // SAFETY: QEMU calls on the vCPU's thread, one callback at a time.
    let Some(vcpu) = (unsafe { plugin.vcpu(vcpu) }) else {
        return;
    };
    if !vcpu.passes(address, WRITE) {
        // SAFETY: inside a memory callback, with its arguments.
        unsafe {
            plugin.look(
                vcpu,
                info,
                Access {
                    address,
                    instruction: instruction as usize,
                    write: WRITE,
                },
            )
        }
    }
}

/// The guest's instruction set, by QEMU's name for the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstructionSet {
    /// `x86_64`.
    X86,
    /// `aarch64`.
    Arm,
    /// `ppc64`; little-endian guests.
    Power,
    /// Anything else: nothing is recognised.
    Other,
}

impl InstructionSet {
    /// By QEMU's name.
    pub fn of(target: &str) -> Self {
        match target {
            "x86_64" | "i386" => Self::X86,
            "aarch64" => Self::Arm,
            "ppc64" => Self::Power,
            _ => Self::Other,
        }
    }

    /// Whether an instruction is one that waits for [`PAUSE_PS`].
    pub fn is_pause(self, instruction: &[u8]) -> bool {
        self == Self::X86 && instruction == [0xf3, 0x90]
    }

    /// The registers that a program computes with, by QEMU's names.
    pub fn general_registers(self) -> &'static [&'static str] {
        match self {
            Self::X86 => &[
                "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11",
                "r12", "r13", "r14", "r15",
            ],
            Self::Arm | Self::Power | Self::Other => &[],
        }
    }

    /// Whether an instruction changes what addresses stand for.
    pub fn switches(self, instruction: &[u8]) -> bool {
        match self {
            Self::X86 => x86(instruction),
            Self::Arm => word(instruction).is_some_and(arm),
            Self::Power => word(instruction).is_some_and(power),
            Self::Other => false,
        }
    }
}

/// What `pause` takes, in picoseconds: some 140 cycles of 3 GHz since Skylake (Intel's optimization manual, 2.5.4). A loop that
/// waits for a lock consists of it, and would otherwise be executed for each half nanosecond of the wait.
pub const PAUSE_PS: u64 = 47_000;

fn word(instruction: &[u8]) -> Option<u32> {
    instruction.try_into().ok().map(u32::from_le_bytes)
}

/// `mov %reg, %cr3`, `invlpg`, `invpcid` (Intel's manual, volume 2), with any legacy or REX prefixes.
fn x86(instruction: &[u8]) -> bool {
    let prefix = |byte: &u8| {
        matches!(
            byte,
            0x40..=0x4f | 0x66 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65
        )
    };
    let prefixes = instruction.iter().take_while(|byte| prefix(byte)).count();
    match instruction[prefixes..] {
        [0x0f, 0x22, modrm, ..] => modrm >> 3 & 7 == 3,
        [0x0f, 0x01, modrm, ..] => modrm >> 3 & 7 == 7 && modrm < 0xc0,
        [0x0f, 0x38, 0x82, ..] => true,
        _ => false,
    }
}

/// `msr ttbr0_el1, xN` and `msr ttbr1_el1, xN`, which carry the address space's number (Arm's manual, C5.2).
fn arm(word: u32) -> bool {
    matches!(word & 0xffff_ffe0, 0xd518_2000 | 0xd518_2020)
}

/// `mtspr PID, rN` of the radix MMU, and `slbmte` of the hashed one (Power ISA, book III).
fn power(word: u32) -> bool {
    word & 0xfc1f_ffff == 0x7c10_0ba6 || word & 0xfc1f_07fe == 0x7c00_0324
}
