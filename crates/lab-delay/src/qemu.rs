// SPDX-License-Identifier: GPL-2.0-or-later
//! QEMU's plugin interface as far as it is used here: `include/qemu/qemu-plugin.h` of QEMU 8.2.4 to 10.0.
//!
//! | interface | QEMU | what changed for us |
//! |---|---|---|
//! | 2 | 8.2.4 | the oldest that is supported |
//! | 3 | 9.0 | `qemu_plugin_insn_data` copies into a buffer instead of returning a pointer |
//! | 4 | 9.1 to 10.0 | nothing |
//!
//! The plugin declares version 2. QEMU refuses a plugin whose version it no longer supports.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use thiserror::Error;

use crate::vcpu::Target;

/// The running program lacks a function of QEMU's plugin interface.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0} is not there: this is not a QEMU of 8.2.4 or later with plugins")]
pub struct MissingFunction(pub String);

/// A plugin's number.
pub type Id = u64;
/// `qemu_plugin_simple_cb_t`.
pub type SimpleCallback = unsafe extern "C" fn(Id);
/// `qemu_plugin_vcpu_simple_cb_t`.
pub type VcpuCallback = unsafe extern "C" fn(Id, c_uint);
/// `qemu_plugin_vcpu_udata_cb_t`.
pub type ExecCallback = unsafe extern "C" fn(c_uint, *mut c_void);
/// `qemu_plugin_vcpu_mem_cb_t`.
pub type MemoryCallback = unsafe extern "C" fn(c_uint, u32, u64, *mut c_void);
/// `qemu_plugin_vcpu_tb_trans_cb_t`.
pub type TranslationCallback = unsafe extern "C" fn(Id, *mut Block);

/// `struct qemu_plugin_tb`.
#[repr(C)]
#[derive(Debug)]
pub struct Block([u8; 0]);
/// `struct qemu_plugin_insn`.
#[repr(C)]
#[derive(Debug)]
pub struct Instruction([u8; 0]);
/// `struct qemu_plugin_hwaddr`.
#[repr(C)]
#[derive(Debug)]
pub struct HardwareAddress([u8; 0]);

/// `qemu_info_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Info {
    /// QEMU's name for the guest's architecture.
    pub target_name: *const c_char,
    /// The oldest interface it supports.
    pub version_min: c_int,
    /// Its own.
    pub version_cur: c_int,
    /// Whether whole machines are emulated.
    pub system_emulation: bool,
    /// vCPUs at the start.
    pub smp_vcpus: c_int,
    /// vCPUs there can ever be.
    pub max_vcpus: c_int,
}

/// `struct qemu_plugin_scoreboard`.
#[repr(C)]
#[derive(Debug)]
pub struct Scoreboard([u8; 0]);

/// `struct qemu_plugin_register`.
#[repr(C)]
#[derive(Debug)]
pub struct Register([u8; 0]);

/// `qemu_plugin_reg_descriptor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RegisterDescriptor {
    pub register: *mut Register,
    pub name: *const c_char,
    pub feature: *const c_char,
}

/// `GArray` and `GByteArray` of GLib.
#[repr(C)]
#[derive(Debug)]
pub struct Array<T> {
    pub data: *mut T,
    pub length: c_uint,
}

/// `qemu_plugin_u64`: a word of each vCPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Words {
    pub scoreboard: *mut Scoreboard,
    pub offset: usize,
}

