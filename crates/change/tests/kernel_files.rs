//! Writing to a file of a real kernel. Only the name of the thread that change sets the test is changed.

use nearfar_change::system::{Rooted, System};

#[test]
fn a_file_of_the_kernel_that_takes_no_offset_is_written() {
    // Like those of /proc/irq this is one of the kernel's sequence files, which refuse pwrite with ESPIPE; a recorded
    // tree of regular files cannot show that.
    let thread = std::fs::read_link("/proc/thread-self").expect("procfs");
    let comm = format!("/proc/{}/comm", thread.display());
    let live = Rooted::live().expect("the root directory");
    live.write(&comm, b"near")
        .expect("the name of our own thread");
    assert_eq!(live.read(&comm).expect("the name"), b"near\n");
}
