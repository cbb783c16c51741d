//! `/proc` without the interrupts.

use std::fmt::Write as _;
use std::io;

use crate::nodes::NODE_KILOBYTES;
use crate::output::Output;
use crate::shape::Shape;

const FLAGS: &str = "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht \
                     syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl nonstop_tsc cpuid \
                     extd_apicid aperfmperf rapl pni pclmulqdq monitor ssse3 fma cx16 pcid sse4_1 sse4_2 x2apic movbe \
                     popcnt aes xsave avx f16c rdrand lahf_lm cmp_legacy svm extapic cr8_legacy abm sse4a misalignsse";

pub fn write(output: &Output, shape: &Shape) -> io::Result<()> {
    output.line(
        "proc/version",
        "Linux version 6.12.0-generated (builder@example) (gcc 14.2) #1 SMP",
    )?;
    output.line("proc/cmdline", "root=/dev/nvme0n1p2 ro quiet")?;
    output.line("proc/sys/kernel/osrelease", "6.12.0-generated")?;
    output.line("proc/sys/kernel/arch", "x86_64")?;
    output.line("proc/sys/kernel/hostname", "generated")?;
    output.line("proc/sys/kernel/numa_balancing", 0)?;
    output.line("sys/class/dmi/id/sys_vendor", "nearfar")?;
    output.line("sys/class/dmi/id/product_name", "generated machine")?;
    output.line(
        "sys/kernel/mm/transparent_hugepage/enabled",
        "always [madvise] never",
    )?;
    for (kilobytes, pages) in [(2048, 1024 * shape.nodes), (1_048_576, 0)] {
        output.line(
            &format!("sys/kernel/mm/hugepages/hugepages-{kilobytes}kB/nr_hugepages"),
            pages,
        )?;
    }
    let total = NODE_KILOBYTES * u64::from(shape.nodes);
    let meminfo = format!(
        "MemTotal: {total:>15} kB\nMemFree: {:>15} kB\nHugepagesize:       2048 kB",
        total / 2
    );
    output.line("proc/meminfo", meminfo)?;
    let mut cpuinfo = String::new();
    for cpu in 0..shape.cpus {
        let (core, package) = (shape.core_of(cpu), shape.node_of(cpu) / 2);
        // Writing to a String cannot fail.
        let _ = writeln!(
            cpuinfo,
            "processor\t: {cpu}\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: generated\n\
             cpu MHz\t\t: 2400.000\ncache size\t: 1024 KB\nphysical id\t: {package}\nsiblings\t: {}\ncore id\t\t: {core}\n\
             cpu cores\t: {}\nflags\t\t: {FLAGS}\nbogomips\t: 4800.00\n",
            shape.cores_per_node() * 4,
            shape.cores_per_node() * 2,
        );
    }
    output.bytes("proc/cpuinfo", cpuinfo.as_bytes())
}