/// `QEMU_PLUGIN_CB_NO_REGS`.
pub const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_CB_R_REGS`.
pub const READS_REGISTERS: c_int = 1;
/// `QEMU_PLUGIN_MEM_R`.
pub const LOADS: c_int = 1;
/// `QEMU_PLUGIN_MEM_W`.
pub const STORES: c_int = 2;
/// `QEMU_PLUGIN_INLINE_ADD_U64`.
pub const ADD: c_int = 0;
/// `QEMU_PLUGIN_COND_GE`.
pub const AT_LEAST: c_int = 7;

macro_rules! functions {
    (
        $(#[$about:meta])*
        struct $all:ident
        $($(#[$doc:meta])* $name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        pub struct $all {
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $all {
            /// Looks them up in the running program.
            ///
            /// # Errors
            /// When one is missing: the program is not QEMU, or a QEMU without plugins or with an older interface.
            pub fn find() -> Result<Self, MissingFunction> {
                Ok(Self {
                    // SAFETY: the symbol is QEMU's, and its header declares it with this type.
                    $($name: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                        symbol($symbol)?) },)*
                })
            }
        }
    };
}

functions! {
    /// QEMU's functions, as found in the running program.
    struct Functions
    /// Calls back when a block of guest code is translated.
    on_translation = c"qemu_plugin_register_vcpu_tb_trans_cb": fn(Id, TranslationCallback);
    /// Calls back when a vCPU has nothing to do.
    on_idle = c"qemu_plugin_register_vcpu_idle_cb": fn(Id, VcpuCallback);
    /// Calls back when it has again.
    on_resume = c"qemu_plugin_register_vcpu_resume_cb": fn(Id, VcpuCallback);
    /// Calls back for each load or store of an instruction.
    on_memory = c"qemu_plugin_register_vcpu_mem_cb": fn(*mut Instruction, MemoryCallback, c_int, c_int, *mut c_void);
    /// Calls back before an instruction is executed.
    on_instruction = c"qemu_plugin_register_vcpu_insn_exec_cb": fn(*mut Instruction, ExecCallback, c_int, *mut c_void);
    /// Throws all translated code and all callbacks away, then calls back while no vCPU runs.
    reset = c"qemu_plugin_reset": fn(Id, SimpleCallback);
    /// Instructions of a block.
    instructions = c"qemu_plugin_tb_n_insns": fn(*const Block) -> usize;
    /// One of them.
    instruction = c"qemu_plugin_tb_get_insn": fn(*const Block, usize) -> *mut Instruction;
    /// An instruction's length in bytes.
    instruction_size = c"qemu_plugin_insn_size": fn(*const Instruction) -> usize;
    /// Its virtual address.
    instruction_address = c"qemu_plugin_insn_vaddr": fn(*const Instruction) -> u64;
    /// What the access that is being reported went to; null when QEMU has no record of it.
    hardware_address = c"qemu_plugin_get_hwaddr": fn(u32, u64) -> *mut HardwareAddress;
    /// Whether that is I/O.
    is_io = c"qemu_plugin_hwaddr_is_io": fn(*const HardwareAddress) -> bool;
    /// Its guest physical address.
    physical_address = c"qemu_plugin_hwaddr_phys_addr": fn(*const HardwareAddress) -> u64;
}

functions! {
    /// Those of interface 3 and later that simulated time needs.
    struct TimeFunctions
    /// Makes a scoreboard with so many bytes a vCPU.
    scoreboard = c"qemu_plugin_scoreboard_new": fn(usize) -> *mut Scoreboard;
    /// A vCPU's word.
    get = c"qemu_plugin_u64_get": fn(Words, c_uint) -> u64;
    /// Sets a vCPU's word.
    set = c"qemu_plugin_u64_set": fn(Words, c_uint, u64);
    /// Adds to the word of the vCPU that executes a block, without a call.
    on_block_add = c"qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu": fn(*mut Block, c_int, Words, u64);
    /// The registers of the vCPU that this thread runs, in an array that is the caller's.
    registers = c"qemu_plugin_get_registers": fn() -> *mut Array<RegisterDescriptor>;
    /// Appends a register's bytes, and returns how many there are, or -1.
    read_register = c"qemu_plugin_read_register": fn(*mut Register, *mut Array<u8>) -> c_int;
    /// Makes an array, of GLib.
    byte_array = c"g_byte_array_new": fn() -> *mut Array<u8>;
    /// Sets how many bytes it has, of GLib.
    set_length = c"g_byte_array_set_size": fn(*mut Array<u8>, c_uint) -> *mut Array<u8>;
    /// Calls back before a block where a vCPU's word fulfils a condition.
    on_block_if = c"qemu_plugin_register_vcpu_tb_exec_cond_cb": fn(*mut Block, ExecCallback, c_int, c_int, Words, u64, *mut c_void);
}

/// The bytes of an instruction: `qemu_plugin_insn_data`, whose shape depends on the version.
#[derive(Clone, Copy, Debug)]
pub enum InstructionData {
    /// Interface 2.
    Pointer(unsafe extern "C" fn(*const Instruction) -> *const c_void),
    /// Interface 3 and later.
    Copy(unsafe extern "C" fn(*const Instruction, *mut c_void, usize) -> usize),
}

impl InstructionData {
    /// Looks it up in the running program, whose interface has this version.
    ///
    /// # Errors
    /// When it is missing.
    pub fn find(version: c_int) -> Result<Self, MissingFunction> {
        let found = symbol(c"qemu_plugin_insn_data")?;
        Ok(match version {
            // SAFETY: QEMU's header of interface 2 declares it with this type.
            ..=2 => Self::Pointer(unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(_) -> _>(found)
            }),
            // SAFETY: QEMU's header of interface 3 and 4 declares it with this type.
            _ => Self::Copy(unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(_, _, _) -> _>(found)
            }),
        })
    }
}

impl Functions {
    /// What the access that is being reported went to.
    ///
    /// # Safety
    /// Only inside a memory callback, with its arguments.
    #[inline]
    pub unsafe fn target(&self, info: u32, address: u64) -> Target {
        // SAFETY: the caller is inside a memory callback, for which QEMU keeps what is asked for.
        unsafe {
            let hardware = (self.hardware_address)(info, address);
            if hardware.is_null() {
                return Target::Unknown;
            }
            let physical = (self.physical_address)(hardware);
            match (self.is_io)(hardware) {
                true => Target::Register(physical),
                false => Target::Memory(physical),
            }
        }
    }

    /// The first bytes of an instruction, and how many there are.
    ///
    /// # Safety
    /// Only inside a translation callback, with an instruction of its block.
    pub unsafe fn bytes(
        &self,
        data: InstructionData,
        instruction: *const Instruction,
    ) -> ([u8; 16], usize) {
        let mut bytes = [0; 16];
        // SAFETY: the caller is inside a translation callback; no more than the buffer's size is copied.
        unsafe {
            let size = (self.instruction_size)(instruction).min(bytes.len());
            match data {
                InstructionData::Copy(copy) => {
                    copy(instruction, bytes.as_mut_ptr().cast(), size);
                }
                InstructionData::Pointer(pointer) => {
                    std::ptr::copy_nonoverlapping(
                        pointer(instruction).cast(),
                        bytes.as_mut_ptr(),
                        size,
                    );
                }
            }
            (bytes, size)
        }
    }
}

fn symbol(name: &CStr) -> Result<*mut c_void, MissingFunction> {
    // SAFETY: looks a name up among the program's own symbols.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    match found.is_null() {
        false => Ok(found),
        true => Err(MissingFunction(name.to_string_lossy().into_owned())),
    }
}
