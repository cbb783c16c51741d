//! A QEMU plugin that makes far memory slow.
